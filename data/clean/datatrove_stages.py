"""The stages of `scaling clean-text` as datatrove's pipelines. Needs the extra `corpus`.

    rules       read, drop by the rules, write                      `tasks` tasks
    signatures  MinHash signatures of what was written              the same
    buckets     which documents share a band                        a task a band
    clusters    which belong together                               one task
    near        of each cluster one stays; write                    `tasks` tasks
    finish      counts, examples, checksums; text/ gets its name    one task

A stage begins when the stage before it has ended well. Finished tasks are not repeated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig

from arch.errors import InputError
from data.clean.filtering import NEAR, RULES, Filtering
from data.clean.outcome import finish
from data.clean.rules import WORDS, language, quality, repetition
from data.sources.documents import Counts
from data.sources.reading import read_documents

RECORDS = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".parquet", ".arrow")  # a document does not depend on
# whether its file is read alone


class Texts(PipelineStep):
    """The documents of any source that a corpus can have. Tasks share the files of a folder of records where there are
    as many, else the documents: then each task reads everything and keeps its part."""

    type, name = "reader", "sources"

    def __init__(self, sources: tuple[str, ...], text_key: str) -> None:
        super().__init__()
        self._sources, self._text_key = sources, text_key

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        files, counts = record_files(self._sources), Counts()
        by_file = len(files) >= world_size
        chosen = tuple(files[rank::world_size]) if by_file else self._sources
        for i, (doc_id, text) in enumerate(read_documents(chosen, self._text_key, counts) if chosen else ()):
            if by_file or i % world_size == rank:
                document = Document(text=text, id=doc_id)
                self.stat_update("documents")
                yield document
        if by_file or rank == 0:
            for name in ("binary", "invalid_utf8", "invalid_records", "empty"):
                self.stat_update(name, value=getattr(counts, name))


class Finish(PipelineStep):
    type, name = "finish", "record"

    def __init__(self, filtering: Filtering) -> None:
        super().__init__()
        self._filtering = filtering

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        finish(self._filtering)
        yield from ()


def record_files(sources: tuple[str, ...]) -> list[str]:
    """The files of `sources` where all of them hold records, sorted within a folder; else []."""
    paths: list[str] = []
    for source in sources:
        path = Path(source).expanduser()
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        shown = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not shown or not all(file.name.endswith(RECORDS) and file.is_file() for file in shown):
            return []
        paths += map(str, shown)
    return paths


def stages(filtering: Filtering) -> list[tuple[str, list[Any], int]]:
    """(name, pipeline, tasks) of each, in order."""
    work, tasks = filtering.work, filtering.tasks
    made: dict[str, Callable[[Any], PipelineStep]] = {"quality": quality, "repetition": repetition}
    if filtering.model is not None:
        model = filtering.model.absolute()
        made["language"] = lambda writer: language(filtering.languages, model, writer)
    rules = [made[rule](_writer(filtering.dropped(rule))) for rule in RULES if rule in filtering.rules]
    after = work / "rules" if filtering.near else work / "text"
    listed = [("rules", [Texts(filtering.sources, filtering.text_key), *rules, _writer(after)], tasks)]
    if filtering.near:
        config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))  # 14 bands of 8, of 5-grams
        read = dict(glob_pattern="*.jsonl.gz", add_file_path=False)
        signatures, buckets, clusters = (str(work / name) for name in ("signatures", "buckets", "clusters"))
        listed += [
            ("signatures", [JsonlReader(str(after), **read), MinhashDedupSignature(signatures, config, WORDS)], tasks),
            ("buckets", [MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
            ("clusters", [MinhashDedupCluster(buckets, clusters, config)], 1),
            (
                "near",
                [
                    JsonlReader(str(after), **read),
                    MinhashDedupFilter(clusters, exclusion_writer=_writer(filtering.dropped(NEAR))),
                    _writer(work / "text"),
                ],
                tasks,
            ),
        ]
    return [*listed, ("finish", [Finish(filtering)], 1)]


def _writer(folder: Path) -> JsonlWriter:
    return JsonlWriter(str(folder), output_filename="${rank}.jsonl", compression="gzip")


def run_here(filtering: Filtering, workers: int, say: Callable[[str], None]) -> None:
    """All stages on this machine, at most `workers` tasks at a time. Raises InputError as the sources' reading does."""
    listed = stages(filtering)
    for number, (name, pipeline, tasks) in enumerate(listed, start=1):
        say(f"stage {number} of {len(listed)}: {name} ({tasks} task{'s' * (tasks > 1)})")
        at_once = max(1, min(workers, tasks))
        executor = LocalPipelineExecutor(pipeline, tasks, at_once, logging_dir=str(filtering.logs(name)))
        with _stderr_to(filtering.directory / "logs" / "stderr.txt"):
            executor.run()
        if name == "rules" and filtering.near and not any((filtering.work / name).glob("*.jsonl.gz")):
            raise InputError(
                f"SOURCE: no document is left by the rules; {filtering.directory}/dropped has what each dropped"
            )


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Everything that this process and its children write to stderr meanwhile goes into a file: datatrove's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
