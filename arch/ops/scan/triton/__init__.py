"""`scan` on a GPU."""
