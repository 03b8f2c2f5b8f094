"""A study as a small folder from which its fits are made again: written, and held against what it says."""
