"""Text to token ids: raw bytes, or OpenAI's cl100k_base through tiktoken.

Special tokens are never read from text (`encode_ordinary`): a document that contains "<|endoftext|>" spells it out, so
the end-of-text id in a stream always means the end of a document. cl100k_base needs its rank file: tiktoken fetches it
once into TIKTOKEN_CACHE_DIR, after which no network is needed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arch.errors import InputError, nearest

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"
NAMES = ("bytes", "cl100k_base")
RANKS_URL = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"  # tiktoken's; its cache's key


class Tokenizer(ABC):
    """`name`, `vocab_size` (padded: what a model's embedding holds), `eot_id`, and the two directions."""

    name: str
    vocab_size: int
    eot_id: int
    passage_tokens: int  # of about 256 bytes, a power of two: no longer one may be held out and trained on (overlap)

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every id: uint16 up to 65,536 tokens, uint32 above."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    @abstractmethod
    def encode_array(self, text: str) -> np.ndarray:
        """Ids of `text`, [n] of `dtype`, without end-of-text."""

    @abstractmethod
    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` stand for; end-of-text and the padding ids of a vocabulary stand for none."""

    @cached_property
    def n_bytes(self) -> np.ndarray:
        """int64 [vocab_size]: how many bytes each id stands for."""
        return np.array([len(self.decode_bytes([token])) for token in range(self.vocab_size)])

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode_array(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are no UTF-8 (a model may cut a character) become U+FFFD."""
        pieces: list[list[int]] = [[]]
        for token in ids:
            if token == self.eot_id:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return END_OF_TEXT.join(self.decode_bytes(piece).decode("utf-8", errors="replace") for piece in pieces)


class ByteTokenizer(Tokenizer):
    name = "bytes"
    vocab_size = 257
    eot_id = 256
    passage_tokens = 256

    def encode_array(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(self.dtype)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return bytes(token for token in map(int, ids) if 0 <= token < 256)


class Cl100kTokenizer(Tokenizer):
    name = "cl100k_base"
    vocab_size = 100_280  # 100,277 of tiktoken, padded as the paper does
    eot_id = 100_257
    passage_tokens = 64
    n_ordinary = 100_256  # ids below are byte strings; above are special tokens, gaps and padding

    def __init__(self) -> None:
        self._encoding = _tiktoken_encoding(self.name)

    def encode_array(self, text: str) -> np.ndarray:
        return np.array(self._encoding.encode_ordinary(text), dtype=self.dtype)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = self._encoding.encode_ordinary_batch(list(texts), num_threads=os.cpu_count() or 1)
        return [np.array(ids, dtype=self.dtype) for ids in encoded]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return self._encoding.decode_bytes([token for token in map(int, ids) if 0 <= token < self.n_ordinary])


def _tiktoken_encoding(name: str) -> tiktoken.Encoding:
    import tiktoken

    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong checksum is a ValueError
        cache = os.environ.get("TIKTOKEN_CACHE_DIR")
        where = f"TIKTOKEN_CACHE_DIR={cache} does not hold it" if cache else "TIKTOKEN_CACHE_DIR is not set"
        raise InputError(
            f"corpus.tokenizer: the rank file of {name!r} could not be downloaded ({type(error).__name__}) and "
            f"{where}; fill that folder once on a machine with a network, or use tokenizer: bytes"
        ) from error


def rank_file(name: str) -> Path | None:
    """Where tiktoken keeps the rank file that the tokenizer called `name` reads, there or not; None: it reads none."""
    if name != Cl100kTokenizer.name:
        return None
    default = os.environ.get("DATA_GYM_CACHE_DIR") or Path(tempfile.gettempdir()) / "data-gym-cache"
    return Path(os.environ.get("TIKTOKEN_CACHE_DIR") or default) / hashlib.sha1(RANKS_URL.encode()).hexdigest()


@cache
def get_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called `name`: "bytes" or "cl100k_base".

    Raises InputError: unknown name; rank file of cl100k_base neither cached nor to be downloaded.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name == "cl100k_base":
        return Cl100kTokenizer()
    raise InputError(f"corpus.tokenizer: unknown tokenizer {name!r}{nearest(name, list(NAMES))}")
