"""What fit and report ask of a study, wherever it lies."""

from __future__ import annotations

from typing import TypedDict

BASELINE = "bigram.json"  # the bigram model's loss on the held-out text
AGAIN = "take the folder from where it was published"  # what to do about a damaged file of it
WAITING, NOT_TRAINED = "waiting", "not trained"  # states of a run that has not begun


class Inputs(TypedDict):
    """What a fit was made from. files: by path in the study, a hash of every file that it read (null: missing); others:
    runs on disk that are none of the study's."""

    files: dict[str, str | None]
    others: list[str]


class Provenance(TypedDict):
    """How the runs came about: each fact as all runs record it, sorted; a hash of each run's spec and metrics.jsonl."""

    versions: dict[str, list[str]]
    git_commits: list[str]
    corpus_fingerprints: list[str]
    spec_hashes: dict[str, str]
    metrics: dict[str, str]
