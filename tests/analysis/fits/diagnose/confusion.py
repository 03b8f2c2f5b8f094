"""The verdict on simulated studies, against what is true of them."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from analysis.fits.cost import six_nd
from analysis.fits.diagnose.checks import check_laws
from analysis.fits.envelope.of_points import fit_envelope
from analysis.fits.fit import DO_NOT, Fit
from analysis.fits.isoflop import fit_isoflop
from analysis.fits.parametric.fit import fit_parametric
from analysis.fits.parametric.results import parametric_result
from analysis.fits.settings import FitSettings
from arch.errors import InputError

from .worlds import drawn, exponent_of, study

RIGHT_A, RIGHT_N = 0.05, math.log(1.3)
REPLICATES = 199


@dataclass(frozen=True)
class Outcome:
    """kind of world; approach; whether a and N_opt in the middle of the range are right (None: no law); the verdict."""

    kind: str
    approach: str
    right: bool | None
    off_a: float
    off_n: float
    verdict: str
    reasons: tuple[str, ...]


def outcomes(kind: str, seed: int) -> list[Outcome]:
    """Of one study of a world of this kind."""
    rng = np.random.default_rng([seed, *kind.encode()])
    world = drawn(kind, rng)
    points, noise = study(world, rng)
    middle = math.sqrt(points.flops.min() * points.flops.max())
    fit = fit_parametric(points, noise=(noise.s, noise.df), n_replicates=REPLICATES)
    results: list[Fit] = [parametric_result(fit, at=[middle])]
    results.append(fit_envelope(points, noise=noise, at=[middle], settings=FitSettings(n_replicates=REPLICATES)))
    with suppress(InputError):
        results.append(fit_isoflop(points, six_nd(), noise=noise, at=[middle], n_replicates=REPLICATES))
    judged, _ = check_laws(points, results, noise=noise, n_replicates=REPLICATES)
    found = []
    for one in judged:
        assert one.verdict is not None
        a = one.a.value
        if a is None or one.middle is None or one.n_opt.value is None:
            found.append(
                Outcome(kind, one.approach, None, math.nan, math.nan, one.verdict.believe, one.verdict.reasons)
            )
            continue
        off_a = a - exponent_of(world, math.log(one.middle.flops))
        off_n = math.log(one.n_opt.value) - world.log_n_opt(math.log(one.middle.flops))
        right = abs(off_a) < RIGHT_A and abs(off_n) < RIGHT_N
        found.append(Outcome(kind, one.approach, right, off_a, off_n, one.verdict.believe, one.verdict.reasons))
    return found


def matrix(found: list[Outcome]) -> dict[str, int]:
    """How many were believed and right, believed and wrong, not believed and right, not believed and wrong."""
    told = dict.fromkeys(("believed, right", "believed, wrong", "not believed, right", "not believed, wrong"), 0)
    for one in found:
        believed = "not believed" if one.verdict == DO_NOT else "believed"
        told[f"{believed}, {'right' if one.right else 'wrong'}"] += 1
    return told
