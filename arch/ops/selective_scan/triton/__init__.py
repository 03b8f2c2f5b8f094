"""`selective_scan` on a GPU."""
