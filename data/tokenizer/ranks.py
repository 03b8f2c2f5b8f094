"""Byte-level BPE through tiktoken: its own encodings, and those trained on a corpus (`bpe:V`).

tiktoken merges whichever neighbours form the token of the lowest rank; a token's rank is its id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from arch.errors import InputError
from data.vocabulary import ENCODINGS, TRAINED, padded, trained_ids

from .base import END_OF_TEXT, Tokenizer, identity_of, passage_of, rank_lines

RANKS = "tokenizer.tiktoken"  # the file of a trained tokenizer, in tiktoken's format
# The pattern of trained tokenizers: that of cl100k_base
PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"""
    r"""|\s+(?!\S)|\s"""
)
_PUBLIC = "https://openaipublic.blob.core.windows.net/"  # tiktoken's addresses: the keys of its cache
_FILES = {name: (f"encodings/{name}.tiktoken",) for name in ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")} | {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "p50k_edit": ("encodings/p50k_base.tiktoken",),
    "o200k_harmony": ("encodings/o200k_base.tiktoken",),
}


class RankTokenizer(Tokenizer):
    """A byte-level BPE of tiktoken's form; `ranks` are its ordinary tokens, the ids of `special` stand for no text."""

    def __init__(self, name: str, ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> None:
        import tiktoken

        self.name, self.ranks, self.pattern, self.special = name, dict(ranks), pattern, dict(special)
        self.eot_id = self.special[END_OF_TEXT]
        # no special token is ever read from text, but tiktoken looks for all that it knows: the fewer, the faster
        self.encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=self.ranks, special_tokens={END_OF_TEXT: self.eot_id}
        )
        n_ids = max(*self.ranks.values(), *self.special.values()) + 1
        self.vocab_size = padded(n_ids)
        self.passage_tokens = passage_of(n_ids)
        self._bytes = {rank: token for token, rank in self.ranks.items()}

    @cached_property
    def identity(self) -> str:
        return identity_of(self.ranks, self.pattern, self.special)

    def encode_array(self, text: str) -> np.ndarray:
        try:
            # an array at once, without a Python list on the way
            ids = self.encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:  # half of a surrogate pair, which encode_ordinary replaces
            ids = np.array(self.encoding.encode_ordinary(text))
        return ids.astype(self.dtype, copy=False)

    def bytes_of(self, token: int) -> bytes:
        return self._bytes.get(token, b"")

    def files(self) -> dict[str, bytes]:
        return {RANKS: rank_lines(self.ranks)} if self.name.startswith(TRAINED) else {}


def trained_tokenizer(name: str, ranks: Mapping[bytes, int]) -> RankTokenizer:
    """`bpe:V` of these ranks, which are 0 .. V - 2; end-of-text is V - 1."""
    return RankTokenizer(name, ranks, PATTERN, {END_OF_TEXT: trained_ids(name) - 1})


def read_ranks(name: str, path: Path) -> dict[bytes, int]:
    """The ranks of `bpe:V` in a file that training wrote. Raises InputError where it is something else."""
    wanted, ranks = trained_ids(name) - 1, dict[bytes, int]()
    try:
        for line in path.read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): {name} is trained with its corpus") from None
    except (ValueError, binascii.Error):
        ranks = {}
    if sorted(ranks.values()) != list(range(wanted)) or not all(bytes([i]) in ranks for i in range(256)):
        raise InputError(f"{path}: is not the rank file of {name} ({wanted:,} tokens, all bytes among them)")
    return ranks


def open_encoding(name: str) -> RankTokenizer:
    """tiktoken's encoding `name`. Raises InputError where its rank file is neither there nor to be downloaded."""
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong checksum is a ValueError
        cache = os.environ.get("TIKTOKEN_CACHE_DIR")
        where = f"TIKTOKEN_CACHE_DIR={cache} does not hold it" if cache else "TIKTOKEN_CACHE_DIR is not set"
        raise InputError(
            f"corpus.tokenizer: the rank file of {name!r} could not be downloaded ({type(error).__name__}) and "
            f"{where}; fill that folder once on a machine with a network, or use tokenizer: bytes"
        ) from error
    # its parts have no public names; those of a pinned version are checked by the tests
    return RankTokenizer(name, encoding._mergeable_ranks, encoding._pat_str, encoding._special_tokens)


def rank_files(name: str) -> list[Path]:
    """Where tiktoken keeps the files that its encoding `name` is made of, there or not; none for other tokenizers."""
    if name not in ENCODINGS:
        return []
    default = os.environ.get("DATA_GYM_CACHE_DIR") or Path(tempfile.gettempdir()) / "data-gym-cache"
    folder = Path(os.environ.get("TIKTOKEN_CACHE_DIR") or default)
    return [folder / hashlib.sha1((_PUBLIC + file).encode()).hexdigest() for file in _FILES[name]]
