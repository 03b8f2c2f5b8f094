"""The study's evaluation sets held against its training text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arch.errors import InputError

from .passing import Passing
from .request import Request


def sets_of(request: Request, tasks: tuple[str, ...]) -> dict[str, Path]:
    """{tasks that read it: file or folder} of the study's tasks, or of these. Tasks that read the same file are one
    set. Raises InputError for data that are not there."""
    from .evaluation_tasks import EvalOptions, eval_tasks

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


def contamination_stage(request: Request, sets: dict[str, Path], force: bool) -> dict[str, Any]:
    """The record of the study's corpus with these sets; only what is missing is done."""
    from analysis.contamination import FILE, ensure
    from data.corpus import open_corpus

    corpus = open_corpus(request.corpus_directory)
    with Passing(request.stream) as passing:

        def tell(done: int, total: int) -> None:
            passing.tell(f"contamination: {done / total:.0%} of the training text read")

        return ensure(corpus, request.study.results / FILE, sets, force, tell)
