"""Notes under the tables of the fits: what is said of all architectures together."""

import numpy as np

from analysis.fits.fit import L_OPT, Curvature, Law, LossLine
from analysis.fits.study_fits import StudyFits
from analysis.report.notes import common_lean

from ..fits.built import fit_of, study_of


def straight(p_values: np.ndarray) -> StudyFits:
    """Fits whose curves have these p-values of a bend, 9,999 replicates each."""
    bends = [Curvature(True, p_value=float(p)) for p in p_values]
    laws = [Law(L_OPT, replicates=9999, about_loss=LossLine(curvature=bend)) for bend in bends]
    return study_of(*(fit_of("envelope", group=f"a{i}", laws=[law]) for i, law in enumerate(laws)))


def test_straight_curves_lean_one_way_together_in_one_of_a_hundred_studies_at_most() -> None:
    """Their p-values are uniform; 0.02 of the studies had the line while only the side that they lean to counted."""
    rng = np.random.default_rng(0)
    assert sum(bool(common_lean(straight(p))) for p in rng.uniform(size=(6000, 2))) / 6000 < 0.013


def test_curves_that_bend_the_same_way_are_told_with_the_chance_of_both_sides() -> None:
    (line,) = common_lean(straight(np.array([0.01, 0.01])))
    assert line.startswith("The curves of all 2 architectures are convex to some degree (p = 0.001 for all of them")
    assert not common_lean(straight(np.array([0.01, 0.99])))
