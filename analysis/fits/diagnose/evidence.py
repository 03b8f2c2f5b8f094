"""What a verdict on a law is drawn from, and what of it several of its reasons read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.fits.diagnose.backtest import Row
from analysis.fits.diagnose.side_by_side import FACTOR
from analysis.fits.fit import Fit


@dataclass(frozen=True)
class Evidence:
    """What a verdict is drawn from beside the result; what was not computed is left empty. Without `by_size` and
    `backtest` no law is believed beyond its range.

    by_size: influence.leave_out(by="size"); pairs: of side_by_side.compare_approaches; identities, outside: of
    side_by_side; sensitivity: influence.sensitivity; backtest: rows of this approach; not_done: by name, why what is
    empty is.
    """

    by_size: Sequence[Mapping[str, Any]] = ()
    pairs: Sequence[Mapping[str, Any]] = ()
    identities: Mapping[str, Any] | None = None
    outside: Sequence[Mapping[str, Any]] = ()
    sensitivity: Sequence[Mapping[str, Any]] = ()
    backtest: Sequence[Row] = ()
    not_done: Mapping[str, str] = field(default_factory=dict)


def is_assumed(result: Fit) -> bool:
    return result.a.reason.startswith("assumed")


def elsewhere(result: Fit, evidence: Evidence) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Approaches that disagree by a factor of N_opt, and whether each is known as well as this one."""
    found = []
    for pair in evidence.pairs:
        if result.approach in pair["approaches"] and pair["factor"] is not None and pair["factor"] > FACTOR:
            mine = pair["approaches"].index(result.approach)
            own, its = pair["errors"][mine], pair["errors"][1 - mine]
            found.append((pair["approaches"][1 - mine], pair, its is not None and (own is None or its <= own)))
    return found


def compared_rows(rows: Sequence[Row]) -> list[Row]:
    """Predictions of a backtest that were compared with what lies above the cut."""
    return [row for row in rows if row.error is not None]
