"""What a study's fits say about the scores of its tasks, as fits.json holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.fits.fit import Estimate, Stored, Verdict
from analysis.scales import Scale


@dataclass(frozen=True)
class Score:
    """A task's score of one checkpoint. loss: what the study's laws are fitted to, after so many tokens; flops: of the
    training until then, by the study's convention; error: standard error over the task's questions, None where the
    task gives none."""

    run_id: str
    size: str
    n_tokens: int
    loss: float
    flops: float
    value: float
    error: float | None

    @property
    def name(self) -> str:
        return f"{self.run_id} after {self.n_tokens:,} tokens"


@dataclass(frozen=True)
class Curve:
    """A law's score at many losses, rising, and the ends of its 95% interval (empty: the law has none)."""

    loss: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ScoreAt:
    """The score at the optimal size for a compute of `flops`, of the loss that L(C) gives there."""

    flops: float
    loss: float | None
    score: Estimate


@dataclass(frozen=True)
class ScoreLaw:
    """A task's scores of one architecture, and their law. t: of the trend of score ranks with loss ranks, above 0 where
    scores get better; needed: what it must exceed; withheld: why there is no law, "" where there is one; form: of the
    law, with its parameters (analysis.fits.tasks.law)."""

    arch: str
    scores: tuple[Score, ...]
    n_runs: int
    t: float | None = None
    needed: float | None = None
    withheld: str = ""
    form: str = ""
    parameters: dict[str, Estimate] = field(default_factory=dict)
    verdict: Verdict | None = None
    curve: Curve | None = None
    predictions: tuple[ScoreAt, ...] = ()

    @property
    def last_scores(self) -> list[Score]:
        """Of the last checkpoint of each run."""
        last: dict[str, Score] = {}
        for score in self.scores:
            if score.run_id not in last or score.n_tokens > last[score.run_id].n_tokens:
                last[score.run_id] = score
        return list(last.values())


@dataclass(frozen=True)
class TaskFit:
    """One metric of one task. left_out: how many checkpoints have a score and enter no law, by reason."""

    task: str
    metric: str
    scale: Scale
    laws: tuple[ScoreLaw, ...]
    left_out: dict[str, int]

    @property
    def title(self) -> str:
        return f"{self.task} ({self.metric})"

    @property
    def shown_laws(self) -> list[ScoreLaw]:
        """The laws that are not withheld."""
        return [law for law in self.laws if not law.withheld]


@dataclass(frozen=True)
class LengthScores:
    """Perplexity of a run's last evaluated checkpoint by context length [tokens], None where it is not finite."""

    run_id: str
    arch: str
    size: str
    n_params: int
    context_length: int
    perplexity: dict[str, float | None]


@dataclass(frozen=True)
class TaskFits(Stored):
    """All tasks; unknown: those of no known scale, which no law is fitted to."""

    tasks: tuple[TaskFit, ...]
    lengths: tuple[LengthScores, ...]
    unknown: tuple[str, ...]
