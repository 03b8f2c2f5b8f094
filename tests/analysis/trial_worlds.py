"""Trials of variants whose truth is known: surfaces of loss, runs that share the noise of their batches, held-out
windows that share documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fits.points import Points
from analysis.fits.surface import Surface
from analysis.trial import Pairs

ONE = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
BETTER = Surface(1.69, 390.0, 385.0, 0.34, 0.28)
SIZES = 1e6 * 2.0 ** np.arange(6)  # of the study; the variant has the first four
TOKENS_A_PARAMETER = 40
N_WINDOWS, A_DOCUMENT = 128, 4  # windows; windows of one document
SPAN = np.geomspace(0.1, 1, 5)  # of a run's tokens: points along it


@dataclass(frozen=True)
class World:
    """Noise in standard deviations of log loss: of batches, shared by both runs of a seed; of each run alone; of a
    document's difference between the two models, as a share of the loss. n_seeds at every size; repeated: seeds of
    another size of the study that tell s, 0: none."""

    batch: float = 0.004
    own: float = 0.002
    document: float = 0.01
    n_seeds: int = 1
    repeated: int = 4


@dataclass(frozen=True)
class Drawn:
    """`pairs`: at the variant's sizes; `points`: of baseline and variant; noise: (s, degrees of freedom)."""

    pairs: list[Pairs]
    points: tuple[Points, Points]
    noise: tuple[float, float] | None


def draw(world: World, variant: Surface, seed: int, baseline: Surface = ONE) -> Drawn:
    rng = np.random.default_rng(seed)
    documents = np.repeat(np.arange(N_WINDOWS) // A_DOCUMENT, 2).reshape(N_WINDOWS, 2)
    n_documents = N_WINDOWS // A_DOCUMENT
    text = np.repeat(rng.standard_normal(n_documents), A_DOCUMENT)  # moves both models alike
    apart = world.document * np.repeat(rng.standard_normal(n_documents), A_DOCUMENT)  # and the variant alone
    pairs, tables = [], {"baseline": [], "variant": []}
    for i, n in enumerate(SIZES):
        d = TOKENS_A_PARAMETER * n
        rows: dict[str, list[np.ndarray]] = {"baseline": [], "variant": []}
        for k in range(world.n_seeds):
            shared = world.batch * rng.standard_normal()
            for name, surface in (("baseline", baseline), ("variant", variant)):
                if name == "variant" and i > 3:
                    continue
                noise = shared + world.own * rng.standard_normal()
                loss = float(surface.loss(n, d)) * np.exp(noise)
                windows = loss * (1 + 0.1 * text + (apart if name == "variant" else 0.0))
                rows[name].append(windows + 0.01 * rng.standard_normal(N_WINDOWS))
                level = float(rows[name][-1].mean()) / float(surface.loss(n, d))
                tables[name].append((n, SPAN * d, surface.loss(n, SPAN * d) * level, f"{name} {i} {k}", f"{i} {k}"))
        if i <= 3:
            both = map(np.stack, rows.values())
            pairs.append(Pairs(f"{n:.0f}", tuple(range(world.n_seeds)), *both, float(6 * n * d), documents))
    df = world.repeated - 1
    s = np.hypot(world.batch, world.own)
    noise = (float(s * np.sqrt(rng.chisquare(df) / df)), float(df)) if df > 0 else None
    return Drawn(pairs, (points(tables["baseline"]), points(tables["variant"])), noise)


def points(rows) -> Points:
    size = len(SPAN)
    n = np.repeat([row[0] for row in rows], size)
    d, loss = (np.concatenate([row[i] for row in rows]) for i in (1, 2))
    run, cell = (np.repeat(np.array([row[i] for row in rows], dtype=object), size) for i in (3, 4))
    return Points(n, d, 6 * n * d, loss, run=run, cell=cell)
