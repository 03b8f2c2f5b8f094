"""Is one link shared by all architectures? Their own links against one, tested with errors by run.

F compares the residuals of one link for all with those of a link each, linearised at the shared optimum and weighted by
its run effect. Its distribution where the link is shared is simulated twice: from the run effect's own model, and as a
wild cluster bootstrap (residuals under the shared link, one random sign a run: Cameron, Gelbach and Miller 2008). The
larger p-value counts: the first trusts the model, the second rejects too often where architectures have few runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.fits.downstream.link import Link, fit_link
from analysis.fits.downstream.run_effect import whiten
from analysis.fits.downstream.scores import LOSS, Scores
from arch.errors import InputError

REPLICATES = 999


@dataclass(frozen=True, eq=False)
class Shared:
    """`link` of all architectures together; f: the test's statistic; p: that one as large comes up where the link is
    shared; None with one architecture."""

    link: Link
    groups: tuple[str, ...]
    f: float | None
    p: float | None


def pooled(parts: Sequence[Scores]) -> Scores:
    """One table of all; runs keep apart by their group. Raises InputError for scores of different scales or FLOP
    conventions."""
    first = parts[0]
    if len({(one.scale, one.task, one.convention) for one in parts}) > 1:
        raise InputError(f"{first.task}: one link takes scores of one task, scale and FLOP convention")
    joined: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts]) for name in Scores.arrays()}
    joined["run"] = np.array([f"{one.group}/{run}" for one in parts for run in one.run], dtype=object)
    return replace(first, **joined, group="", n_missing=sum(one.n_missing for one in parts))


def fit_shared(parts: Sequence[Scores], against: str = LOSS, seed: int = 0, replicates: int = REPLICATES) -> Shared:
    """One link for the architectures of `parts`, and the test whether it is one. Raises InputError as `fit_link`."""
    link = fit_link(pooled(parts), against=against)
    groups = tuple(one.group for one in parts)
    if len(parts) < 2:
        return Shared(link, groups, None, None)
    scores, run = link.scores, link.scores.run_number
    z = scores.order(against) - link.z0
    raw = link.form.jacobian(link.theta, z) / scores.noise[:, None]
    left = (scores.fitted - link.form.value(link.theta, z)) / scores.noise
    u, ratio = raw[:, 0], link.effect.ratio
    columns, rest = (whiten(one, u, run, ratio) for one in (raw, left))
    member = np.repeat(np.arange(len(parts)), [len(one) for one in parts])
    own = np.concatenate([columns * (member == i)[:, None] for i in range(len(parts))], axis=1)
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], size=(replicates, scores.n_runs))
    normal = random.standard_normal((replicates, len(rest)))  # whitened, the model's noise is that
    drawn = np.concatenate([rest[None], rest * signs[:, run], normal])  # the study's own first
    one, each = (((drawn - drawn @ basis @ basis.T) ** 2).sum(1) for basis in (_basis(columns), _basis(own)))
    f = (one - each) / np.maximum(each, 1e-300)
    beyond = (f[1:] >= f[0] * (1 - 1e-12)).reshape(2, replicates).sum(1)
    return Shared(link, groups, float(f[0]), float((1 + beyond.max()) / (1 + replicates)))


def _basis(columns: np.ndarray) -> np.ndarray:
    """Orthonormal, of the column space."""
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(u[:, s > 1e-10 * s.max()])
