"""Laws of a study's task scores: score against loss, and perplexity by context length."""
