"""`scaling sweep`: learning rates found by short runs, and their law."""

from __future__ import annotations

from arch.amounts import counted

from .options import ChangedStudyOptions, DryRun, Repair, close, print_json


def sweep(study: ChangedStudyOptions, repair: Repair = False, dry_run: DryRun = False) -> None:
    """Find learning rates by short runs. The study's section `sweep` describes them; its runs follow their law."""
    from ..stages.show import show_sweep
    from ..stages.sweep import plan_sweep, sweep_stage
    from ..study.plan_view import show_plan

    request = study.request(repair)
    if dry_run:
        table = plan_sweep(request)
        if study.as_json:
            return print_json(table)
        print(show_plan(table))
        print(f"{counted(table['cells'], 'cell')}, {table['share']:.1%} of the FLOP of the study's runs")
        print(f"would be refused: {table['refused']}" if table["refused"] else "(dry run: nothing was written)")
        return
    result = sweep_stage(request)
    fit = result.pop("fit")
    if study.as_json:
        print_json(result | {"without_law": fit.without_law})
    else:
        print(f"\n{show_sweep(fit)}\n\nlaw: {result['law']}\nreport: {result['report']}")
    close(request, {})
    study.say_next("run")
