"""lm-eval over local data: common sense, SuperGLUE, perplexity, SCROLLS. sets.py says what there is."""
