"""The same on a GPU."""
