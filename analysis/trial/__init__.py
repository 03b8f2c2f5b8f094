"""Is a change of an architecture worth scaling? Differences at single sizes, projections, a verdict: pure, no files."""
