"""`gated_attention` on a GPU."""
