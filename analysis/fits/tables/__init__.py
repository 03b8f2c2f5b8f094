"""Tables of runs, one's own or other people's, as points that every approach fits."""

from analysis.fits.points import Reading
from analysis.fits.tables.points import read_points

__all__ = ["Reading", "read_points"]
