"""Studies proposed before they are trained: what is affordable, what it would identify, and the study file.

priors.py draws surfaces that an architecture may have, proposal.py says what a study trains, expect.py what its
intervals would be by linear theory, choose.py compares what a budget allows.
"""
