"""`decay_attention` on a GPU."""
