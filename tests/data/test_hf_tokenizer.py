"""The exported tokenizers, as transformers opens them, against the ones the corpora are made with."""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.hf_tokenizer import tokenizer_files, write_tokenizer
from data.tokenizer import END_OF_TEXT, ByteTokenizer, Tokenizer, get_tokenizer
from data.tokenizer.json_file import open_json
from data.tokenizer.patterns import KNOWN
from data.tokenizer.ranks import PATTERN, RankTokenizer
from data.tokenizer.training import train_tokenizer

TEXTS = [
    "",
    " ",
    "hello world",
    "def f(x):\n    return x  # naïve ☃ <|endoftext|>\n",
    "<|endoftext|>",
    "a<|endoftext|>\n<|endoftext|>b <|fim_prefix|> <|endofprompt|>",
    "\r\n\r\n \t\n  x\n\n   \n ",
    "I'LL don't we'Re 'ſ x's'",  # ſ is an s where case does not count
    "0 12 123 1234 12345678 ٣٤٥٦ ⅷ½²",
    "大规模线性复杂度语言模型。\n　全角　",
    "👩‍👩‍👧 🏳️‍🌈 e\u0301 \u0000\u007f\u0085\u00a0\u200b\u2028 x",
    "=" * 70 + " " * 90 + "a" * 300 + "\n" * 40,
    # a mark on nothing, a letter of Unicode 16, half-width Kana, right to left, a flag of tags, a private character
    "\u0301x \U00010d50 ｶﾞ א‏ب \U0001f3f4\U000e0067\U000e007f \ue000\ufeff\ufffd\U0010ffff ǅ ﬁ İı ẞß",
]
# what the pattern tells apart, more often than random characters would bring it
PIECES = st.sampled_from(
    ["'", "'s", " ", "  ", "\n", "\r\n", "\t", "x", "Ä", "9", "１", "<|endoftext|>", "中", "-", "\u00a0"]
)
TEXT = st.lists(PIECES | st.text(st.characters(codec="utf-8"), max_size=8), max_size=30).map("".join)


O200K = "|".join(  # tiktoken's, copied: its encodings cannot be opened without their rank files
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        *(r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""),
    ]
)
(R50K,) = KNOWN.keys() - {PATTERN}


def opened(tokenizer: Tokenizer, directory: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    write_tokenizer(tokenizer, directory)
    return PreTrainedTokenizerFast.from_pretrained(directory)


def small() -> RankTokenizer:
    """Of words in several writings, so that merges go through them."""
    return train_tokenizer("bpe:700", [Path(argparse.__file__).read_text(), *TEXTS * 2])


@pytest.fixture(scope="module", params=["bytes", "cl100k_base", "bpe:700", "p50k_base", "o200k_base", "tokenizer.json"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """p50k_base and o200k_base: by their patterns, and by the place of their end-of-text, with tokens of our own."""
    if request.param == "cl100k_base":
        request.getfixturevalue("ranks")
    if request.param in ("bytes", "cl100k_base"):
        return get_tokenizer(request.param)
    trained = small()
    if request.param == "bpe:700":
        return trained
    if request.param == "tokenizer.json":
        folder = tmp_path_factory.mktemp("json")
        write_tokenizer(trained, folder)
        return open_json(folder / "tokenizer.json")
    end = 600 if request.param == "p50k_base" else 700  # among the ordinary ids, or behind a gap
    ranks = {token: rank + (rank >= end) for token, rank in trained.ranks.items()}
    return RankTokenizer(request.param, ranks, R50K if end == 600 else O200K, {END_OF_TEXT: end, "<|fim_prefix|>": 703})


@pytest.fixture(scope="module")
def exported(ours: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return opened(ours, tmp_path_factory.mktemp("exported"))


def same(ours: Tokenizer, exported: Any, text: str) -> None:
    expected = ours.encode(text)
    assert exported(text)["input_ids"] == expected == exported.encode(text)
    assert exported.decode(expected) == text == ours.decode(expected)
    assert ours.n_bytes[expected].sum() == len(text.encode())


def test_ids_are_ours(ours: Tokenizer, exported: Any) -> None:
    for text in TEXTS:
        same(ours, exported, text)


def test_ids_are_ours_for_any_text(ours: Tokenizer, exported: Any) -> None:
    @settings(max_examples=40)
    @given(TEXT)
    def check(text: str) -> None:
        same(ours, exported, text)

    check()


def test_end_of_text_is_an_id_and_never_a_text(ours: Tokenizer, exported: Any) -> None:
    assert exported.eos_token_id == exported.pad_token_id == ours.eot_id
    assert exported.all_special_ids == [ours.eot_id]
    assert ours.eot_id not in exported("<|endoftext|>")["input_ids"]
    ids = [*ours.encode("one"), ours.eot_id, *ours.encode("two")]
    assert exported.decode(ids) == "one<|endoftext|>two" == ours.decode(ids)
    assert exported.decode(ids, skip_special_tokens=True) == "onetwo"


def test_padding_ids_have_no_token_and_broken_characters_are_replaced(ours: Tokenizer, exported: Any) -> None:
    last = max(ours.eot_id, int(np.flatnonzero(ours.n_bytes).max()))
    assert max(exported.get_vocab().values()) == last
    for ids in ([*ours.encode("☃")[:-1], *ours.encode(" x")], [*ours.encode("a"), *range(last + 1, ours.vocab_size)]):
        assert exported.decode(ids) == ours.decode(ids)


def test_a_batch_is_padded_with_end_of_text_behind_a_mask(ours: Tokenizer, exported: Any) -> None:
    batch = exported(["hello world, again", "a"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}  # what a model takes
    long, short = ours.encode("hello world, again"), ours.encode("a")
    # on the left: what is generated follows the prompt
    assert batch["input_ids"] == [long, [ours.eot_id] * (len(long) - 1) + short]
    assert [sum(mask) for mask in batch["attention_mask"]] == [len(long), 1]


def test_the_files_are_frozen_and_written_without_heavy_imports(tmp_path: Path) -> None:
    assert json.loads(tokenizer_files(ByteTokenizer())["tokenizer.json"])["model"]["merges"] == []
    digest = hashlib.sha256(tokenizer_files(ByteTokenizer())["tokenizer.json"]).hexdigest()
    assert digest == "49eb25fc51ad6f840ae960129e3a499ded5a606b2f32bd588b2602049c53cdd8"
    code = (
        "import sys; from pathlib import Path; from data.hf_tokenizer import write_tokenizer; "
        "from data.tokenizer import get_tokenizer; "
        f"write_tokenizer(get_tokenizer('bytes'), Path({str(tmp_path)!r})); "
        "assert not {'torch', 'transformers', 'tokenizers', 'tiktoken'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for file, content in tokenizer_files(ByteTokenizer()).items():
        assert (tmp_path / file).read_bytes() == content
