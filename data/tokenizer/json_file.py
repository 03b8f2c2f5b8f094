"""A tokenizer.json of a byte-level BPE, used through Hugging Face's tokenizers: ids are the file's own.

Only byte-level BPE without a normalizer is taken: its ids spell the text's bytes, of which losses are counted by byte.
What a file adds around a text (a first token, padding, a cut) is left out, and special tokens are no text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError, shown
from data.vocabulary import JSON_NAME, json_ids, padded, read_json_tokenizer

from .base import END_OF_TEXT, Tokenizer, passage_of
from .letters import spelt, written

CONFIG = "tokenizer_config.json"
JSON_FILES = (JSON_NAME, CONFIG)

AROUND = dict.fromkeys(("truncation", "padding", "post_processor"))  # acts on a list of ids, not on text
DECISIVE = ("added_tokens", "normalizer", "pre_tokenizer", "decoder", "model")


class JsonTokenizer(Tokenizer):
    """`content` is a tokenizer.json's, `end` its end-of-text token. Raises ValueError where it is no byte-level BPE."""

    name = JSON_NAME

    def __init__(self, content: dict[str, Any], end: str) -> None:
        import tokenizers

        _check(content)
        self.content, self.end = content | AROUND, end
        special = {token["content"]: token["id"] for token in content["added_tokens"] if token["special"]}
        if end not in special:
            raise ValueError(f"its end-of-text token {shown(end)} is none of its special tokens")
        self.eot_id = special[end]
        n_ids = json_ids(content)
        self.vocab_size, self.passage_tokens = padded(n_ids), passage_of(n_ids)
        added = {token["id"]: token["content"].encode() for token in content["added_tokens"] if not token["special"]}
        names = {token["content"] for token in content["added_tokens"]}
        ordinary = {rank: token for token, rank in content["model"]["vocab"].items() if token not in names}
        try:
            self._bytes = {rank: spelt(token) for rank, token in ordinary.items()} | added
        except KeyError as error:
            raise ValueError(f"its vocabulary holds {error}, which stands for no byte") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(self.content))
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"Hugging Face's tokenizers refuse it: {shown(str(error))}") from None
        self._tokenizer.encode_special_tokens = True  # as ordinary text, that is

    @cached_property
    def identity(self) -> str:
        """Over the canonical JSON of what the file does to text, and the end-of-text id."""
        decisive: dict[str, Any] = {key: self.content.get(key) for key in DECISIVE} | {"eot_id": self.eot_id}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def encode_array(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encoded]

    def bytes_of(self, token: int) -> bytes:
        return self._bytes.get(token, b"")

    def files(self) -> dict[str, bytes]:
        config = {"eos_token": self.end}
        return {JSON_NAME: json_bytes(self.content), CONFIG: json_bytes(config)}


def open_json(path: Path) -> JsonTokenizer:
    """The tokenizer at `path`; a tokenizer_config.json beside it names the end-of-text token, else it must be plain
    from the file. Raises InputError, one line, where it cannot be used."""
    content = read_json_tokenizer(path)
    try:
        return JsonTokenizer(content, _end_of_text(content, path.with_name(CONFIG)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"its form is unknown ({error!r})"
        raise InputError(f"corpus.tokenizer: {path} cannot be used: {reason}") from None


def _check(content: dict[str, Any]) -> None:
    """Raise ValueError unless every text has ids that spell its bytes."""
    model = content["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or "ByteLevel" not in _types(content.get("decoder")):
        raise ValueError(f"it is no byte-level BPE, but {model.get('type')} without bytes as its alphabet")
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ValueError("its merges are drawn by chance, or tokens have marks that are no text")
    if content.get("normalizer") is not None:
        kinds = ", ".join(_types(content["normalizer"]))
        raise ValueError(f"its normalizer ({kinds}) changes the text, so that losses by byte are undefined")
    before = list(_steps(content.get("pre_tokenizer")))
    if "ByteLevel" not in [step.get("type") for step in before]:
        raise ValueError("its pre-tokenizer does not make bytes of the text")
    for step in before:
        removes = step.get("type") == "Split" and step.get("behavior") == "Removed"
        if step.get("add_prefix_space") or removes or step.get("type") not in ("ByteLevel", "Split", "Digits"):
            raise ValueError(f"its pre-tokenizer ({step.get('type')}) adds or takes away text")
    missing = [byte for byte in range(256) if written(bytes([byte])) not in model["vocab"]]
    if missing:
        raise ValueError(f"its vocabulary lacks {len(missing)} of the 256 bytes")
    for token in content["added_tokens"]:
        if not token["special"] and (token.get("lstrip") or token.get("rstrip")):
            raise ValueError(f"its token {shown(token['content'])} takes the spaces beside it away")


def _steps(part: Any) -> list[dict[str, Any]]:
    """A step, or those of a sequence."""
    if part is None:
        return []
    return list(part.get("pretokenizers") or part.get("decoders") or part.get("normalizers") or [part])


def _types(part: Any) -> list[str]:
    return [str(step.get("type")) for step in _steps(part)]


def _end_of_text(content: dict[str, Any], config: Path) -> str:
    """The end-of-text token: as the file beside says, else "<|endoftext|>", else the only special token there is."""
    special = [token["content"] for token in content["added_tokens"] if token["special"]]
    try:
        token = json.loads(config.read_bytes())["eos_token"]
        return str(token["content"] if isinstance(token, dict) else token)
    except (OSError, ValueError, KeyError, TypeError):
        if END_OF_TEXT in special or len(special) == 1:
            return END_OF_TEXT if END_OF_TEXT in special else special[0]
    raise ValueError(
        f"which of its {len(special)} special tokens ends a text is not plain: put a {CONFIG} with eos_token beside it"
    )


def json_bytes(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
