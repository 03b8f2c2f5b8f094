"""Tables of runs, one's own or other people's, as points that every approach fits."""

from analysis.fits.tables.points import Reading, read_points

__all__ = ["Reading", "read_points"]
