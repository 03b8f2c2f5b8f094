"""The exported tokenizers, as transformers opens them, against the ones the corpora are made with."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from data.hf_tokenizer import tokenizer_files, write_tokenizer
from data.tokenizer import Cl100kTokenizer, get_tokenizer

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
]
# what the pattern tells apart, more often than random characters would bring it
PIECES = st.sampled_from(
    ["'", "'s", " ", "  ", "\n", "\r\n", "\t", "x", "Ä", "9", "１", "<|endoftext|>", "中", "-", "\u00a0"]
)
TEXT = st.lists(PIECES | st.text(st.characters(codec="utf-8"), max_size=8), max_size=30).map("".join)


def opened(name: str, directory: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    write_tokenizer(name, directory)
    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.fixture(scope="module", params=["bytes", "cl100k_base"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "cl100k_base":
        request.getfixturevalue("ranks")
    return request.param


@pytest.fixture(scope="module")
def exported(name: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return opened(name, tmp_path_factory.mktemp(name))


def same(name: str, exported: Any, text: str) -> None:
    expected = get_tokenizer(name).encode(text)
    assert exported(text)["input_ids"] == expected == exported.encode(text)
    assert exported.decode(expected) == text


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_ours(name: str, exported: Any, text: str) -> None:
    same(name, exported, text)


def test_ids_are_ours_for_any_text(name: str, exported: Any) -> None:
    @settings(max_examples=300)
    @given(TEXT)
    def check(text: str) -> None:
        same(name, exported, text)

    check()


def test_ids_are_ours_on_real_text(name: str, exported: Any) -> None:
    for file in sorted(Path(os.__file__).parent.glob("[a-c]*.py")):
        same(name, exported, file.read_text(encoding="utf-8"))


def test_end_of_text_is_an_id_and_never_a_text(name: str, exported: Any) -> None:
    ours = get_tokenizer(name)
    assert exported.eos_token_id == exported.pad_token_id == ours.eot_id
    assert exported.all_special_ids == [ours.eot_id]
    assert ours.eot_id not in exported("<|endoftext|>")["input_ids"]
    ids = [*ours.encode("one"), ours.eot_id, *ours.encode("two")]
    assert exported.decode(ids) == "one<|endoftext|>two" == ours.decode(ids)
    assert exported.decode(ids, skip_special_tokens=True) == "onetwo"


def test_padding_ids_have_no_token_and_broken_characters_are_replaced(name: str, exported: Any) -> None:
    ours = get_tokenizer(name)
    assert max(exported.get_vocab().values()) == ours.eot_id
    for ids in (
        [*ours.encode("☃")[:-1], *ours.encode(" x")],
        [*ours.encode("a"), *range(ours.eot_id + 1, ours.vocab_size)],
    ):
        assert exported.decode(ids) == ours.decode(ids)


def test_a_batch_is_padded_with_end_of_text_behind_a_mask(name: str, exported: Any) -> None:
    ours = get_tokenizer(name)
    batch = exported(["hello world, again", "a"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}  # what a model takes
    long, short = ours.encode("hello world, again"), ours.encode("a")
    # on the left: what is generated follows the prompt
    assert batch["input_ids"] == [long, [ours.eot_id] * (len(long) - 1) + short]
    assert [sum(mask) for mask in batch["attention_mask"]] == [len(long), 1]


def test_merges_cannot_come_in_another_order(name: str) -> None:
    """tiktoken merges the leftmost of equally good neighbours, `tokenizers` the pair listed first.

    They would differ where a token is both left + middle and middle + right of three neighbours left, middle, right,
    and the neighbours can stand so, which is where the earlier merges of the three's bytes lead to them.
    """
    ours = get_tokenizer(name)
    if not isinstance(ours, Cl100kTokenizer):
        assert json.loads(tokenizer_files(name)["tokenizer.json"])["model"]["merges"] == []
        return
    ids = {ours.decode_bytes([i]): i for i in range(ours.n_ordinary)}

    def merged(text: bytes, below: int) -> list[bytes]:
        parts = [text[i : i + 1] for i in range(len(text))]
        while True:
            ranks = [(ids.get(a + b, below), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
            rank, i = min(ranks, default=(below, 0))
            if rank >= below:
                return parts
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    overlaps = [
        (token, [token[:-n], token[:n], token[n:]])
        for token in ids
        for n in range(1, len(token))
        if token.endswith(token[:n]) and token[:-n] in ids and token[:n] in ids and token[n:] in ids
    ]
    assert len(overlaps) > 5000
    for token, three in overlaps:
        if len(set(three)) > 1:
            assert merged(b"".join(three), ids[token]) != three, token


def test_the_files_are_frozen_and_written_without_heavy_imports(tmp_path: Path) -> None:
    digest = hashlib.sha256(tokenizer_files("bytes")["tokenizer.json"]).hexdigest()
    assert digest == "49eb25fc51ad6f840ae960129e3a499ded5a606b2f32bd588b2602049c53cdd8"
    code = (
        "import sys; from pathlib import Path; from data.hf_tokenizer import write_tokenizer; "
        f"write_tokenizer('bytes', Path({str(tmp_path)!r})); "
        "assert not {'torch', 'transformers', 'tokenizers', 'tiktoken'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for file, content in tokenizer_files("bytes").items():
        assert (tmp_path / file).read_bytes() == content


def test_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown tokenizer 'gpt2'"):
        write_tokenizer("gpt2", tmp_path)
    assert list(tmp_path.iterdir()) == []
