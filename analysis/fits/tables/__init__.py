"""Tables of runs, one's own or other people's, as points that every approach fits."""

from analysis.fits.points import Reading
from analysis.fits.tables.read import read_points, read_table

__all__ = ["Reading", "read_points", "read_table"]
