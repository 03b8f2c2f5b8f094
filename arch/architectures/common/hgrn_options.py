"""The options that HGRN1 and HGRN2 share: their forget gates' ablations. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...options import Options, option

if TYPE_CHECKING:
    from ...config import ModelConfig


@dataclass(frozen=True)
class HGRNOptions(Options):
    """The options that the HGRN models share."""

    lower_bound: str = option(
        "increasing", choices=("increasing", "off", "random", "decreasing", "only"), ablation=True
    )
    """Lower bound of the forget gates: increasing with depth, none, random, decreasing with depth, or a bound alone
    as the gate."""
    input_gate: str = option("tied", choices=("tied", "own", "none"), ablation=True)
    """`tied`: 1 - f; `own`: a projection and a sigmoid of its own; `none`: 1."""
    output_gate: bool = option(True, ablation=True)
    """Whether there is an output gate."""

    def check(self, config: ModelConfig) -> None:
        if self.lower_bound == "only" and self.input_gate == "none":
            raise InputError(
                "model.lower_bound=only with input_gate=none leaves no gate on the state that depends on the token: "
                "choose another input_gate"
            )
