"""Whether a published study says what its tables say: what follows from the tables is made again and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.publish.derived import derived
from analysis.publish.write import made_with
from analysis.source.published import Published
from analysis.table_files import read_table
from arch.errors import InputError
from data.files import MANIFEST, read_json, unsealed

if TYPE_CHECKING:
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

SAME = "same"
CHECKSUM = "same as published, by its checksum"
ROUNDED = "same but for rounding"  # as another Python, numpy or processor makes it
ROUNDING = 1e-9  # of a number


def check_alone(study: StudySpec, runs: Sequence[RunSpec]) -> dict[str, str]:
    """By file its state, for a study that was loaded from its folder: tables are checked by their checksums, what
    follows from them is made again. Raises InputError for a damaged folder."""
    assert study.published is not None
    source = Published(study.published)
    states = dict.fromkeys(source.manifest["inputs"], CHECKSUM)
    for name, content in derived(study, runs, source).items():
        states[name] = compared(study.published / name, content)
    return states


def check_against(folder: Path, made: Path) -> dict[str, str]:
    """By file how the publication in `folder` differs from that of its study just made in `made`."""
    files, published = read_json(made / MANIFEST)["files"], Published(folder).manifest["files"]
    states = {name: compared(folder / name, (made / name).read_bytes(), made / name) for name in files}
    return states | {name: "is of no file of the study now" for name in published if name not in files}


def differ(states: Mapping[str, str], versions: str = "") -> list[str]:
    """The files that differ. versions: others than those that made the folder; where there are any, files that differ
    by rounding alone do not count."""
    return [
        name
        for name, state in states.items()
        if state not in (SAME, CHECKSUM) and not (versions and state.startswith(ROUNDED))
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


def compared(path: Path, content: bytes, other: Path | None = None) -> str:
    """SAME, or how the file at `path` differs from `content`, which is that of the file `other`."""
    if not path.is_file():
        return "is missing"
    if (stored := path.read_bytes()) == content:
        return SAME
    if path.suffix == ".json":
        try:
            difference = _difference(unsealed(stored), unsealed(content))
            return difference if difference.startswith(ROUNDED) else f"differs: {difference}"
        except ValueError as error:
            return f"differs: {error}"
    if path.suffix == ".parquet" and other is not None:
        return f"differs: {_rows(path, other)}"
    old, two = stored.split(b"\n"), content.split(b"\n")
    line = next(
        (i for i, pair in enumerate(zip(old, two, strict=False)) if pair[0] != pair[1]), min(len(old), len(two))
    )
    return f"differs from line {line + 1} on"


def _rows(path: Path, other: Path) -> str:
    try:
        old, two = read_table(path), read_table(other)
    except InputError as error:
        return str(error)
    if list(old) != list(two):
        return f"columns {', '.join(sorted({*map(str, old)} ^ {*map(str, two)})) or 'in another order'}"
    if len(old) != len(two):
        return f"{len(old):,} rows, not {len(two):,}"
    columns = [str(name) for name in old if not old[name].equals(two[name])]
    return f"in {', '.join(columns)}" if columns else "by its encoding alone, its values are the same"


def _difference(stored: Any, made: Any) -> str:
    """In words how many values differ between two JSON contents, by how much, and the first of them."""
    old, two = dict(_leaves(stored)), dict(_leaves(made))
    wrong = [name for name in {**old, **two} if name not in old or name not in two or old[name] != two[name]]
    if not wrong:
        return "in its form alone, its values are the same"
    pairs = [(old.get(name), two.get(name)) for name in wrong]
    ratios = [
        abs(a - b) / max(abs(a), abs(b))
        for a, b in pairs
        if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool)
    ]
    much = f", numbers by up to {max(ratios):.2g} of themselves" if ratios else ""
    if len(ratios) == len(wrong) and all(ratio < ROUNDING for ratio in ratios):  # none is NaN
        return f"{ROUNDED}: {len(wrong):,} of {len({**old, **two}):,} values{much}"
    first = f"{wrong[0]} is {old.get(wrong[0], 'not there')}, made again {two.get(wrong[0], 'not there')}"
    return f"{len(wrong):,} of {len({**old, **two}):,} values{much}; {first}"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, None if value in ([], {}) else value
