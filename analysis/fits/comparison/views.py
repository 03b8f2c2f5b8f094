"""A verdict on architectures that does not hang on how compute and size are counted.

The same runs are compared under several views: FLOP by `exact` and `6nd`, measured GPU-seconds, N with and without the
head. Small models of large vocabularies change places between them. One architecture counts as ahead of another only
where the interval of its gain, which holds for all pairs and budgets at once, excludes 1 under every view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.fits.comparison.compare import compare_architectures
from analysis.fits.comparison.pairs import describe_pairs
from analysis.fits.points import Points
from arch.errors import InputError


def across(
    views: Mapping[str, Sequence[Points] | str],
    n_replicates: int = 999,
    level: float = 0.95,
    seed: int = 0,
    seed_noise: float = 0.0,
) -> dict[str, Any]:
    """{"views": {name: the comparison or, as `reason`, why there is none}, "pairs": [a verdict for each pair]}. A view
    that could not be made is given by its reason."""
    found: dict[str, dict[str, Any]] = {}
    for name, groups in views.items():
        try:
            if isinstance(groups, str):
                raise InputError(groups)
            compared = compare_architectures(groups, None, n_replicates, level, seed, seed_noise=seed_noise)
            found[name] = describe_pairs(compared) | {"reason": None}
        except InputError as error:
            found[name] = {"reason": str(error), "pairs": []}
    keys: dict[frozenset[str], tuple[str, str]] = {}  # which of two is the reference may differ between views
    for view in found.values():
        for row in view["pairs"]:
            keys.setdefault(frozenset((row["reference"], row["other"])), (row["reference"], row["other"]))
    return {
        "views": found,
        "pairs": [_judged(found, one, other, beyond) for one, other in keys.values() for beyond in (False, True)],
    }


def _judged(found: Mapping[str, Mapping[str, Any]], one: str, other: str, beyond: bool) -> dict[str, Any]:
    """Who is ahead at the end of the common range (or ten times beyond it), by view (None: not told apart, or no
    comparison under this view), and whether that stands: under every view."""
    ahead: dict[str, str | None] = dict.fromkeys(found)
    for name, view in found.items():
        for row in view["pairs"]:
            if {row["reference"], row["other"]} == {one, other}:
                at = view["beyond"] if beyond else view["range"][1]
                joint = next((gain["joint"] for gain in row["gains"] if gain["c"] == at), None)
                if joint is not None and not joint[0] <= 1 <= joint[1]:
                    ahead[name] = row["other" if joint[0] > 1 else "reference"]
    names = set(ahead.values())
    stands = len(names) == 1 and None not in names
    told = {"reference": one, "other": other, "beyond": beyond, "stands": stands, "by_view": ahead}
    return told | {"ahead": next(iter(names)) if stands else None}
