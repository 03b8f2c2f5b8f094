"""What a fit depends on besides the runs. Imports no numpy: plans read it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field as PydanticField

from scaling.study.fit_section import Fit

if TYPE_CHECKING:
    from scaling.study.schema import Grid

FITS = "fits.json"  # of a study's results, and of its published folder
MIN_CROSSINGS = 3  # of neighbouring sizes' curves: two fix a line, a third can tell whether it is one


class FitSettings(Fit, strict=False):
    """The study file's section `fit`, and what its intervals are made with."""

    range: dict[str, list[float]] = {}  # noqa: RUF012 (of any architecture, also where its plugin is not loaded)
    nuisance: dict[str, Literal["best"]] = {}  # noqa: RUF012 (of the grid: fields of an axis, joined by +)
    # Rows of a run that curves keep (0: all), at steps of 7% over its last decade of tokens
    # (docs/research/parametric-fits.md)
    curve_rows: int = PydanticField(default=32, exclude=True)
    n_replicates: int = 1000
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As fits.json holds them, for FitSettings(**settings)."""
        return self.model_dump(mode="json")

    @property
    def is_of_ends(self) -> bool:
        """Whether losses at the end of a decay are fitted, one a run."""
        return self.points == "decayed"

    @property
    def phase(self) -> str | None:
        """Of the rows of runs that are fitted as they are; None: of all."""
        return None if self.points == "auto" else self.points

    @property
    def range_convention(self) -> str:
        return self.range_flops or self.flops

    def loss_name(self, unit: str) -> str:
        """The loss that is fitted, in words; unit: its (data.units)."""
        of = {"auto": "", "decayed": " after a decay of the learning rate", "undecayed": " before any decay"}[
            self.points
        ]
        if self.loss == "validation":
            return f"held-out loss{f' of {self.source}' if self.source else ''}{of} ({unit})"
        wider = f" or {self.smoothing_fraction:.0%} of those seen" if self.smoothing_fraction else ""
        less = " less each batch's bigram deviation" if self.control == "bigram" else ""
        return f"training loss{of}{less}, centred mean over {self.smoothing_tokens:,} tokens{wider} ({unit})"

    def settled_after(self, warmup_tokens: int) -> float:
        """Tokens from which on no loss of the warm-up enters a point of the curve: its window lies behind it."""
        if self.loss == "validation":
            return float(warmup_tokens)
        return max(warmup_tokens + self.smoothing_tokens / 2, warmup_tokens / (1 - self.smoothing_fraction / 2))


def settings_of(fit: Fit, grid: Grid) -> FitSettings:
    """Of a study: its section `fit`, and how its grid says that nuisance axes are resolved."""
    from scaling.study.axes import short

    return FitSettings(**fit.model_dump(), nuisance={short(axis): by for axis, by in grid.nuisance.items()})
