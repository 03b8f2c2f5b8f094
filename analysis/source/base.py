"""What fit and report ask of a study, wherever it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    import pandas as pd

    from analysis.fits.settings import FitSettings
    from analysis.run_table import RunTable

BASELINE = "bigram.json"  # the bigram model's loss on the held-out text
AGAIN = "take the folder from where it was published"  # what to do about a damaged file of it
WAITING, NOT_TRAINED = "waiting", "not trained"  # states of a run that has not begun


class Inputs(TypedDict):
    """What a fit was made from: of every file that it read, by its path in the study, a hash of its content (null: not
    there); runs on disk that are none of the study's."""

    files: dict[str, str | None]
    others: list[str]


class Provenance(TypedDict):
    """How the runs came about: what all said of each, sorted; a hash of each run's spec and of its metrics.jsonl."""

    versions: dict[str, list[str]]
    git_commits: list[str]
    corpus_fingerprints: list[str]
    spec_hashes: dict[str, str]
    metrics: dict[str, str]


class Source(Protocol):
    """The table of runs is as a Parquet file gives it back, so that both kinds of source give the same, but for the
    state of runs that have not begun: of a published study nobody trains them any more."""

    def inputs(self) -> Inputs: ...

    def provenance(self) -> Provenance: ...

    def table(self, settings: FitSettings, validation_tokens: int, variants: bool = True) -> RunTable:
        """Of the study's runs and, with `variants`, of those that --set made of them, to be fitted with `settings`."""
        ...

    def forecast(self) -> RunTable | None:
        """Of the runs of the section `forecast` that have begun, which are in no other table; None without any."""
        ...

    def scores(self) -> pd.DataFrame | None:
        """Of all evaluations, a row a number; None where there are none."""
        ...

    def forecast_scores(self) -> pd.DataFrame | None:
        """Of all evaluations of forecast runs, as `scores`."""
        ...

    def corpus(self) -> dict[str, Any] | None:
        """What the corpus' manifest says."""
        ...

    def baseline(self) -> dict[str, Any] | None: ...

    def contamination(self) -> dict[str, Any] | None: ...

    def evaluations_page(self) -> str | None:
        """The address, from the report, of the page of the other evaluations."""
        ...
