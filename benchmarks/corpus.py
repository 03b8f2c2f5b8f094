"""How fast text becomes a corpus, beside tiktoken's own `encode_ordinary_batch` on the same cores, and in what memory.

    python -m benchmarks.corpus FILE.jsonl.xz ... --tokenizer cl100k_base --mb 300

The text is cut into slices. Of each, tiktoken tokenises the documents, which lie in memory, in threads, and the corpus'
own path reads them from a JSONL file, drops duplicates, draws, tokenises, writes and checksums; in alternating order,
so that other work on the machine slows both. Then another process makes the whole corpus and reports its peak memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from arch.arguments import Parser, at_least_one, run
from arch.errors import InputError
from data.encoding import n_threads
from data.resumable import unfinished
from data.settings import CorpusSettings
from data.sources.reading import read_documents
from data.splits import write_splits
from data.tokenizer import get_tokenizer
from data.tokenizer.ranks import RankTokenizer
from data.training_sample import trained
from data.vocabulary import TRAINED

SLICE_BYTES = 30_000_000
CALL_BYTES = 15_000_000  # of text that tiktoken is given at a time: its lists of ids take ten times as much
WHOLE = """
import json, resource, sys, time
from data.corpus import prepare
from data.settings import CorpusSettings
began = time.monotonic()
corpus = prepare(CorpusSettings(**json.loads(sys.argv[1])), sys.argv[2])
taken = time.monotonic() - began
splits = corpus.manifest["splits"].values()
print(json.dumps({
    "seconds": round(taken, 1),
    "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
    "mb": round(sum(split["bytes"] for split in splits) / 1e6, 1),
    "tokens": sum(split["tokens"] for split in splits),
    "fingerprint": corpus.fingerprint,
}))
"""


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m benchmarks.corpus", __doc__)
    parser.add_argument("source", nargs="+", help="files, folders or schemes, as corpus.source takes them")
    parser.add_argument("--tokenizer", default="cl100k_base", help="an encoding of tiktoken, or bpe:V")
    parser.add_argument("--mb", type=int, default=300, help="megabytes of text")
    parser.add_argument("--text-key", default="text", help="of JSONL records")
    options = parser.parse_args(arguments)
    at_least_one(options, "mb")
    source = tuple(options.source)
    with tempfile.TemporaryDirectory() as folder:
        bench(CorpusSettings(source, options.tokenizer, options.text_key, max_bytes=options.mb * 10**6), Path(folder))


def bench(settings: CorpusSettings, folder: Path) -> None:
    """Print a line for each slice, their median, and the whole. Raises InputError where there is no such tokenizer."""
    own = settings.tokenizer.startswith(TRAINED)
    tokenizer = trained(settings) if own else get_tokenizer(settings.tokenizer)
    if not isinstance(tokenizer, RankTokenizer):
        raise InputError(
            f"--tokenizer: {settings.tokenizer} is no tokenizer of tiktoken; name one of its encodings, or bpe:V"
        )
    print(f"{settings.tokenizer}, {n_threads()} threads; MB/s of wall time, and of processor time in brackets")
    walls, processors = list[float](), list[float]()
    for number, texts in enumerate(_slices(settings)):
        size = sum(len(text.encode()) for text in texts) / 1e6
        path = folder / "slice.jsonl"
        with open(path, "w", encoding="utf-8") as handle:
            handle.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        runs = (lambda: _by_tiktoken(tokenizer, texts), lambda: _as_corpus(tokenizer, path))  # noqa: B023
        order = (0, 1) if number % 2 == 0 else (1, 0)
        took = {which: _timed(runs[which]) for which in order}
        (wall, processor), (our_wall, our_processor) = took[0], took[1]
        walls.append(wall / our_wall)
        processors.append(processor / our_processor)
        print(
            f"slice {number + 1}: {size:.1f} MB, tiktoken {size / wall:.1f} ({size / processor:.1f}), corpus "
            f"{size / our_wall:.1f} ({size / our_processor:.1f}), ratio {walls[-1]:.2f} ({processors[-1]:.2f})",
            flush=True,
        )
    print(f"median ratio {statistics.median(walls):.2f} ({statistics.median(processors):.2f})")
    given = {**settings.to_dict(), "tokenizer": settings.tokenizer}
    command = [sys.executable, "-c", WHOLE, json.dumps(given), str(folder / "whole")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise InputError(done.stderr.strip().splitlines()[-1])
    whole = json.loads(done.stdout)
    print(
        f"whole corpus: {whole['mb']} MB, {whole['tokens']:,} tokens in {whole['seconds']} s "
        f"({whole['mb'] / whole['seconds']:.1f} MB/s), peak memory {whole['peak_mb']:,} MB; {whole['fingerprint'][:16]}"
    )


def _slices(settings: CorpusSettings) -> Iterator[list[str]]:
    """The text, as often a slice as there is enough for one more; what is left over goes to the last."""
    left, texts, size = settings.max_bytes or 0, list[str](), 0
    for document in read_documents(settings.source, settings.text_key):  # type: ignore[arg-type]
        texts.append(document.text)
        size += len(document.text.encode())
        if size >= min(SLICE_BYTES, left):
            yield texts
            left -= size
            texts, size = [], 0
            if left <= 0:
                return
    if texts:
        yield texts


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds."""
    began, processor = time.monotonic(), time.process_time()
    work()
    return time.monotonic() - began, time.process_time() - processor


def _by_tiktoken(tokenizer: RankTokenizer, texts: list[str]) -> None:
    waiting = iter(texts)
    while call := list(_first(waiting, CALL_BYTES)):
        tokenizer.encoding.encode_ordinary_batch(call, num_threads=n_threads())


def _first(texts: Iterator[str], n_bytes: int) -> Iterator[str]:
    for text in texts:
        yield text
        n_bytes -= len(text)
        if n_bytes <= 0:
            return


def _as_corpus(tokenizer: RankTokenizer, path: Path) -> None:
    with unfinished(path.with_name("slice"), lambda: None) as work:
        write_splits(CorpusSettings(str(path), tokenizer.name), tokenizer, work, 100_000_000)


if __name__ == "__main__":
    run(main)
