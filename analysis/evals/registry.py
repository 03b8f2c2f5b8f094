"""All tasks by name, the presets that stand for several, and the scales of their scores.

`lm_eval:NAME` is any task of lm-eval. A task from outside of this package is named "module:task": the module has
`make(task, context) -> Task`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.scales import PERPLEXITY as PERPLEXITY_SCALE
from analysis.scales import TREND, Scale
from arch.errors import InputError, nearest
from arch.outside import import_allowed

from .classify import Classify
from .lmeval import ruler, sets
from .lmeval.rows import show_layout
from .lmeval.task import LmEvalTask, NamedTask, require
from .losses import WIKITEXT, Extrapolate, Perplexity, Validation
from .niah.settings import VARIANTS
from .niah.task import Niah
from .task import Task, TaskContext


@dataclass(frozen=True)
class Entry:
    """about: one line of description; needs: what it reads below the data folder; layout: the form of what it reads;
    scales: by metric, of the main scores, for their laws."""

    kind: type[Task]
    about: str
    needs: str = ""
    layout: str = "the study's own held-out text"
    scales: Mapping[str, Scale] = field(default_factory=dict)


PERPLEXITY = "perplexity"
ENTRIES: dict[str, Entry] = {
    "validation": Entry(Validation, "held-out loss, perplexity and bits per byte on the study's corpus"),
    PERPLEXITY: Entry(
        Perplexity,
        "perplexity of a text per token, byte and word, in fixed windows; perplexity-NAME: of another text",
        WIKITEXT,
        f"{WIKITEXT} below the data folder, or the file of its settings: a text file of UTF-8, or a .jsonl of records "
        "with a text under text_key (page)",
        {"word_perplexity": Scale(PERPLEXITY_SCALE, higher_is_better=False)},
    ),
    "classify": Entry(
        Classify,
        "test accuracy of classifiers of a labelled set",
        layout="the test split of the study's own labelled set",
        scales={"acc": Scale(TREND, full=1.0)},
    ),
    "extrapolate": Entry(
        Extrapolate,
        "perplexity at context lengths from 512 tokens (or a shorter training length) to 16 times the training length",
        layout="the study's own held-out text, or a text file of UTF-8 (evaluation.settings.extrapolate.file)",
        # beyond the training length the loss decides nothing
        scales={"perplexity_avg": Scale(TREND, higher_is_better=False)},
    ),
    **{
        name: Entry(
            Niah,
            variant.about,
            variant.data,
            f"{variant.data}/ below the data folder, or evaluation.settings.{name}.haystack: a folder of .txt files of "
            f"UTF-8, read in the order of their names, together as long as the longest prompt",
            {"weighted_avg_acc": Scale(TREND, full=100.0)},
        )
        for name, variant in VARIANTS.items()
    },
    **{
        name: Entry(
            LmEvalTask,
            f"lm-eval: {task.about}",
            sets.DATA[task.data].file,
            f"{sets.DATA[task.data].file} below the data folder, a JSON object a line; other columns are allowed",
            task.scales,
        )
        for name, task in sets.TASKS.items()
    },
}
NAMED = Entry(NamedTask, "any other task or group of lm-eval by its name there", "lm_eval/")
RULER = Entry(
    ruler.Ruler,
    "RULER, or a task of its 13, at lengths of 1,024 to 8,192 tokens or those of its settings",
    "ruler/",
    "below the data folder, as far as its tasks read them: "
    + "; ".join(f"{name}: {what}" for name, what in ruler.WHAT.items()),
)
PRESETS: dict[str, tuple[str, ...]] = {"niah": ("niah-easy", "niah-standard"), **sets.PRESETS}


def entry_of(task: str) -> Entry | None:
    """The entry of a task by the name that its results carry; None for a task from outside."""
    if task.startswith("lm_eval:"):
        return RULER if task.partition(":")[2] in ("ruler", *ruler.TASKS) else NAMED
    return ENTRIES.get(PERPLEXITY if re.fullmatch(rf"{PERPLEXITY}-[A-Za-z0-9_-]+", task) else task)


def expand(words: Iterable[str]) -> list[str]:
    """Task names in the registry's order, presets resolved, each once; other texts and tasks from outside come last.
    Raises InputError with the nearest name."""
    wanted: dict[str, None] = {}
    for word in words:
        if ":" not in word and word not in PRESETS and entry_of(word) is None:
            raise InputError(
                f"evaluation.tasks: evaluation task {word!r} is unknown"
                f"{nearest(word.lower(), [*ENTRIES, *PRESETS])}; `scaling eval list` shows all"
            )
        wanted |= dict.fromkeys(PRESETS.get(word, (word,)))
    return [name for name in ENTRIES if name in wanted] + [name for name in wanted if name not in ENTRIES]


def texts_of(words: Iterable[str], settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The tasks among these words that read other texts than the corpus' held-out text, without those from outside."""
    of_corpus = {"validation"} | ({"extrapolate"} if not settings.get("extrapolate", {}).get("file") else set())
    return [name for name in expand(words) if name not in of_corpus and entry_of(name)]


def make_tasks(words: Iterable[str], context: TaskContext) -> list[Task]:
    """The tasks and presets named. Raises InputError for an unknown name, a module that cannot be imported, invalid
    settings or those of no task, and two tasks with one name."""
    for name in context.settings:
        if ":" not in name and entry_of(name) is None:
            raise InputError(f"evaluation.settings: unknown task {name!r}{nearest(name, list(ENTRIES))}")
    tasks: dict[str, Task] = {}
    for name in expand(words):
        entry = entry_of(name)
        task = _make(name, entry, context) if entry else _make_outside(name, context)
        if task.name in tasks or (entry is None and entry_of(task.name) is not None):
            raise InputError(
                f"evaluation task {name!r}: another task has the name {task.name!r}: choose a different one"
            )
        tasks[task.name] = task
    return list(tasks.values())


def _make(name: str, entry: Entry, context: TaskContext) -> Task:
    if ":" not in name and name not in ENTRIES and "file" not in context.settings.get(name, {}):
        raise InputError(
            f"evaluation.tasks: {name} is the perplexity of a text of your own: name it in "
            f"evaluation.settings.{name}.file{nearest(name, list(ENTRIES))}"
        )
    return entry.kind(name, context)


def _make_outside(name: str, context: TaskContext) -> Task:
    module, _, task_name = name.partition(":")
    try:
        imported = import_allowed(module)
    except InputError as error:
        raise InputError(f"evaluation task {name!r}: {error}; write module:task") from None
    try:
        own_context = replace(context, settings={task_name: context.settings.get(name, {})})
        task: Task = imported.make(task_name, own_context)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # somebody else's code, which may fail in any way
        reason = " ".join(str(error).split())
        raise InputError(
            f"evaluation task {name!r}: cannot be made ({type(error).__name__}: {reason}); write module:task"
        ) from None
    return task


def scales_of(task: str) -> Mapping[str, Scale]:
    """{metric: its scale} of a task's main metrics, for laws of scores. Empty for the held-out loss itself, and for
    tasks from outside, of whose scores nothing is known."""
    entry = entry_of(task)
    return entry.scales if entry else {}


def layout_of(name: str) -> str:
    """In words what a task reads and in what form; of lm-eval's tasks the columns of a row."""
    entry = entry_of(name)
    if entry is None:
        raise InputError(f"task {name!r} is from another package: its own module says what it reads")
    if entry is NAMED:
        require(name)
        from .lmeval import named

        return named.show_layout(name.partition(":")[2])
    return entry.layout + (f"\n{show_layout(sets.TASKS[name].data)}" if name in sets.TASKS else "")
