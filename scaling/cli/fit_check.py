"""`scaling fit check`: published laws under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arch.amounts import flop
from arch.tables import rows_table, wrapped

from .fit_laws import Output, Save, write_results
from .options import AsJson, print_json

if TYPE_CHECKING:
    from analysis.fits.published import LawCheck, LawsCheck


def law_check_text(check: LawsCheck) -> str:
    """A check of published laws: exponents, 6 N_opt D_opt / C, and how the unit of C was determined."""
    unit, notes = f"unit of C: {check.unit} ({flop(check.flop_per_unit)} FLOP)", []
    if check.units:
        rows = [
            {"unit of C": unit.unit, "FLOP": flop(unit.flop_per_unit), "6 N D / C off by": f"x {unit.factor:.4g}"}
            for unit in check.units[:4]
        ]
        unit += "\n" + rows_table(rows)
        if not check.unit_fits:
            notes.append(
                "no usual unit makes 6 N_opt D_opt near C at the largest budget: the laws, or that budget, are off"
            )
        elif not check.unit_clear:
            notes.append("another usual unit fits nearly as well: the unit is not certain")
    else:
        unit += ", as given"
    table = []
    for law in check.laws:
        row = {"law": law.name, "a": f"{law.a:g}", "b": f"{law.b:g}", "a + b": f"{law.a_plus_b:.4f}"}
        row["per decade"] = f"x {law.factor_per_decade:.3f}"
        row |= {f"at {flop(c)}": f"{ratio:.3f}" for c, ratio in zip(check.at, law.six_nd_over_c, strict=True)}
        row["is 1 at (FLOP)"] = "none" if law.one_at is None else flop(law.one_at)
        table.append(row)
        notes.append(_law_note(law))
    ratios = "6 N_opt D_opt / C, at C in FLOP\n" + rows_table(table)
    return "\n\n".join([unit, ratios, "\n".join(wrapped(notes))])


def _law_note(law: LawCheck) -> str:
    if law.holds:
        line = f"{law.name}: a + b = {law.a_plus_b:.4f}, so C = 6 N D can hold at every C"
    else:
        line = (
            f"{law.name}: a + b = {law.a_plus_b:.4f}, so C = 6 N D cannot hold at every C: N_opt D_opt changes "
            f"by x {law.factor_per_decade:.3f} a decade against C"
        )
    if law.identity_error is not None:
        line += f"; with its own cost of a token (~ N^{law.cost_growth:.3f}) a p + b - 1 = {law.identity_error:+.4f}"
    return line


def check(
    law: Annotated[str, typer.Argument(metavar="LAW", help='"N=1.8e8 C^0.71,D=2.6e10 C^0.51", or a CSV of laws.')],
    unit: Annotated[str, typer.Option(help="Unit of C: auto, flop or pf-days.")] = "auto",
    at: Annotated[str | None, typer.Option(help="Print 6 N_opt D_opt / C at these C in FLOP, as 1e22,1e23.")] = None,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Check published laws. Do their exponents add up, and does 6 N_opt D_opt stay near C?"""
    from analysis.fits.published import check_stated, number_list, read_stated

    Output(save=save).check([law])
    result = check_stated(read_stated(law), unit, number_list(at, "--at") if at else ())
    write_results(save, result.to_dict())
    print_json(result.to_dict()) if as_json else print(law_check_text(result))
