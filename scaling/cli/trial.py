"""`scaling try`: whether a change of an architecture is worth scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from arch.amounts import count, counted, flop
from arch.tables import rows_table, wrapped

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
    """Say whether a change is worth scaling. Trains two small sizes beside the study's own, then two more."""
    from data.units import loss_unit
    from flops.quantity import flop as read_flop

    from ..stages import trial as stage
    from ..stages.trial_runs import opened
    from ..study.variant import read_variant

    study = StudyOptions(study=options.against, out=options.out, as_json=options.as_json)
    request = study.request(options.repair)
    changed = read_variant(variant, changes.arch, changes.sets, changes.name)
    budgets = tuple(read_flop(amount, "--at") for amount in options.at.split(",")) if options.at else ()
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


def show_trial(result: Mapping[str, Any], unit: str) -> str:
    """unit: of losses (data.units)."""
    variant, level = result["variant"], result["level"]
    what = ", ".join(f"{field}={value}" for field, value in variant["changes"].items()) or f"arch {variant['arch']}"
    title = f"try {variant['name']}: {variant['of']} with {what}, matched in {result['match']}; study {result['study']}"
    word = f"{result['verdict']['word']}: {result['verdict']['reason']}"
    parts = ["\n".join(wrapped([title, word]))]
    if rows := _differences(result):
        title_line = f"held-out loss at the last checkpoint, {unit}; {level:.0%} intervals of the difference\n"
        noise = result["seed_noise"]
        basis = f"noise between seeds: {noise['basis']}" if noise else "noise between seeds: not known, not counted"
        parts.append(title_line + rows_table(rows) + "\n" + "\n".join(wrapped([basis])))
    if rows := _projections(result):
        parts.append(f"projected; {level:.0%} intervals\n{rows_table(rows)}")
    if result["compute_reason"]:
        parts.append("\n".join(wrapped([f"no comparison of compute: {result['compute_reason']}"])))
    parts.append("\n".join(wrapped([*_costs(result), *(f"warning: {line}" for line in result["warnings"])])))
    return "\n\n".join(parts)


def _differences(result: Mapping[str, Any]) -> list[dict[str, object]]:
    rows = []
    for difference in result["differences"]:
        pair = next(row for row in result["pairs"] if row["size"] == difference["size"])
        ends = f"[{difference['low']:+.4f}, {difference['high']:+.4f}]" if difference["low"] is not None else "-"
        base, other = pair["baseline"], pair["variant"]
        rows.append(
            {
                "size": difference["size"],
                "seeds": len(difference["seeds"]),
                "N": f"{count(base['n_params_non_embedding'])} / {count(other['n_params_non_embedding'])}",
                "FLOP/token": f"{flop(base['flops_per_token_exact'])} / {flop(other['flops_per_token_exact'])}",
                "baseline": f"{difference['baseline']:.4f}",
                "variant": f"{difference['variant']:.4f}",
                "difference": f"{difference['value']:+.4f}",
                "interval": ends,
                "": difference["verdict"],
            }
        )
    return rows


def _projections(result: Mapping[str, Any]) -> list[dict[str, object]]:
    """The variant's compute and losses as shares of the baseline's, a row a budget."""
    rows = []
    for i, c in enumerate(result["at"]):
        row: dict[str, object] = {"C exact": flop(c)}
        for key, head, form in (("compute", "compute for the same loss", ".2f"), ("losses", "loss by a line", ".4f")):
            if result[key]:
                ratio = result[key][i]
                high = "no bound" if ratio["high"] is None else format(ratio["high"], form)
                row[f"{head}, times the baseline's"] = f"{ratio['ratio']:{form}} [{ratio['low']:{form}}, {high}]"
        if len(row) > 1:
            rows.append(row)
    return rows


def _costs(result: Mapping[str, Any]) -> list[str]:
    cost, left = result["cost"], result["not_trained"]
    minutes = [f"{cost[key] / 60:.1f} min" for key in ("train_seconds", "eval_seconds")]
    lines = [
        f"cost: {flop(cost['flops_exact'])} FLOP exact, {minutes[0]} of training and {minutes[1]} of evaluation, "
        f"summed over processes"
    ]
    if left["sizes"]:
        lines.append(f"not trained: {' and '.join(left['sizes'])}, {flop(left['flops_exact'])} FLOP exact (--go-on)")
    return lines


def show_plan(trial_plan: Mapping[str, Any]) -> str:
    """What --dry-run prints."""
    lines = []
    for number, stage in enumerate(trial_plan["stages"], 1):
        when = "" if number == 1 else " (only if the variant is better at both sizes before)"
        lines.append(
            f"stage {number}{when}: {' and '.join(stage['sizes'])}, {flop(stage['flops_exact'])} FLOP exact; "
            f"would train {counted(len(stage['todo']), 'run')}: {', '.join(stage['todo']) or 'none'}"
        )
        lines += stage["expected"]
        if stage["missing"]:
            lines.append(f"the study's own runs that are missing: {', '.join(stage['missing'])}")
    lines.append(f"projected at {' and '.join(flop(c) for c in trial_plan['at'])} FLOP exact")
    lines += [f"warning: {line}" for line in trial_plan["warnings"]]
    return "\n".join(wrapped([*lines, "(dry run: nothing was written)"]))
