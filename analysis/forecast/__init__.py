"""Held-out forecasts: the loss of larger runs, predicted before they are trained, and how it came out."""
