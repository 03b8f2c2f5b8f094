"""SCROLLS' scores of a text against its references (Shaham et al. 2022): ROUGE and F1, the best reference counting."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)


def rouge(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, -2 and -L, 0 to 100, each by its best reference; no stemming, as SCROLLS."""
    scores = [_scorer().score(reference, prediction) for reference in references]
    return {kind: 100 * max(score[kind].fmeasure for score in scores) for kind in ("rouge1", "rouge2", "rougeL")}


def normalized_words(text: str) -> list[str]:
    """SQuAD's normalisation: lower case, no punctuation, no articles, words by white space."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def word_f1(prediction: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, 0 to 100, by the best reference. 0 where no word is shared."""
    return 100 * max(_f1(normalized_words(prediction), normalized_words(reference)) for reference in references)


def _f1(found: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def geometric_mean(scores: Sequence[float]) -> float:
    """Of ROUGE-1, -2 and -L: what SCROLLS counts for a summary."""
    product = 1.0
    for score in scores:
        product *= score
    return float(product ** (1 / len(scores)))
