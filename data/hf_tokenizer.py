"""The tokenizers of `data.tokenizer` as files that transformers opens: tokenizer.json and tokenizer_config.json.

The ids are those of `Tokenizer.encode`, for every text: "<|endoftext|>" inside a text is spelt out like any other
(split_special_tokens), and only its id means the end of a document. The ids that pad a vocabulary have no token, as
have tiktoken's special tokens other than end-of-text. What `get_tokenizer` needs to open one lies beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .files import write_bytes
from .tokenizer import END_OF_TEXT, Tokenizer
from .tokenizer.base import Ids
from .tokenizer.json_file import CONFIG, JsonTokenizer, json_bytes
from .tokenizer.letters import written
from .tokenizer.patterns import oniguruma
from .tokenizer.ranks import RankTokenizer
from .vocabulary import JSON_NAME


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write `tokenizer` into `directory`, which exists."""
    for file, content in tokenizer_files(tokenizer).items():
        write_bytes(directory / file, content, kind="tokenizer")


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The files by name; the same bytes at every call, on every machine."""
    return {} if isinstance(tokenizer, Ids) else tokenizer.files() | dict(_files(tokenizer))


@lru_cache(maxsize=4)
def _files(tokenizer: Tokenizer) -> Mapping[str, bytes]:
    if isinstance(tokenizer, JsonTokenizer):
        return {JSON_NAME: json_bytes(tokenizer.content), CONFIG: json_bytes(_config(tokenizer.end))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    before: dict[str, Any] = byte_level
    ranks = {bytes([i]): i for i in range(256)}
    large = isinstance(tokenizer, RankTokenizer)
    if isinstance(tokenizer, RankTokenizer):
        ranks = tokenizer.ranks
        words = {
            "type": "Split",
            "pattern": {"Regex": oniguruma(tokenizer.name, tokenizer.pattern)},
            "behavior": "Isolated",
            "invert": False,
        }
        before = {"type": "Sequence", "pretokenizers": [words, byte_level]}
    tokens = sorted(ranks, key=ranks.__getitem__)
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
        "vocab": {written(token): ranks[token] for token in tokens} | {END_OF_TEXT: tokenizer.eot_id},
        "merges": _merges(tokens, ranks),
    }
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)],
        "normalizer": None,
        "pre_tokenizer": before,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": model,
    }
    return {JSON_NAME: json_bytes(content), CONFIG: json_bytes(_config(END_OF_TEXT))}


def _config(end: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "padding_side": "left",  # or a batch of prompts has nothing to be continued at
        "model_input_names": ["input_ids", "attention_mask"],
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }


def _merges(tokens: list[bytes], ids: Mapping[bytes, int]) -> list[str]:
    """Every way to put a token together from two others, in the order of the tokens' ids, then of the halves'.

    tiktoken merges whichever neighbours form the lowest id; `tokenizers` merges listed pairs, first in the list first.
    """
    spelling = {token: written(token) for token in tokens}
    by_id = dict(zip(ids.values(), ids, strict=True))
    merges = []
    for token in tokens:
        cuts = [i for i in range(1, len(token)) if token[:i] in ids and token[i:] in ids]
        pairs = sorted((ids[token[:i]], ids[token[i:]]) for i in cuts)
        merges += [f"{spelling[by_id[a]]} {spelling[by_id[b]]}" for a, b in pairs]
    return merges
