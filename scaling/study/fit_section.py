"""The section `fit` of a study file: which losses its laws are fitted to, and how.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .types import Amount, Count, Flag, Number, Ranges, Section


class Fit(Section):
    loss: Literal["train_smoothed", "validation"] = "train_smoothed"
    """The loss that is fitted: the smoothed training loss, or the held-out loss of the checkpoints."""
    source: Annotated[str | None, Field(exclude_if=lambda name: name is None)] = None
    """Of a mixture, the source whose held-out loss is fitted, by its name; null: the mean of all in their proportions.
    Sources may follow laws where their mean follows none: docs/fits.md."""
    points: Literal["auto", "decayed", "undecayed"] = "auto"
    """Losses at the end of a decay of the learning rate, or before any; `auto` takes held-out losses of decayed runs
    where every architecture has some. Training losses are undecayed: the last batch of a decay is one draw."""
    smoothing_tokens: Amount = 50_000
    """Width of the centred mean that smooths the training loss."""
    smoothing_fraction: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Width of that mean as a share of the tokens seen, where this is wider than `smoothing_tokens`."""
    control: Literal["none", "bigram"] = "none"
    """`bigram` subtracts from each batch's loss its difficulty for a bigram model, less the average."""
    flops: Literal["paper", "exact", "6nd"] = "exact"
    """The convention that compute C is counted in: docs/reading-results.md."""
    optimum: Literal["crossings", "envelope", "hull"] = "crossings"
    """What N_opt and D_opt are fitted to: crossings of neighbouring sizes, points of the envelope, or the runs on the
    convex hull of log loss over log compute."""
    near_sizes: Annotated[Number, Field(ge=1)] = 1.1
    """Sizes less than this factor apart are one size of the envelope: the best of them at each compute. On the hull
    each is by itself."""
    form: str = "plain"
    """The form of the surface that the parametric approach and forecasts fit, as `over-training`: docs/fits.md. An
    unknown one is refused with the names that there are. The comparison of architectures fits `plain`."""
    censor: Flag = True
    """Leave out points of the envelope that say nothing about the optimal size, such as those of the smallest or
    largest size; the papers keep them."""
    range: Ranges = {}
    """The compute [smallest, largest] of the curves that the envelope approach reads, by architecture or as one pair
    for all. The isoFLOP and parametric approaches take all points."""
    range_flops: Literal["paper", "exact", "6nd"] | None = None
    """The convention that `range` is stated in; null: that of `flops`."""
    stopped: Literal["keep", "leave_out"] = "keep"
    """Small sizes that have stopped learning: `leave_out` leaves the smallest size out of the parametric and isoFLOP
    approaches where its losses lie above the surface of the larger sizes by more than chance (1%, one-sided), then
    the next, two at the most: docs/fits.md."""
    first_share: Annotated[Number, Field(ge=0.1, lt=1)] = 0.1
    """The share of each run's tokens whose losses the parametric and isoFLOP approaches leave out, because no
    surface describes the first fall of the loss."""
    grid_points: Annotated[Count, Field(ge=3, le=10_000)] = 40
    """Number of compute values at which the envelope of the curves is read."""

    level: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.95
    """The nominal level of the intervals of laws and comparisons."""

    @model_validator(mode="after")
    def _is_held_out(self) -> Fit:
        if self.points == "decayed" and self.loss != "validation":
            raise ValueError("points decayed needs loss validation: the last batch of a decay is one draw, not a mean")
        if self.source is not None and self.loss != "validation":
            raise ValueError("source needs loss validation: training losses are of the whole mixture")
        return self
