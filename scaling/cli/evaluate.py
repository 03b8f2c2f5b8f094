"""The `scaling eval` commands: a study's evaluations and their table, the list of tasks, and their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from arch.amounts import count, counted, counted_of, first_few
from arch.commands import Application, with_options
from arch.errors import InputError
from arch.outside import allow, modules_of
from arch.tables import text_table, wrapped
from flops.tables import duration

from .evaluation import (
    EvalOptions,
    current_results,
    eval_hf,
    eval_matrix,
    eval_stage,
    eval_tasks,
    eval_worker,
    pace_here,
    readers_of,
    require_checkpoints,
    shown_words,
)
from .options import AsJson, ChangedStudyOptions, DryRun, Force, RunsOptions, close, notify, print_json
from .passing import Passing
from .request import Request


def named(words: str | None, option: str) -> tuple[str, ...]:
    """The words of an option, by commas. Raises InputError where it is given and names none."""
    names = tuple(name.strip() for name in (words or "").split(",") if name.strip())
    if words is not None and not names:
        raise InputError(f"{option}: names no task; `scaling eval list` shows all")
    allow(modules_of(names))
    return names


app = Application(help="Evaluate checkpoints by tasks, and list the tasks.")


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
    request = study.request()
    options = EvalOptions(named(chosen.tasks, "--tasks"), chosen.checkpoints, workers)
    require_checkpoints(request)
    if dry_run:
        todo = missing_evaluations(request, options)
        print_json(vars(todo)) if study.as_json else print(todo.text())
        raise typer.Exit(1 if todo.refused else 0)
    with request.writing():
        result = eval_stage(request, options)
    _end(study, request, options, result, "fit study")


def _end(study: ChangedStudyOptions, request: Request, options: EvalOptions, result: dict[str, Any], then: str) -> None:
    """Show the tasks that were evaluated, of each a table, or all as JSON; then: the command that comes next."""
    from analysis.evals.results import score_tables

    if study.as_json:
        print_json(result)
    else:
        tasks = {row["task"] for row in result["results"]}
        current = [row for row in current_results(request, options).results if row.task in tasks]
        for task, rows in score_tables(current).items():
            print(f"\n{task}, each run's newest checkpoint")
            print(text_table(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    close(request, {"evaluations": result})
    study.say_next(then)


@app.command()
@with_options
def hf(
    study: ChangedStudyOptions,
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER..", help="Models of transformers, in safetensors, on this machine.")
    ],
    tasks: Annotated[str | None, typer.Option(help="Tasks and presets, by commas; default: the study's.")] = None,
) -> None:
    """Evaluate other causal language models by the study's tasks, as rows beside its own.

    Any model that transformers opens without code of the folder's, with its own tokenizer: compare bits a byte.
    """
    request = study.request()
    options = EvalOptions(named(tasks, "--tasks"))
    with request.writing(rates=False):
        result = eval_hf(request, options, folders)
    _end(study, request, options, result, "eval table")


@dataclass(frozen=True)
class Missing:
    """What `eval study` would do. pairs: of the whole matrix; missing: {task: [checkpoints]}; refused: {why:
    [tasks, checkpoints or both]}; forward_tokens: by task, of all its checkpoints, about, without tasks that do not
    know; seconds: of these, of one worker on this machine; basis: what they follow from."""

    pairs: int
    missing: dict[str, list[str]]
    refused: dict[str, list[str]]
    n_refused: int
    forward_tokens: dict[str, int]
    seconds: float
    basis: str
    workers: int

    def text(self) -> str:
        """A table of tasks, then how long they take and what cannot be done."""
        rows = [
            (task, f"{len(names):,}", count(self.forward_tokens[task]) if task in self.forward_tokens else "-")
            for task, names in self.missing.items()
            if names
        ]
        n_missing = sum(map(len, self.missing.values()))
        workers = min(self.workers, max(1, n_missing))
        time = f", about {duration(self.seconds / workers)} with {counted(workers, 'worker')} ({self.basis})"
        notes = [f"{first_few(names)}: cannot be evaluated: {why}" for why, names in self.refused.items()]
        notes.append(
            f"{counted_of(n_missing, self.pairs, 'evaluation')} to do"
            + (time if self.seconds else "")
            + (f", {self.n_refused:,} cannot be done" if self.n_refused else "")
            + " (dry run: nothing was written)"
        )
        heads = ("task", "checkpoints", "forward tokens, about")
        return "\n".join([*([text_table(heads, rows)] if rows else []), *wrapped(notes)])


def missing_evaluations(request: Request, options: EvalOptions) -> Missing:
    """What is missing of the matrix, and its time on this machine."""
    from jobs.local import at_once

    request.check_runs()
    matrix, pace, readers = eval_matrix(request, options), pace_here(request), readers_of(request)
    missing: dict[str, list[str]] = {name: [] for name in matrix.tasks}
    tokens, seconds = dict[str, int](), 0.0
    tokens_of = cache(lambda task, reader: task.forward_tokens(reader))  # reads its data
    for pair in matrix.pairs:
        if pair.stored() is None:
            task, run = pair.task.name, pair.checkpoint.run
            missing[task].append(pair.checkpoint.name)
            if (n_tokens := tokens_of(pair.task, readers[run.run_id])) is not None:
                tokens[task] = tokens.get(task, 0) + n_tokens
                seconds += pace.seconds(task, run, n_tokens)
    return Missing(
        pairs=len(matrix.pairs) + matrix.n_refused,
        missing=missing,
        refused=matrix.reasons,
        n_refused=matrix.n_refused,
        forward_tokens=tokens,
        seconds=seconds,
        basis=pace.basis,
        workers=options.workers or at_once(request.study.jobs.parallel, 1),
    )


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
    from analysis.evals.registry import ENTRIES, NAMED, PRESETS, RULER, entry_of, expand, layout_of

    task_names = named(rows, "--rows")
    layouts = {name: layout_of(name) for name in expand(task_names or ENTRIES)}
    if as_json:
        tasks = [
            {"task": name, "about": entry.about, "needs": entry.needs, "layout": layout}
            for name, layout in layouts.items()
            if (entry := entry_of(name))
        ]
        return print_json({"tasks": tasks, "presets": PRESETS})
    if task_names:
        return print("\n\n".join(f"{name}: {layout}" for name, layout in layouts.items()))
    print(text_table(("task", "about", "needs"), [(n, entry.about, entry.needs or "") for n, entry in ENTRIES.items()]))
    notes = [f"preset {name}: {', '.join(members)}" for name, members in PRESETS.items()]
    notes += [f"lm_eval:ruler: {RULER.about}", f"lm_eval:NAME: {NAMED.about}"]
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
    SCROLLS in percent, perplexities, averages; the accuracy of classifiers is the last. Notes name what is missing and
    what is left out, because weights, data or settings changed since or it failed.
    """
    from analysis.evals.lmeval.summary import show_summary, summary

    request = study.request()
    require_checkpoints(request)
    current = current_results(request)
    rows = summary(current.results, all_steps)
    if study.as_json:
        return print_json({"rows": [row.to_dict() for row in rows]} | current.to_dict())
    for line in current.lines():
        notify(line)
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
    from analysis.contamination import FILE, ensure
    from analysis.report.runs import contamination_section
    from analysis.report.section import terminal
    from data.corpus import open_corpus

    request = study.request()
    sets = own_sets(file or [])
    if tasks is not None or not sets:
        of_tasks = _sets_of_tasks(request, named(tasks, "--tasks"))
        if twice := set(sets) & set(of_tasks):
            raise InputError(f"--file: {min(twice)} is the name of a task; choose another")
        sets = of_tasks | sets
    if not sets:
        raise InputError(f"{request.study.name}: none of its tasks has texts of its own: give --tasks or --file")
    with request.writing(rates=False), Passing(request.stream) as passing:

        def progress(done: int, total: int) -> None:
            passing.show(f"contamination: {done / total:.0%} of the training text read")

        corpus = open_corpus(request.corpus_directory)
        record = ensure(corpus, request.study.results / FILE, sets, force, progress)
    shown = record | {"sets": {name: record["sets"][name] for name in sets}}
    if study.as_json:
        return print_json(shown)
    print(terminal(contamination_section(shown, [], request.study.name)))
    study.say_next("report")


def _sets_of_tasks(request: Request, tasks: tuple[str, ...]) -> dict[str, Path]:
    """{tasks that read it: file or folder} of the study's tasks, or of these. Tasks that read the same file are one
    set. Raises InputError for data that are not there."""
    places: dict[Path, list[str]] = {}
    for task in eval_tasks(request, EvalOptions(tasks)):
        if (place := task.data_path()) is not None:
            places.setdefault(place, []).append(task.name)
    return {", ".join(names): place for place, names in places.items()}


def own_sets(words: Sequence[str]) -> dict[str, Path]:
    """NAME=PATH of --file. Raises InputError for another form, or a name given twice."""
    paths: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name.strip() and equals and path.strip()):
            raise InputError(f"--file: {word!r} is not NAME=PATH")
        if name in paths:
            raise InputError(f"--file: {name} is given twice")
        paths[name] = Path(path).expanduser()
    return paths


@app.command()
def fetch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The data folder: a study's evaluation.data.")],
    tasks: Annotated[str | None, typer.Option(help="Tasks, presets or data sets, by commas; default: all.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Download the tasks' data. Run it once, on a login node: no other command reads from the Hugging Face hub.

    Needle in a haystack reads text of your own: .txt files in FOLDER/needle.
    """
    from analysis.evals.lmeval.fetch import data_sets, fetch, missing

    names = data_sets(named(tasks, "--tasks") or None)
    if dry_run:
        todo = missing(folder, names)
        return print_json(todo) if as_json else print(f"would fetch {len(todo)} of {len(names)}: {', '.join(todo)}")
    results = fetch(folder, names, notify if as_json else print)
    failed = [result for result in results if result.state == "failed"]
    if as_json:
        print_json([vars(result) for result in results])
    elif not failed:
        if tasks is None and not any((folder / "needle").glob("*.txt")):
            print(f"not fetched: the text of needle in a haystack is yours: put .txt files into {folder / 'needle'}")
        print(f"next: write `data: {folder}` below `evaluation:` of a study file; `scaling eval study STUDY` reads it")
    if failed:
        names = [result.name for result in failed]
        notify(
            f"error: {counted_of(len(failed), len(results), 'data set', 'was', 'were')} not fetched: {', '.join(names)}"
        )
        raise typer.Exit(1)
