"""What every tokenizer does, and the simplest one: bytes.

Special tokens are never read from text: a document that contains "<|endoftext|>" spells it out, so the end-of-text id
in a stream always means the end of a document.
"""

from __future__ import annotations

import base64
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from arch.errors import InputError
from data.vocabulary import BYTES, IDS, LEAST, MOST_IDS

END_OF_TEXT = "<|endoftext|>"


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

    @property
    @abstractmethod
    def identity(self) -> str:
        """SHA-256, in hex, over all that decides which ids a text has: equal for equal tokenizers, whatever their names
        and however far their vocabularies are padded."""

    @abstractmethod
    def encode_array(self, text: str) -> np.ndarray:
        """Ids of `text`, [n] of `dtype`, without end-of-text. May be called by several threads at once."""

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """The bytes that an id stands for; none for end-of-text, other special ids, and those that pad a vocabulary."""

    @cached_property
    def n_bytes(self) -> np.ndarray:
        """int64 [vocab_size]: how many bytes each id stands for."""
        return np.array([len(self.bytes_of(token)) for token in range(self.vocab_size)])

    def files(self) -> dict[str, bytes]:
        """What a folder must hold for `get_tokenizer` to open this tokenizer there; nothing where a name is enough."""
        return {}

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode_array(text) for text in texts]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.bytes_of, map(int, ids)))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are no UTF-8 (a model may cut a character) become U+FFFD."""
        pieces: list[list[int]] = [[]]
        for token in ids:
            if token == self.eot_id:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return END_OF_TEXT.join(self.decode_bytes(piece).decode("utf-8", errors="replace") for piece in pieces)

    def described(self) -> dict[str, str | int]:
        """The tokenizer's entry in manifests."""
        sizes = {"vocab_size": self.vocab_size, "eot_id": self.eot_id}
        return {"name": self.name, **sizes, "identity": self.identity}


def refuse_another(tokenizer: Tokenizer, identity: str, what: str) -> None:
    """Raise InputError where `what` was made with a tokenizer of another identity."""
    if identity != tokenizer.identity:
        raise InputError(
            f"{what} was made with another tokenizer than the {tokenizer.name} that is here (identity {identity[:12]}, "
            f"here {tokenizer.identity[:12]}): put that one back, or start a study of another name"
        )


class ByteTokenizer(Tokenizer):
    name = BYTES
    vocab_size = LEAST
    eot_id = 256
    passage_tokens = 256

    @cached_property
    def identity(self) -> str:
        return identity_of({bytes([i]): i for i in range(256)}, "", {END_OF_TEXT: self.eot_id})

    def encode_array(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(self.dtype)

    def bytes_of(self, token: int) -> bytes:
        return bytes((token,)) if 0 <= token < 256 else b""


class Ids(Tokenizer):
    """Of a labelled set, which holds ids and no text."""

    name = IDS
    vocab_size = MOST_IDS
    eot_id = MOST_IDS - 1
    passage_tokens = 256
    identity = IDS

    def encode_array(self, text: str) -> np.ndarray:
        raise InputError("a labelled set holds ids: its models read no text")

    def bytes_of(self, token: int) -> bytes:
        return b""


def passage_of(n_ids: int) -> int:
    """Tokens of a BPE in about 256 bytes, a power of two: of few ids each is about two bytes, of many about four."""
    return 128 if n_ids <= 2048 else 64


def identity_of(ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> str:
    """SHA-256 over ranks, the pattern that cuts text into words, and special tokens."""
    digest = hashlib.sha256(rank_lines(ranks))
    digest.update(json.dumps([pattern, dict(special)], sort_keys=True).encode())
    return digest.hexdigest()


def rank_lines(ranks: Mapping[bytes, int]) -> bytes:
    """`ranks` as tiktoken's files have them: a token in base64 and its rank on each line, by rank."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)
