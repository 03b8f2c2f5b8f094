"""The tasks there are, by name, and the presets that stand for several. Imports no task until one is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

from arch.errors import InputError, nearest

from .niah.settings import VARIANTS
from .task import Place, Task


@dataclass(frozen=True)
class Entry:
    """module: below analysis.evals, with `make(name: str, place: Place) -> Task`; about: one line for people; needs:
    what it reads below the data folder."""

    module: str
    about: str
    needs: str = ""


ENTRIES: dict[str, Entry] = {
    "validation": Entry("validation", "held-out loss, perplexity and bits a byte on the study's corpus"),
    "perplexity": Entry("perplexity", "perplexity of a text by token, byte and word, fixed windows", "wikitext-2"),
    "extrapolate": Entry("extrapolate", "perplexity against context length up to 16 x training; loss by position"),
    **{name: Entry("niah.task", variant.about, variant.data) for name, variant in VARIANTS.items()},
}
PRESETS: dict[str, tuple[str, ...]] = {"niah": ("niah-easy", "niah-standard")}


def expand(words: Iterable[str]) -> list[str]:
    """Task names in the registry's order, presets resolved, each once. Raises InputError with the nearest name."""
    wanted: set[str] = set()
    for word in words:
        if word not in ENTRIES and word not in PRESETS:
            raise InputError(
                f"evaluation task {word!r} is unknown{nearest(word, [*ENTRIES, *PRESETS])}; "
                f"`scaling eval list` shows all"
            )
        wanted |= set(PRESETS.get(word, (word,)))
    return [name for name in ENTRIES if name in wanted]


def make_tasks(words: Iterable[str], place: Place) -> list[Task]:
    """The tasks and presets named. Raises InputError: an unknown name, settings that cannot be or that belong to no
    task."""
    for name in place.settings:
        if name not in ENTRIES:
            raise InputError(f"evaluation.settings: unknown task {name!r}{nearest(name, list(ENTRIES))}")
    return [import_module(f"analysis.evals.{ENTRIES[name].module}").make(name, place) for name in expand(words)]
