"""`scaling fit --check-law`: published laws under test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch.amounts import flop
from arch.tables import rows_table, wrapped

from .fit_laws import write_found
from .options import print_json


def law_check_text(found: Mapping[str, Any]) -> str:
    """A check of published laws: exponents, 6 N_opt D_opt / C, and how the unit of C was found."""
    parts, notes = [], []
    if found["found"]:
        rows = [
            {
                "unit of C": one["unit"],
                "FLOP": flop(one["flop_per_unit"]),
                "6 N D / C off by": f"x {one['factor']:.4g}",
            }
            for one in found["units"][:4]
        ]
        parts.append(f"unit of C: {found['unit']} ({flop(found['flop_per_unit'])} FLOP)\n" + rows_table(rows))
        if not found["unit_fits"]:
            notes.append(
                "no usual unit makes 6 N_opt D_opt near C at the largest budget: the laws, or that budget, are off"
            )
        elif not found["unit_clear"]:
            notes.append("another usual unit fits nearly as well: the unit is not certain")
    else:
        parts.append(f"unit of C: {found['unit']} ({flop(found['flop_per_unit'])} FLOP), as given")
    table = []
    for one in found["laws"]:
        row = {"law": one["name"], "a": f"{one['a']:g}", "b": f"{one['b']:g}", "a + b": f"{one['a_plus_b']:.4f}"}
        row["per decade"] = f"x {one['factor_per_decade']:.3f}"
        row |= {f"at {flop(c)}": f"{ratio:.3f}" for c, ratio in zip(found["at"], one["six_nd_over_c"], strict=True)}
        row["is 1 at (FLOP)"] = "none" if one["one_at"] is None else flop(one["one_at"])
        table.append(row)
        notes += _law_notes(one)
    parts.append("6 N_opt D_opt / C, at C in FLOP\n" + rows_table(table))
    return "\n\n".join([*parts, "\n".join(wrapped(notes))])


def _law_notes(one: Mapping[str, Any]) -> list[str]:
    if one["holds"]:
        line = f"{one['name']}: a + b = {one['a_plus_b']:.4f}, so C = 6 N D can hold at every C"
    else:
        line = (
            f"{one['name']}: a + b = {one['a_plus_b']:.4f}, so C = 6 N D cannot hold at every C: N_opt D_opt changes "
            f"by x {one['factor_per_decade']:.3f} a decade against C"
        )
    if one["identity_error"] is not None:
        line += (
            f"; with its own cost of a token (~ N^{one['cost_growth']:.3f}) a p + b - 1 = {one['identity_error']:+.4f}"
        )
    return [line]


def check_law(law: str, unit: str | None, at: str | None, save: Path | None, as_json: bool) -> None:
    """Print, and save, what is to be said of stated laws. Raises InputError."""
    from analysis.fits.published import AUTO, check_stated, number_list, read_stated

    found = check_stated(read_stated(law), unit or AUTO, number_list(at, "--at") if at else ())
    write_found(save, found)
    print_json(found) if as_json else print(law_check_text(found))
