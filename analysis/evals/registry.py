"""The tasks there are, by name, and the presets that stand for several. Imports no task until one is made.

A task from outside of this package is named "module:task": the module has `make(task, place)` like those here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module

from arch.errors import InputError, nearest

from .lmeval import sets as lmeval
from .niah.settings import VARIANTS
from .task import Place, Task


@dataclass(frozen=True)
class Entry:
    """module: below analysis.evals, with `make(name: str, place: Place) -> Task`; about: one line for people; needs:
    what it reads below the data folder; plots: module with its pictures and table (page.py), "" for the plain table."""

    module: str
    about: str
    needs: str = ""
    plots: str = ""


ENTRIES: dict[str, Entry] = {
    "validation": Entry("validation", "held-out loss, perplexity and bits a byte on the study's corpus"),
    "perplexity": Entry(
        "perplexity", "perplexity of a text by token, byte and word, fixed windows", "wikitext/test.jsonl"
    ),
    "extrapolate": Entry(
        "extrapolate", "perplexity against context length, 512 to 16 x training", plots="extrapolate_plot"
    ),
    **{name: Entry("niah.task", one.about, one.data, "niah.plots") for name, one in VARIANTS.items()},
    **{
        name: Entry("lmeval.task", f"lm-eval: {task.about}", lmeval.DATA[task.data].file)
        for name, task in lmeval.TASKS.items()
    },
}
PRESETS: dict[str, tuple[str, ...]] = {"niah": ("niah-easy", "niah-standard"), **lmeval.PRESETS}


def expand(words: Iterable[str]) -> list[str]:
    """Task names in the registry's order, presets resolved, each once; those from outside last. Raises InputError with
    the nearest name."""
    wanted: dict[str, None] = {}
    for word in words:
        if ":" not in word and word not in ENTRIES and word not in PRESETS:
            raise InputError(
                f"evaluation task {word!r} is unknown{nearest(word, [*ENTRIES, *PRESETS])}; "
                f"`scaling eval list` shows all"
            )
        wanted |= dict.fromkeys(PRESETS.get(word, (word,)))
    return [name for name in ENTRIES if name in wanted] + [name for name in wanted if ":" in name]


def make_tasks(words: Iterable[str], place: Place) -> list[Task]:
    """The tasks and presets named. Raises InputError: an unknown name, a module that cannot be imported, settings that
    cannot be or that belong to no task."""
    for name in place.settings:
        if ":" not in name and name not in ENTRIES:
            raise InputError(f"evaluation.settings: unknown task {name!r}{nearest(name, list(ENTRIES))}")
    return [_make(name, place) for name in expand(words)]


def _make(name: str, place: Place) -> Task:
    module, colon, own = name.partition(":")
    if not colon:
        task: Task = import_module(f"analysis.evals.{ENTRIES[name].module}").make(name, place)
        return task
    try:
        mine = replace(place, settings={own: place.settings.get(name, {})})
        task = import_module(module).make(own, mine)
    except (ImportError, AttributeError) as error:
        raise InputError(f"evaluation task {name!r}: cannot be made ({error}); write module:task") from None
    if task.name in ENTRIES:
        raise InputError(f"evaluation task {name!r}: its name {task.name!r} is taken: choose another")
    return task
