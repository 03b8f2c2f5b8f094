"""Whether a published study says what its tables say: what follows from the tables is made again and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.publish.derived import derived
from analysis.publish.write import made_with
from analysis.source.published import Published
from data.files import MANIFEST, unsealed

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

SAME = "same"
BESIDE = "a text beside the study, not part of it"
CHECKSUM = "same as published, by its checksum"
ROUNDED = "same but for rounding"  # as another Python, numpy or processor makes it
ROUNDING = 1e-9  # of a number


def check(study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, str]:
    """By file its state, for a study that was loaded from its folder: tables are checked by their checksums, what
    follows from them is made again. Raises InputError for a damaged folder."""
    assert study.published is not None
    source = Published(study.published)
    states = dict.fromkeys(source.manifest["inputs"], CHECKSUM)
    for name, content in derived(study, runs, source).items():
        states[name] = compared(study.published / name, content)
    return states | _unlisted(study.published)


def _unlisted(folder: Path) -> dict[str, str]:
    """What else lies in the folder, but for what is hidden: texts for people may stand there, as a README of its
    repository; anything else a reader could take for a part of the study."""
    listed = {MANIFEST, *Published(folder).manifest["files"]}
    inside = sorted(path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    extra = [path.as_posix() for path in inside if not any(part.startswith(".") for part in path.parts)]
    texts = (".md", "LICENSE")
    return {
        name: BESIDE if name.endswith(texts) else "is not in the manifest: remove it"
        for name in extra
        if name not in listed
    }


def differ(states: Mapping[str, str], versions: str = "") -> list[str]:
    """The files that differ. versions: others than those that made the folder; where there are any, files that differ
    by rounding alone do not count."""
    return [
        name
        for name, state in states.items()
        if state not in (SAME, CHECKSUM, BESIDE) and not (versions and state.startswith(ROUNDED))
    ]


def other_versions(folder: Path, but: Sequence[str] = ()) -> str:
    """What the folder was made with that differs here, as in "numpy 2.1.0 (here 2.4.6)", without the packages in
    `but`."""
    recorded, current = Published(folder).manifest.get("made_with", {}), made_with()
    return ", ".join(
        f"{name} {recorded.get(name, 'none')} (here {current.get(name, 'none')})"
        for name in {**recorded, **current}
        if recorded.get(name) != current.get(name) and name not in but
    )


def compared(path: Path, content: bytes) -> str:
    """SAME, or how the file at `path` differs from `content`."""
    if not path.is_file():
        return "is missing"
    if (stored := path.read_bytes()) == content:
        return SAME
    if path.suffix != ".json":
        return "differs"
    try:
        return _difference(dict(_leaves(unsealed(stored))), dict(_leaves(unsealed(content))))
    except ValueError as error:
        return f"differs: {error}"


def _difference(stored: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    """In words how many values differ between two JSON contents, and by how much or the first of them."""
    names = {**stored, **made}
    wrong = [name for name in names if name not in stored or name not in made or stored[name] != made[name]]
    ratios = [_apart(stored.get(name), made.get(name)) for name in wrong]
    if wrong and all(ratio < ROUNDING for ratio in ratios):  # none is NaN
        return f"{ROUNDED}: {len(wrong):,} of {len(names):,} values, numbers by up to {max(ratios):.2g} of themselves"
    first = (
        f"{wrong[0]} is {stored.get(wrong[0], 'not there')}, made again {made.get(wrong[0], 'not there')}"
        if wrong
        else "its form alone"
    )
    return f"differs: {len(wrong):,} of {len(names):,} values; {first}"


def _apart(stored: Any, made: Any) -> float:
    """How far two numbers are apart, as a share of the larger; infinitely, where they are no numbers."""
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in (stored, made)):
        return math.inf
    return abs(stored - made) / max(abs(stored), abs(made))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, None if value in ([], {}) else value
