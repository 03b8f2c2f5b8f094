"""How the sizes of a study rank its architectures by a task's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from analysis.fits.downstream.ranking import SizeRanking, Tail, between_seeds, decision_accuracy, rank_size, tail_of
from analysis.fits.tasks.places import Checkpoint
from analysis.scales import PERPLEXITY, Scale


def rankings_of(
    found: Sequence[tuple[Checkpoint, float, float]], scale: Scale
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each size's ranking, smallest size first; and how each size ranks the architectures beside the largest. Of
    perplexities the logarithms are compared."""
    runs: dict[str, list[tuple[Checkpoint, float]]] = {}
    for one, value, _ in found:
        runs.setdefault(one.run_id, []).append((one, np.log(value) if scale.kind == PERPLEXITY else value))
    tails: dict[str, list[Tail]] = {}
    compute: dict[str, float] = {}
    for rows in runs.values():
        one = rows[0][0]
        tail = tail_of(
            one.arch, one.size, np.array([row.n_tokens for row, _ in rows]), np.array([value for _, value in rows])
        )
        if tail is not None:
            tails.setdefault(one.size, []).append(tail)
            compute[one.size] = max(compute.get(one.size, 0.0), max(row.flops for row, _ in rows))
    between = between_seeds([one for some in tails.values() for one in some])
    ranked: list[SizeRanking] = [
        rank_size(size, tails[size], between) for size in sorted(tails, key=compute.__getitem__)
    ]
    if not ranked:
        return [], []
    large = max(ranked, key=lambda one: (len(one.means), ranked.index(one)))
    accuracy = [
        {"size": one.size, "as_at": large.size, "share": told[0], "n_pairs": told[1]}
        for one in ranked[: ranked.index(large)]
        if (told := decision_accuracy(one.means, large.means)) is not None
    ]
    return [asdict(one) | {"seeds": between is not None} for one in ranked], accuracy
