"""A tokenizer by its name."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from arch.errors import InputError
from data.vocabulary import BYTES, ENCODINGS, IDS, JSON_NAME, TRAINED, is_file, vocabulary

from .base import ByteTokenizer, Ids, Tokenizer
from .json_file import JsonTokenizer, open_json
from .ranks import RANKS, open_encoding, rank_files, read_ranks, trained_tokenizer


def get_tokenizer(name: str, folder: Path | None = None) -> Tokenizer:
    """The tokenizer called `name`. folder: of the corpus or checkpoint that it belongs to, which holds the files of one
    that was trained or came as a file.

    Raises InputError: unknown name; a rank file of tiktoken's neither cached nor to be downloaded; a trained tokenizer
    that is not in `folder`; a broken tokenizer.json.
    """
    if not is_file(name):
        vocabulary(name)  # refuses what is no tokenizer
    if name.startswith(TRAINED):
        if folder is None:
            raise InputError(f"corpus.tokenizer: {name} is trained on a corpus, and exists where that was made")
        return _trained(name, folder / RANKS, _stamp(folder / RANKS))
    if is_file(name):
        path = Path(name).expanduser() if folder is None else folder / JSON_NAME
        return _of_file(path, _stamp(path))
    return _built_in(name)


def is_at_hand(name: str, folder: Path | None = None) -> bool:
    """Whether `get_tokenizer` needs no network and no corpus that has yet to be made."""
    if name.startswith(TRAINED):
        return folder is not None and (folder / RANKS).exists()
    if is_file(name):
        return (Path(name).expanduser() if folder is None else folder / JSON_NAME).exists()
    return all(path.exists() for path in rank_files(name))


def _stamp(path: Path) -> tuple[int, int]:
    """Another where the file has changed."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@cache
def _built_in(name: str) -> Tokenizer:
    assert name in (BYTES, IDS) or name in ENCODINGS
    own = {BYTES: ByteTokenizer, IDS: Ids}
    return own[name]() if name in own else open_encoding(name)


@lru_cache(maxsize=4)
def _trained(name: str, path: Path, stamp: tuple[int, int]) -> Tokenizer:
    return trained_tokenizer(name, read_ranks(name, path))


@lru_cache(maxsize=4)
def _of_file(path: Path, stamp: tuple[int, int]) -> JsonTokenizer:
    return open_json(path)
