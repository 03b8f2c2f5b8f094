"""What a fit depends on besides the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.files import read_json


@dataclass(frozen=True)
class FitSettings:
    """What a fit depends on besides the runs; the first ten are the study file's `fit` section."""

    loss: str = "train_smoothed"  # or "validation"
    smoothing_tokens: int = 50_000
    smoothing_fraction: float = 0.0
    control: str = "none"  # or "bigram": the training loss less each batch's difficulty
    flops: str = "exact"  # the convention of C
    optimum: str = "crossings"  # or "envelope": what N_opt and D_opt are made of; the other stands beside
    censor: bool = True  # leave out the envelope's points that say nothing about N_opt; the papers do not
    range: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # FLOP by architecture; absent: all after warm-up
    range_flops: str | None = None  # the convention of `range`; None: `flops`
    grid_points: int = 40
    n_replicates: int = 1000
    level: float = 0.95
    seed: int = 0

    @property
    def range_convention(self) -> str:
        return self.range_flops or self.flops

    @property
    def loss_name(self) -> str:
        if self.loss == "validation":
            return "held-out loss (nats/token)"
        wider = f" or {self.smoothing_fraction:.0%} of those seen" if self.smoothing_fraction else ""
        less = " less each batch's bigram deviation" if self.control == "bigram" else ""
        return f"training loss{less}, centred mean over {self.smoothing_tokens:,} tokens{wider} (nats/token)"

    def settled_after(self, warmup_tokens: int) -> float:
        """Tokens from which on no loss of the warm-up enters a point of the curve: its window lies behind it."""
        if self.loss == "validation":
            return float(warmup_tokens)
        return max(warmup_tokens + self.smoothing_tokens / 2, warmup_tokens / (1 - self.smoothing_fraction / 2))


def stored_settings(study_dir: Path) -> FitSettings:
    """The settings of the study's stored fit, the defaults where it has none."""
    path = study_dir / "results" / "fits.json"
    return FitSettings(**read_json(path)["settings"]) if path.exists() else FitSettings()
