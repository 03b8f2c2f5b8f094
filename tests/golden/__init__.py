"""What the analysis says today, frozen: laws.csv. `python -m tests.golden.make` writes it, test_laws.py compares."""
