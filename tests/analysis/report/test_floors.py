from __future__ import annotations

from typing import Any

import pytest

from analysis.fits.fit import D_OPT, L_OPT, N_OPT, Estimate, Law
from analysis.fits.study_fits import StudyFits
from analysis.report.floors import floor_notes

from ..fits.built import fit_of, study_of

RATE = {"nats_per_token": 1.0103, "bits_per_byte": 1.4589}


def _fits(ends: Any, rate: Any = RATE) -> StudyFits:
    laws = [Law(N_OPT), Law(D_OPT), Law(L_OPT, floor=Estimate.of(1.05, ends))]
    surface = fit_of("parametric", 10, group="llama", laws=laws)
    return study_of(surface, fit_of("isoflop", 10, group="llama"), entropy_rate=rate)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([1.0, 1.1], "inside E's interval [1.0000, 1.1000] (nominal level 0.95)"),
        ([1.02, 1.1], "below E's interval"),
        ([0.9, 1.0], "above E's interval"),
        (None, "E has no interval"),
        ([None, None], "E has no interval"),
    ],
)
def test_rate_stands_beside_the_fitted_floor(ends: Any, told: str) -> None:
    (line,) = floor_notes(_fits(ends))
    assert line.startswith("LLaMA, parametric: E = 1.0500 nats/byte") and "1.0103" in line and told in line


def test_text_of_unknown_rate_has_no_line() -> None:
    assert floor_notes(_fits(None, None)) == []
