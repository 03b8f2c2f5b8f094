"""How far the target of a design may lie from what the budget trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arch.amounts import flop
from arch.errors import InputError

if TYPE_CHECKING:
    from analysis.design.proposal import Proposal

FAR, TOO_FAR = 100.0, 1e6  # times the largest run's compute: a target beyond is told, refused


def outside(target: float, proposal: Proposal, cost: Any) -> str:
    """Where the target lies far outside of what is trained, in words. Raises InputError where no fit reaches it."""
    layout = proposal.layout()
    flops = cost.per_token(layout.n_params) * layout.n_tokens
    least, most = float(flops.min()), float(flops.max())
    within_reach(target, most, "the largest run's compute")
    if target < least:
        return f"the target of {flop(target)} FLOP lies below the smallest run's compute ({flop(least)} FLOP)"
    if target > FAR * most:
        return f"the target of {flop(target)} FLOP is {target / most:.3g} times the largest run's compute: extrapolated"
    return ""


def within_reach(target: float, most: float, what: str) -> None:
    """Raise InputError where the target is so many FLOP that none of `most`, which are `what`, tell of it."""
    if target > TOO_FAR * most:
        raise InputError(
            f"scaling design: a target of {flop(target)} FLOP is {flop(target / most, 1)} times {what} ({flop(most)} "
            f"FLOP): nothing that this budget trains can tell of it: give at most {flop(TOO_FAR * most, 1)}"
        )
