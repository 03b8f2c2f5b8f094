"""The `scaling eval` commands: a study's evaluations and their table, the list of tasks, and their data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from arch.amounts import counted_of
from arch.commands import with_options
from arch.errors import InputError
from arch.outside import allow, modules_of
from arch.tables import text_table, wrapped

from .options import AsJson, ChangedStudyOptions, DryRun, Force, RunsOptions, close, print_json, tell


def named(words: str | None, option: str) -> tuple[str, ...]:
    """The words of an option, by commas. Raises InputError where it is given and names none."""
    names = tuple(name.strip() for name in (words or "").split(",") if name.strip())
    if words is not None and not names:
        raise InputError(f"{option}: names no task; `scaling eval list` shows all")
    allow(modules_of(names))
    return names


app = typer.Typer(help="Evaluate checkpoints by tasks, and list the tasks.")


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which tasks run on which checkpoints."""

    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks and presets, as niah-easy,csr (`scaling eval list`); default: validation, the study's."
        ),
    ] = None
    checkpoints: Annotated[str, typer.Option(help="all, last (of each run), or steps as 1000,2000.")] = "all"


@dataclass(frozen=True, kw_only=True)
class WorkerRuns(RunsOptions):
    """The runs of a worker, which prints no JSON."""

    as_json: bool = field(default=False, init=False)


@app.command()
@with_options
def study(
    study: RunsOptions,
    chosen: TaskOptions,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: jobs.parallel.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Evaluate the checkpoints that have no result yet. `scaling eval list` shows the tasks."""
    from ..stages.evaluation import eval_stage
    from ..stages.evaluation_matrix import require_checkpoints
    from ..stages.evaluation_plan import missing_evaluations, show_missing
    from ..stages.evaluation_tasks import EvalOptions

    request = study.request()
    options = EvalOptions(named(chosen.tasks, "--tasks"), chosen.checkpoints, workers)
    require_checkpoints(request)
    if dry_run:
        todo = missing_evaluations(request, options)
        print_json(todo) if study.as_json else request.say(show_missing(todo))
        raise typer.Exit(1 if todo["refused"] else 0)
    with request.writing():
        result = eval_stage(request, options)
    if study.as_json:
        print_json(result)
    else:
        from analysis.evals.results import Scores, score_tables

        for title, heads, rows in score_tables([Scores(**row) for row in result["results"]]):
            print(f"\n{title}\n{text_table(heads, rows)}")
    close(request, {"evaluations": result})
    study.say_next("fit study")


@app.command()
@with_options
def worker(
    study: WorkerRuns,
    chosen: TaskOptions,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="Evaluate this checkpoint alone: RUN or RUN/STEP; repeatable.")
    ] = None,
    attempt: Annotated[
        str | None, typer.Option(help="A name for this start: what failed in it is not tried again.")
    ] = None,
) -> None:
    """Evaluate in this process, beside other workers. A scheduler's jobs and `eval study` start workers."""
    from ..stages.evaluation import eval_worker
    from ..stages.evaluation_tasks import EvalOptions

    request = study.request()
    options = EvalOptions(named(chosen.tasks, "--tasks"), chosen.checkpoints, None, tuple(checkpoint or ()))
    raise typer.Exit(1 if eval_worker(request, options, attempt) else 0)


@app.command("list")
def list_tasks(
    rows: Annotated[
        str | None, typer.Option(metavar="TASKS", help="How the data of these tasks and presets must look, by commas.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks and the presets. Says what a task needs in the data folder, and which tasks a preset names."""
    from analysis.evals.registry import ENTRIES, PRESETS, layouts

    task_names = named(rows, "--rows")
    layout_of = layouts(task_names or ENTRIES)
    if as_json:
        tasks = [
            {"task": name, "about": ENTRIES[name].about, "needs": ENTRIES[name].needs, "layout": layout}
            for name, layout in layout_of.items()
        ]
        return print_json({"tasks": tasks, "presets": PRESETS})
    if task_names:
        return print("\n\n".join(f"{name}: {layout}" for name, layout in layout_of.items()))
    print(text_table(("task", "about", "needs"), [(n, entry.about, entry.needs or "") for n, entry in ENTRIES.items()]))
    notes = [f"preset {name}: {', '.join(members)}" for name, members in PRESETS.items()]
    print("\n".join(["", *wrapped([*notes, "how the data of a task must look: scaling eval list --rows TASK"])]))


@app.command()
@with_options
def table(
    study: RunsOptions,
    all_steps: Annotated[
        bool, typer.Option("--all-steps", help="Every checkpoint instead of each run's last.")
    ] = False,
) -> None:
    """Print downstream results by run.

    The columns of the paper's table 4 come first and in its order: accuracies, the needle's weighted accuracy and
    SCROLLS in percent, perplexities, averages. Notes name what is missing and what is left out, because weights, data
    or settings changed since or it failed.
    """
    from analysis.evals.lmeval.summary import show_summary, summary

    from ..stages.evaluation_matrix import require_checkpoints, shown_words
    from ..stages.evaluation_results import current_results

    request = study.request()
    require_checkpoints(request)
    current = current_results(request)
    rows = summary(current.results, all_steps)
    if study.as_json:
        return print_json({"rows": [row.to_dict() for row in rows]} | current.to_dict())
    for line in current.lines():
        tell(line)
    if not rows:
        raise InputError(
            f"{request.study.name}: no downstream results"
            + (" that are up to date" if current.left_out else " yet")
            + ": run "
            f"`scaling eval study {shown_words(request)} --tasks csr,ppl` (`scaling eval list` shows all)"
        )
    heads, cells, notes = show_summary(rows)
    print("\n".join([text_table(heads, cells), *wrapped(notes)]))
    study.say_next("report")


@app.command()
@with_options
def contamination(
    study: ChangedStudyOptions,
    tasks: Annotated[str | None, typer.Option(help="Tasks and presets, by commas; default: the study's.")] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="A set of your own: JSONL, text or folder; repeatable."),
    ] = None,
    force: Force = False,
) -> None:
    """Find evaluation sets in the training text.

    Searches by n-grams of 13 words, once for a corpus: a later call does only what is missing. The report shows the
    result.
    """
    from analysis.report.contamination import contamination_notes, contamination_rows

    from ..stages.contamination import contamination_stage, own_sets, sets_of

    request = study.request()
    file_sets, (task_sets, others) = (
        own_sets(file or []),
        ({}, []) if file and tasks is None else sets_of(request, named(tasks, "--tasks")),
    )
    if twice := set(file_sets) & set(task_sets):
        raise InputError(f"--file: {sorted(twice)[0]} is the name of a task; choose another")
    if not (chosen_sets := task_sets | file_sets):
        raise InputError(f"{request.study.name}: none of its tasks has texts of its own: give --tasks or --file")
    with request.writing(rates=False):
        record = contamination_stage(request, chosen_sets, force)
    for name in others:
        tell(f"warning: {name}: a task from another package, which does not say where its texts are")
    shown = record | {"sets": {name: record["sets"][name] for name in chosen_sets}}
    if study.as_json:
        return print_json(shown)
    rows = contamination_rows(shown)
    print(text_table(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    print("\n".join(wrapped(contamination_notes(shown, [], request.study.name))))
    study.say_next("report")


@app.command()
def fetch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The data folder: a study's evaluation.data.")],
    tasks: Annotated[str | None, typer.Option(help="Tasks, presets or data sets, by commas; default: all.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Download the tasks' data. Run it once, on a login node: no other command reads from the Hugging Face hub."""
    from analysis.evals.lmeval.fetch import data_sets, fetch, missing

    names = data_sets(named(tasks, "--tasks") or None)
    if dry_run:
        todo = missing(folder, names)
        return print_json(todo) if as_json else print(f"would fetch {len(todo)} of {len(names)}: {', '.join(todo)}")
    results = fetch(folder, names, tell if as_json else print)
    failed = [result for result in results if result.state == "failed"]
    if as_json:
        print_json([vars(result) for result in results])
    elif not failed:
        print(f"next: write `data: {folder}` below `evaluation:` of a study file; `scaling eval study STUDY` reads it")
    if failed:
        names = [result.name for result in failed]
        tell(
            f"error: {counted_of(len(failed), len(results), 'data set', 'was', 'were')} not fetched: {', '.join(names)}"
        )
        raise typer.Exit(1)
