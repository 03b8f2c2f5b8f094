"""`scaling clean-text`: datatrove's rules and near-duplicate pass over text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from arch.amounts import counted_of
from arch.errors import InputError

from .options import AsJson, print_json


@dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """Where the cleaned text goes, by which rules, and in how many processes."""

    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the result; DIR/text is then a source.")]
    text_key: Annotated[str, typer.Option(help="The key of a record that holds its text.")] = "text"
    rule: Annotated[
        list[str] | None, typer.Option(help="language, repetition or quality; repeatable. Default: the last two.")
    ] = None
    language: Annotated[
        list[str] | None, typer.Option(help="With the rule language: keep this one, as the model calls it; repeatable.")
    ] = None
    language_model: Annotated[Path | None, typer.Option(help="With the rule language: a fastText model's file.")] = None
    keep_near_duplicates: Annotated[
        bool, typer.Option("--keep-near-duplicates", help="Drop by rules alone, not by MinHash.")
    ] = False
    tasks: Annotated[int, typer.Option(min=1, help="Number of parts of the work.")] = 1
    workers: Annotated[int, typer.Option(min=1, help="Parts that are at work at a time on this machine.")] = 1
    as_json: AsJson = False


def clean_text(
    source: Annotated[list[str], typer.Argument(metavar="SOURCE..", help="Text, as corpus.source of a study file.")],
    options: CleanOptions,
) -> None:
    """Drop low-quality text and near-duplicates.

    datatrove's rules and MinHash decide what is dropped; the rest is written as JSONL. The same command does only what
    is missing when it is run again, and prints what was dropped.
    """
    if find_spec("datatrove") is None:
        raise InputError("clean-text needs datatrove, which is not installed: pip install 'linear-scaling[corpus]'")
    from data.checks import check_text
    from data.clean.filtering import Filtering, claim
    from data.settings import CorpusSettings

    try:
        check_text(CorpusSettings(source=tuple(source), text_key=options.text_key))
    except InputError as error:
        raise InputError(str(error).replace("corpus.source:", "SOURCE:", 1)) from None
    filtering = Filtering(
        sources=tuple(source),
        directory=options.to,
        text_key=options.text_key,
        rules=("repetition", "quality") if options.rule is None else tuple(dict.fromkeys(options.rule)),
        languages=tuple(options.language or ()),
        model=options.language_model,
        near=not options.keep_near_duplicates,
        tasks=options.tasks,
    )
    record = claim(filtering)
    if record is None:
        from data.clean.datatrove_stages import run_here

        run_here(filtering, options.workers, lambda line: print(line, file=sys.stderr))
        record = claim(filtering)
        assert record is not None
    if options.as_json:
        return print_json(record)
    _show(record)
    print(f"corpus.source: {filtering.text}")


def _show(record: dict[str, Any]) -> None:
    from data.clean.summary import examples, headline

    counts = record["counts"]
    left_out = [
        f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n and name not in ("documents", "kept")
    ]
    print(f"{counted_of(counts['kept'], counts['documents'], 'document', 'stays', 'stay')}", end="")
    print(f" (not read: {', '.join(left_out)})" if left_out else "")
    for step in record["steps"]:
        print(headline(step))
        for example in examples(step):
            print(f"  {example}")
