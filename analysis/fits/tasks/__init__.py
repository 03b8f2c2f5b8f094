"""Laws of a study's task scores: score against loss, rankings of architectures, perplexity by context length."""
