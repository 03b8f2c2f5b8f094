"""Tokenizers by name, and how many ids each has: what a plan needs before there is a tokenizer. Imports nothing heavy.

bytes                 256 bytes and end-of-text
cl100k_base, gpt2, .. an encoding of tiktoken
bpe:V                 a byte-level BPE of V ids, 256 bytes and end-of-text included, trained on the corpus
FILE.json             a tokenizer.json of a byte-level BPE, by its path
ids                   none: the ids of a labelled set, whose facts say how many there are
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from arch.errors import InputError, nearest, shown

BYTES, IDS = "bytes", "ids"
TRAINED = "bpe:"
FOLDER = "labelled"  # of the sources that are labelled sets; the others are data.labelled_sources.MADE
SETS = (FOLDER, "listops", "pathfinder", "path-x", "imdb", "aan", "cifar10", "images")
JSON_NAME = "tokenizer.json"  # of a tokenizer that is read from a file, wherever that lies
ENCODINGS = {  # tiktoken's own, and their ids, special ones included
    "gpt2": 50_257,
    "r50k_base": 50_257,
    "p50k_base": 50_281,
    "p50k_edit": 50_284,
    "cl100k_base": 100_277,
    "o200k_base": 200_019,
    "o200k_harmony": 201_088,
}
MULTIPLE = 8  # of which a vocabulary is, the one of bytes apart: 100,280 for cl100k_base, as in the paper
LEAST, MOST = 257, 1 << 20  # ids of a trained tokenizer
MOST_IDS = 1 << 16  # of a labelled set
HINTS = [BYTES, "cl100k_base", "bpe:16384", *(name for name in ENCODINGS if name != "cl100k_base")]


def padded(n_ids: int) -> int:
    return -(-n_ids // MULTIPLE) * MULTIPLE


def vocabulary(name: str) -> int:
    """How many ids a model must know for the tokenizer called `name`, padding included.

    Raises InputError: no such tokenizer; a trained one of too few or too many ids; a tokenizer.json that is not there
    or is none.
    """
    if name == BYTES:
        return LEAST
    if name == IDS:
        return MOST_IDS
    if name in ENCODINGS:
        return padded(ENCODINGS[name])
    if name.startswith(TRAINED):
        return padded(trained_ids(name))
    if is_file(name):
        return padded(json_ids(read_json_tokenizer(Path(name).expanduser())))
    raise InputError(
        f"corpus.tokenizer: unknown tokenizer {shown(name)}{nearest(name, HINTS)}; or give the path of a {JSON_NAME}"
    )


def is_file(name: str) -> bool:
    """Whether a tokenizer is named by the path of a tokenizer.json."""
    return name.endswith(".json")


def portable(name: str) -> str:
    """The name without the place of a file: it identifies runs and corpora, and their tokens identify the file."""
    return JSON_NAME if is_file(name) else name


def trained_ids(name: str) -> int:
    """V of bpe:V. Raises InputError where that is no number from 257 on."""
    digits = name.removeprefix(TRAINED)
    n_ids = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    if str(n_ids) != digits or not LEAST <= n_ids <= MOST:
        raise InputError(
            f"corpus.tokenizer: {shown(name)} is not bpe:V with V from {LEAST} (256 bytes and end-of-text) to {MOST:,}"
        )
    return n_ids


def read_json_tokenizer(path: Path) -> dict[str, Any]:
    """The content of a tokenizer.json. Raises InputError where it cannot be read or holds no tokenizer."""
    try:
        status = path.stat()
        return _read(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise InputError(f"corpus.tokenizer: {path} cannot be read ({error.strerror}); correct the path") from None


@lru_cache(maxsize=8)
def _read(path: Path, size: int, mtime_ns: int) -> dict[str, Any]:
    """Read again where the file has changed."""
    try:
        content = json.loads(path.read_bytes())
        json_ids(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"corpus.tokenizer: {path} is no {JSON_NAME} of Hugging Face's tokenizers (no JSON object with model.vocab "
            f"and added_tokens); give another file"
        ) from None
    return dict(content)


def json_ids(content: dict[str, Any]) -> int:
    """One more than the highest id of a tokenizer.json's content."""
    ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])]
    if not all(type(number) is int and 0 <= number < MOST << 4 for number in ids):
        raise ValueError("ids are no whole numbers")
    return max(ids) + 1


def names_set(source: str) -> bool:
    """Whether a source is a labelled set."""
    return source.partition(":")[0] in SETS


def misspelt(source: str, wanted: bool) -> str:
    """A hint at the set that is meant by a source that is none; "" where it is text, as it may be unless a set is
    `wanted`."""
    from data.sources.schemes import SCHEMES

    name, colon, rest = source.partition(":")
    if name in SCHEMES or "/" in name or rest.startswith("//") or os.path.exists(os.path.expanduser(source)):
        return ""
    hint, of_all = nearest(name, [*SETS]), nearest(name, [*SETS, *SCHEMES])
    if "did you mean" in of_all:
        return hint if hint == of_all and (colon or wanted) else ""
    return hint if colon and wanted else ""
