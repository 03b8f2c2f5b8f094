"""`scaling sweep`: learning rates found by short runs, and their law."""

from __future__ import annotations

from arch.amounts import counted

from .options import AsJson, DryRun, Out, Repair, Sets, Study, close, print_json, request_of


def sweep(
    study: Study,
    sets: Sets = None,
    out: Out = None,
    repair: Repair = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find learning rates: the short runs of the study's section `sweep`, and a law that its runs follow."""
    from ..stages.show import show_sweep
    from ..stages.sweep import plan_sweep, sweep_stage
    from ..study.plan_view import show_plan

    request = request_of(study, None, sets, out, as_json, repair=repair)
    if dry_run:
        table = plan_sweep(request)
        if as_json:
            return print_json(table)
        print(show_plan(table))
        print(f"{counted(table['cells'], 'cell')}, {table['share']:.1%} of the FLOP of the study's runs")
        print(f"would be refused: {table['refused']}" if table["refused"] else "(dry run: nothing was written)")
        return
    result = sweep_stage(request)
    fit = result.pop("fit")
    if as_json:
        print_json(result | {"without_law": fit.without_law})
    else:
        print(f"\n{show_sweep(fit)}\n\nlaw: {result['law']}\nreport: {result['report']}")
    close(request, {})
