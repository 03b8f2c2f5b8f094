"""The tokenizers of `data.tokenizer` as files that transformers opens: tokenizer.json and tokenizer_config.json.

The ids are those of `Tokenizer.encode`, for every text: "<|endoftext|>" inside a text is spelt out like any other
(split_special_tokens), and only its id means the end of a document. The ids that pad a vocabulary have no token.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from .files import write_bytes
from .tokenizer import END_OF_TEXT, Cl100kTokenizer, get_tokenizer

# cl100k_base's pattern in Oniguruma's syntax, where {1,3}+ would repeat the group and $ would end a line
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+\z|\s*[\r\n]|\s+(?!\S)|\s"
)
# one character for each byte, as GPT-2 writes them: printable Latin-1 as it is, the others from U+0100 on
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
CHARACTERS = {byte: 256 + i for i, byte in enumerate(OTHERS)}  # for str.translate of a token read as Latin-1


def write_tokenizer(name: str, directory: Path) -> None:
    """Write tokenizer "bytes" or "cl100k_base" into `directory`, which exists.

    Raises InputError as `get_tokenizer` does.
    """
    for file, content in tokenizer_files(name).items():
        write_bytes(directory / file, content, kind="tokenizer")


@cache
def tokenizer_files(name: str) -> dict[str, bytes]:
    """The files by name; the same bytes at every call, on every machine."""
    tokenizer = get_tokenizer(name)
    n_ordinary = tokenizer.n_ordinary if isinstance(tokenizer, Cl100kTokenizer) else 256
    large = n_ordinary > 256
    tokens = [tokenizer.decode_bytes([i]) for i in range(n_ordinary)]
    written = [token.decode("latin-1").translate(CHARACTERS) for token in tokens]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    words = {"type": "Split", "pattern": {"Regex": CL100K_PATTERN}, "behavior": "Isolated", "invert": False}
    end = {"id": tokenizer.eot_id, "content": END_OF_TEXT, "special": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": large,  # a word that is a token is that token, as in tiktoken
        # end-of-text stands here too, else it would get the first id after the others
        "vocab": {token: i for i, token in enumerate(written)} | {END_OF_TEXT: tokenizer.eot_id},
        "merges": _merges(tokens, written),
    }
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, byte_level]} if large else byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": model,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",  # or a batch of prompts has nothing to be continued at
        "model_input_names": ["input_ids", "attention_mask"],
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    return {"tokenizer.json": _json(content), "tokenizer_config.json": _json(config)}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _merges(tokens: list[bytes], written: list[str]) -> list[str]:
    """Every way to put a token together from two others, in the order of the tokens' ids, then of the halves'.

    tiktoken merges whichever neighbours form the lowest id; `tokenizers` merges listed pairs, first in the list first.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token in tokens:
        cuts = [i for i in range(1, len(token)) if token[:i] in ids and token[i:] in ids]
        pairs = sorted((ids[token[:i]], ids[token[i:]]) for i in cuts)
        merges += [f"{written[a]} {written[b]}" for a, b in pairs]
    return merges
