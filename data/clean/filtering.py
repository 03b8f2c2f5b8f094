"""What `scaling clean-text` is asked for, and where it leaves what.

DIR/text/00000.jsonl.gz ...       what stays: `corpus.source: DIR/text`
DIR/dropped/<step>/...            what each step dropped, whole
DIR/cleaning.json                 counts and examples of every step; written last, with the checksums of text/
DIR/logs/<stage>/...              datatrove's logs and statistics, and which tasks are done
DIR/between/...                   from one stage to the next; removed at the end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arch.errors import InputError, nearest
from data.files import read_json, sha256, write_json

RULES = ("language", "repetition", "quality")  # in the order in which they run
NEAR = "near_duplicates"
RECORD = "cleaning.json"
SCHEMA = 1


@dataclass(frozen=True)
class Filtering:
    """sources: as corpus.source; rules: some of RULES; languages, model: of the rule `language`, a fastText model's
    file; near: whether near-duplicates are dropped; tasks: parts of the work, run side by side."""

    sources: tuple[str, ...]
    directory: Path
    text_key: str = "text"
    rules: tuple[str, ...] = ("repetition", "quality")
    languages: tuple[str, ...] = ()
    model: Path | None = None
    near: bool = True
    tasks: int = 1

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule not in RULES:
                raise InputError(f"--rule: unknown rule {rule!r}{nearest(rule, list(RULES))}")
        if len({"language" in self.rules, bool(self.languages), self.model is not None}) > 1:
            raise InputError(
                "the rule language needs --language (repeatable) and --language-model, the file of a fastText model; "
                "nothing is downloaded"
            )
        if "language" in self.rules and find_spec("fasttext") is None:
            raise InputError(
                "the rule language needs fastText, which is not installed: pip install fasttext-numpy2-wheel"
            )
        if self.model is not None and not self.model.is_file():
            raise InputError(f"--language-model: {self.model} is no file; give that of a fastText model")
        if not self.rules and not self.near:
            raise InputError("nothing is to be dropped: give --rule, or leave --keep-near-duplicates out")
        if self.tasks < 1:
            raise InputError(f"--tasks: {self.tasks} does no work; give at least 1")

    def identity(self) -> dict[str, Any]:
        """What the result depends on, as JSON has it; the folder apart."""
        identity = asdict(self) | {"sources": [str(source) for source in self.sources], "rules": list(self.rules)}
        identity |= {"languages": list(self.languages), "model": sha256(self.model) if self.model else None}
        return {"schema": SCHEMA} | {key: value for key, value in identity.items() if key != "directory"}

    @property
    def steps(self) -> list[str]:
        return [rule for rule in RULES if rule in self.rules] + [NEAR] * self.near

    def dropped(self, step: str) -> Path:
        return self.directory / "dropped" / step

    def logs(self, stage: str) -> Path:
        return self.directory / "logs" / stage

    @property
    def text(self) -> Path:
        return self.directory / "text"

    @property
    def work(self) -> Path:
        return self.directory / "between"


def claim(filtering: Filtering) -> dict[str, Any] | None:
    """The record of a folder that is done, None where work is to be done there; the folder is made, and says what for.

    Raises InputError where it holds anything else."""
    directory, wanted = filtering.directory, filtering.identity()
    asked = directory / "asked.json"
    if directory.exists() and not directory.is_dir():
        raise InputError(f"--to: {directory} is a file; name a folder")
    if directory.exists() and any(directory.iterdir()):
        try:
            same = read_json(asked) == wanted
        except (OSError, ValueError):
            raise InputError(f"--to: {directory} holds other files; name another folder") from None
        if not same:
            raise InputError(f"--to: {directory} holds text that was cleaned otherwise; name another folder")
        return record_of(filtering.text)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(asked, wanted)
    return None


def record_of(source: Path) -> dict[str, Any] | None:
    """The record of cleaned text at `source` (DIR/text), None where there is none.

    Raises InputError where a file is another than the record says."""
    path = source.parent / RECORD
    if source.name != "text" or not path.is_file():
        return None
    try:
        record = dict(read_json(path))
        files = dict(record["files"]) if record.get("kind") == "cleaning" else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}); clean the text again") from None
    if files is None:
        return None
    there = {file.name: file.stat().st_size for file in source.iterdir() if file.is_file()}
    if differ := sorted(set(files.items()) ^ set(there.items())):
        raise InputError(f"{source / differ[0][0]} is not what {path} says; clean the text again")
    return record


def entries_of(sources: Sequence[str]) -> list[dict[str, Any]]:
    """What was dropped before from the sources that `scaling clean-text` wrote: entries for manifest["cleaning"]."""
    entries: list[dict[str, Any]] = []
    for source in sources:
        record = record_of(Path(source).expanduser()) if ":" not in source else None
        entries += record["steps"] if record else []
    return entries
