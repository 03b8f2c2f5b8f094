"""`scaling try`: whether a change of an architecture is worth scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arch.amounts import counted
from arch.errors import InputError

from .options import AsJson, DryRun, Only, Out, Repair, print_json, request_of, tell


def try_(
    variant: Annotated[
        Path | None, typer.Argument(metavar="VARIANT", help="A variant's YAML file: name, arch, model, training.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="STUDY", help="The study that it is compared with.")] = None,
    arch: Annotated[str | None, typer.Option(help="Without a file: the study's architecture that is changed.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Without a file: a change, as model.norm=layer; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Without a file: what the variant is called.")] = None,
    match: Annotated[str, typer.Option(help="Equal tokens (data), or equal exact training FLOP (compute).")] = "data",
    at: Annotated[
        str | None, typer.Option(help="C in FLOP of the projections, as 1e20,1e21; default: the study's largest, x10.")
    ] = None,
    go_on: Annotated[bool, typer.Option("--go-on", help="Train the larger sizes whatever the smallest say.")] = False,
    train_baseline: Annotated[
        bool, typer.Option("--train-baseline", help="Train the study's own runs first where they are missing.")
    ] = False,
    only: Only = None,
    out: Out = None,
    repair: Repair = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Is a change worth scaling? Two small sizes beside the study's own runs, then two more, and a verdict."""
    if against is None:
        raise InputError("try: say which study's runs it is compared with: --against STUDY")
    from dataclasses import replace

    from data.units import loss_unit
    from flops.quantity import flop

    from ..stages import trial as stage
    from ..stages.trial_runs import opened
    from ..stages.trial_show import show_plan, show_trial
    from ..study.variant import read_variant

    request = request_of(against, None, None, out, as_json, repair=repair)
    changed = read_variant(variant, arch, sets, name)
    budgets = tuple(flop(amount, "--at") for amount in at.split(",")) if at else ()
    options = stage.Options(budgets, go_on, train_baseline)
    with opened(replace(request, only=only), changed, match, dry_run) as trial:
        if dry_run:
            trial_plan = stage.planned(trial, options)
            return print_json(trial_plan) if as_json else print(show_plan(trial_plan))
        try:
            result = stage.try_variant(trial, options)
        except stage.RunsFailed as error:
            for run_id, reason in error.failed.items():
                tell(f"failed: {run_id}: {reason}")
            tell(
                f"error: {counted(len(error.failed), 'run or evaluation is', 'runs or evaluations are')} not done: "
                f"give the same command again"
            )
            raise typer.Exit(1) from None
    if as_json:
        print_json(result)
    else:
        print(f"\n{show_trial(result, loss_unit([request.study.corpus.tokenizer]))}\n\nstored: {stage.path_of(trial)}")
