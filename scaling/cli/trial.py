"""`scaling try`: whether a change of an architecture is worth scaling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from arch.amounts import counted

from .options import AsJson, DryRun, Only, Out, Repair, StudyOptions, print_json, tell


@dataclass(frozen=True, kw_only=True)
class VariantOptions:
    """A variant without a file of its own."""

    arch: Annotated[str | None, typer.Option(help="Without a file: the study's architecture that is changed.")] = None
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Without a file: a change, as model.norm=layer; repeatable.")
    ] = None
    name: Annotated[str | None, typer.Option(help="Without a file: what the variant is called.")] = None


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """The study of a trial, what of it is trained, and what is projected."""

    against: Annotated[str, typer.Option(metavar="STUDY", help="The study that it is compared with.")]
    match: Annotated[str, typer.Option(help="Equal tokens (data), or equal exact training FLOP (compute).")] = "data"
    at: Annotated[
        str | None, typer.Option(help="C in FLOP of the projections, as 1e20,1e21; default: the study's largest, x10.")
    ] = None
    go_on: Annotated[bool, typer.Option("--go-on", help="Train the larger sizes whatever the smallest say.")] = False
    train_baseline: Annotated[
        bool, typer.Option("--train-baseline", help="Train the study's own runs first where they are missing.")
    ] = False
    only: Only = None
    out: Out = None
    repair: Repair = False
    dry_run: DryRun = False
    as_json: AsJson = False


def try_(
    changes: VariantOptions,
    options: TrialOptions,
    variant: Annotated[
        Path | None, typer.Argument(metavar="VARIANT", help="A variant's YAML file: name, arch, model, training.")
    ] = None,
) -> None:
    """Is a change worth scaling? Two small sizes beside the study's own runs, then two more, and a verdict."""
    from data.units import loss_unit
    from flops.quantity import flop

    from ..stages import trial as stage
    from ..stages.trial_runs import opened
    from ..stages.trial_show import show_plan, show_trial
    from ..study.variant import read_variant

    study = StudyOptions(study=options.against, out=options.out, as_json=options.as_json)
    request = study.request(options.repair)
    changed = read_variant(variant, changes.arch, changes.sets, changes.name)
    budgets = tuple(flop(amount, "--at") for amount in options.at.split(",")) if options.at else ()
    of_trial = stage.Options(budgets, options.go_on, options.train_baseline)
    with opened(replace(request, only=options.only), changed, options.match, options.dry_run) as trial:
        if options.dry_run:
            trial_plan = stage.planned(trial, of_trial)
            return print_json(trial_plan) if options.as_json else print(show_plan(trial_plan))
        try:
            result = stage.try_variant(trial, of_trial)
        except stage.RunsFailed as error:
            for run_id, reason in error.failed.items():
                tell(f"failed: {run_id}: {reason}")
            tell(
                f"error: {counted(len(error.failed), 'run or evaluation is', 'runs or evaluations are')} not done: "
                f"give the same command again"
            )
            raise typer.Exit(1) from None
    if options.as_json:
        print_json(result)
    else:
        print(f"\n{show_trial(result, loss_unit([request.study.corpus.tokenizer]))}\n\nstored: {stage.path_of(trial)}")
