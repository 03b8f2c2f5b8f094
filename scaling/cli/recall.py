"""`scaling recall SWEEP`: multi-query associative recall, who solves it at which width."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from arch.amounts import counted
from arch.arguments import plugin_words
from arch.commands import Plugins
from arch.config import ARCHS
from arch.errors import InputError
from arch.registry import load_plugins
from flops.tables import duration

from .options import AsJson, DryRun, notify, print_json


def recall(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep file, or small or figure3, the package's.")],
    out: Annotated[Path, typer.Option(help="Directory; the sweep's name is made below it.")] = Path("out"),
    workers: Annotated[int, typer.Option(min=1, help="Trainings at once, one process each.")] = 1,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    worker: Annotated[
        bool, typer.Option("--worker", help="Train beside other workers, here or on another node.")
    ] = False,
) -> None:
    """Train on associative recall: accuracy against width.

    Every architecture is trained, and accuracy drawn as in HGRN2's figure 3. A re-run does what is missing. The lines
    above the table say what was tried and by which rule a recipe was chosen.
    """
    from analysis.recall.recipe import read_sweep
    from analysis.recall.sweep import outcomes

    load_plugins(plugin or [])
    chosen = read_sweep(sweep)
    directory = out / chosen.name
    if worker:
        import torch

        from analysis.recall.sweep import work
        from arch.no_compiler import keep_from_the_compiler

        keep_from_the_compiler()

        torch.set_num_threads(1)  # the models are too small for more
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return work(chosen, directory, device, lambda line: print(line, flush=True))
    outcome_of = outcomes(chosen, directory)
    todo = [unit.name for unit, outcome in outcome_of.items() if outcome is None]
    if dry_run:
        if as_json:
            tried = {"rates": chosen.rates, "expand_ratios": chosen.expand_ratios, "summary": chosen.summary()}
            cost = _cost(chosen, directory)
            return print_json({"units": len(outcome_of), "todo": todo, **tried, "steps": chosen.steps, "at_most": cost})
        if not todo:
            return print(f"nothing to do: all {len(outcome_of)} units are trained")
        print(f"would train {len(todo)} of {len(outcome_of)} units: {', '.join(todo)}")
        return print(f"{chosen.summary()}\n{_cost_line(chosen, directory)}")
    if todo and set(chosen.archs) - set(ARCHS):
        from ..check import check_causal

        units = [(unit, trial) for unit in outcome_of for trial in chosen.trials(unit.arch, unit.width)]
        check_causal(chosen.config(unit.arch, unit.problem, unit.width, trial.ratio) for unit, trial in units)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror}): give another --out") from None
    stream = sys.stderr if as_json else sys.stdout
    if todo:
        print(_cost_line(chosen, directory), file=stream, flush=True)
        _train([sweep, *plugin_words(plugin or [])], out, min(workers, len(todo)), chosen, directory, stream)
        outcome_of = outcomes(chosen, directory)
    from analysis.recall.figure import table, write
    from arch.tables import text_table

    result = write(chosen, outcome_of, directory)
    if as_json:
        print_json(result)
    else:
        rows = table(result["rows"])
        print(f"{result['summary']}\n")
        print(text_table(tuple(rows[0]), [tuple(row.values()) for row in rows]) if rows else "")
        print(f"\npage: {result['page']}")
        if result["no_pictures"]:
            print(f"no PNG ({result['no_pictures']})")
    if result["missing"]:
        notify(f"error: {len(result['missing'])} of {len(outcome_of)} units are not done; see {directory}/recall.log")
        raise typer.Exit(1)


def _cost(chosen: Any, directory: Path) -> dict[str, Any]:
    """Of the trainings that are missing, at most: their number, tokens and training FLOP (convention exact), and
    seconds of one H200, its steps started by the host, and of one CPU core; None where a plugin gives no costs."""
    from analysis.recall.sweep import missing
    from flops.conventions import train_flops_per_token
    from flops.hardware import DEVICES
    from flops.pace import pace

    cost: dict[str, Any] = {"trainings": 0, "tokens": 0, "flops": 0.0, "h200_seconds": 0.0, "core_seconds": 0.0}
    for config, steps in missing(chosen, directory):
        batch = chosen.rows * config.context_length
        cost["trainings"] += 1
        cost["tokens"] += steps * batch
        if cost["flops"] is None:
            continue
        try:
            cost["flops"] += steps * batch * train_flops_per_token(config, "exact")
            for name, device in (("h200_seconds", DEVICES["h200"]), ("core_seconds", DEVICES["cpu"])):
                cost[name] += steps * pace(config, batch, device, replayed=False).step_seconds
        except InputError:
            cost |= dict.fromkeys(("flops", "h200_seconds", "core_seconds"))
    return cost


def _cost_line(chosen: Any, directory: Path) -> str:
    cost = _cost(chosen, directory)
    line = f"at most {counted(cost['trainings'], 'training')} on {cost['tokens']:.3g} tokens"
    if cost["flops"] is None:
        return f"{line}; their FLOP are not known, because a plugin gives no costs"
    times = (duration(cost["h200_seconds"]), duration(cost["core_seconds"]))
    return f"{line}, {cost['flops']:.3g} FLOP (exact), about {times[0]} of one H200 or {times[1]} of one core"


def _train(sweep: list[str], out: Path, workers: int, chosen: Any, directory: Path, stream: Any) -> None:
    """Start the workers and show what is done, and about how long the rest takes."""
    from analysis.recall.sweep import outcomes
    from jobs.local import Task, run_tasks

    from ..rundir.worklist import thread_environment
    from .passing import Passing

    command = [sys.executable, "-m", "scaling", "recall", *sweep, "--out", str(out), "--worker"]
    tasks = [
        Task(f"recall {number}", command, directory / "recall.log", thread_environment(1)) for number in range(workers)
    ]
    begun = time.monotonic()
    before = sum(outcome is not None for outcome in outcomes(chosen, directory).values())

    def line() -> str:
        states = outcomes(chosen, directory)
        done, rest = sum(outcome is not None for outcome in states.values()), ""
        if done > before:
            took = time.monotonic() - begun
            rest = f", {duration(round(took * (len(states) - done) / (done - before)))} left"
        return f"recall: {done}/{len(states)} units{rest}"

    with closing(run_tasks(tasks, workers)) as events, Passing(stream) as passing:
        for event in events:
            if event.kind == "tick":
                passing.show(line)
