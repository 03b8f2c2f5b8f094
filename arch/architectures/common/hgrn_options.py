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
        "increasing", choices=("increasing", "off", "random", "decreasing", "only", "one"), ablation=True
    )
    """Lower bound of the forget gates: increasing with depth, none, random, decreasing with depth, a bound alone as the
    gate, or 1, which leaves no forget gate."""
    input_gate: str = option("tied", choices=("tied", "own", "none"), ablation=True)
    """`tied`: 1 - f; `own`: a projection and a sigmoid of its own; `none`: 1."""
    output_gate: bool = option(True, ablation=True)
    """Whether there is an output gate."""

    @property
    def gates_forget(self) -> bool:
        """Whether the forget gates depend on the token."""
        return self.lower_bound not in ("only", "one")

    @property
    def learns_bounds(self) -> bool:
        """Whether the lower bounds are parameters."""
        return self.lower_bound not in ("off", "one")

    def check(self, config: ModelConfig) -> None:
        if not self.gates_forget and self.input_gate == "none":
            raise InputError(
                f"model.lower_bound={self.lower_bound} with input_gate=none leaves no gate on the state that depends "
                f"on the token: choose another input_gate"
            )
        if self.lower_bound == "one" and self.input_gate == "tied":
            raise InputError(
                "model.lower_bound=one ties the input gate to a forget gate of 1, and nothing would enter the state: "
                "set model.input_gate to own"
            )
