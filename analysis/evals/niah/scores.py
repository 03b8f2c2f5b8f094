"""The measures of a needle-in-a-haystack grid, as Scaling Laws for Linear Complexity LMs defines them (appendix B.1).

A grid holds scores 1 to 10, [n_lengths, n_depths], lengths ascending, depths from shallow to deep. Percentages, as in
the paper's tables 12 to 14. What the paper leaves open, and our reading of it, is in README.md beside this file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

LEVELS = ((0.75, 7), (0.5, 5), (0.25, 3))
EXACT, MISSED = 10, 1
WORD = re.compile(r"[^\W_]+")
FUNCTION_WORDS = frozenset(
    WORD.findall("a an and are as at be by for from in is it its of on or that the this to was were will with")
)


def words(text: str) -> list[str]:
    """The words of a text in lower case, of letters and digits."""
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def score(answer: str, expected: str, question: str) -> int:
    """The score of an answer: 10, 7, 5, 3 or 1. Raises ValueError where `expected` has no key word."""
    given, wanted = words(answer), words(expected)
    if any(given[i : i + len(wanted)] == wanted for i in range(len(given) - len(wanted) + 1)):
        return EXACT
    keys = set(wanted) - FUNCTION_WORDS - set(words(question))
    if not keys:
        raise ValueError(f"the expected answer {expected!r} has no word that the question has not")
    recall = len(keys & set(given)) / len(keys)
    return next((level for least, level in LEVELS if recall >= least), MISSED)


COLUMNS = {"2k": 2000, "4k": 4000, "8k": 8000, "16k": 16000}  # the lengths that the tables name, in tokens
CUTS = {"4k": 4096, "8k": 8192}


def shares(scores: np.ndarray) -> np.ndarray:
    """(q - 1) / 9, in [0, 1]: with any other reading the paper's tables do not come out."""
    return (np.asarray(scores, dtype=np.float64) - MISSED) / (EXACT - MISSED)


def accuracy_at(scores: np.ndarray, lengths: Sequence[int], target: int) -> float | None:
    """The mean over the depths at the length nearest to `target` tokens; None where that length is further away than a
    tenth of the target."""
    nearest = int(np.abs(np.asarray(lengths) - target).argmin())
    if abs(lengths[nearest] - target) > target / 10:
        return None
    return 100 * float(shares(scores)[nearest].mean())


def accuracy_up_to(scores: np.ndarray, lengths: Sequence[int], limit: int) -> float | None:
    """The mean over all cells of at most `limit` tokens; None where the longest of them is shorter than nine tenths of
    the limit."""
    chosen = np.asarray(lengths) <= limit
    if not chosen.any() or np.asarray(lengths)[chosen].max() < 0.9 * limit:
        return None
    return 100 * float(shares(scores)[chosen].mean())


def weights(n_lengths: int, n_depths: int, alpha_c: float, alpha_d: float) -> np.ndarray:
    """[n_lengths, n_depths]: the outer product of two geometric progressions that begin at 1: longer and deeper cells
    weigh more."""
    return np.outer(alpha_c ** np.arange(n_lengths), alpha_d ** np.arange(n_depths))


def penalty(succeeded: Sequence[bool]) -> float:
    """The factor p of one length: 0 where no depth succeeded, 1 where all did, else 2^((1 - n) / 2) for n runs of equal
    outcomes from shallow to deep."""
    column = np.asarray(succeeded, dtype=bool)
    if not column.any():
        return 0.0
    n_runs = 1 + int((column[1:] != column[:-1]).sum())
    return float(2.0 ** ((1 - n_runs) / 2))  # a full column is one run: p = 1


def measures(
    scores: np.ndarray, lengths: Sequence[int], alpha_c: float, alpha_d: float, threshold: int
) -> dict[str, Any]:
    """Every measure in per cent: the tables' nine columns, None for those that the grid does not reach.

    threshold: the lowest score that counts as a success, in the NIAH score's penalty only.
    """
    weight = weights(scores.shape[0], scores.shape[1], alpha_c, alpha_d)
    share = shares(scores)
    p = np.array([penalty(column) for column in np.asarray(scores) >= threshold])
    return {
        **{f"acc_at_{name}": accuracy_at(scores, lengths, tokens) for name, tokens in COLUMNS.items()},
        **{f"acc_le_{name}": accuracy_up_to(scores, lengths, tokens) for name, tokens in CUTS.items()},
        "acc_avg": 100 * float(share.mean()),
        "weighted_avg_acc": 100 * float((weight * share).sum() / weight.sum()),
        "niah_score": 100 * float((weight * p[:, None] * share).sum() / weight.sum()),
    }
