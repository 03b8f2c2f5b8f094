"""`causal_filter` on a GPU."""
