"""`gated_delta` on a GPU."""
