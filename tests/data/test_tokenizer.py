import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from data.tokenizer import Tokenizer, get_tokenizer

from ..conftest import rank_folder

TEXT = "def f(x):\n    return x  # naïve ☃ <|endoftext|>\n"


@pytest.fixture
def cl100k(ranks: Path) -> Tokenizer:
    return get_tokenizer("cl100k_base")


def test_the_rank_file_beside_the_checkout_is_found(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the tests that need it would never run: nobody sets TIKTOKEN_CACHE_DIR for them."""
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    assert rank_folder() == shared / "data" / "tiktoken"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert rank_folder() is None


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8")))
def test_bytes_round_trip(text: str) -> None:
    tokenizer = get_tokenizer("bytes")
    ids = tokenizer.encode_array(text)
    assert ids.dtype == np.uint16 and ids.tolist() == list(text.encode()) == tokenizer.encode(text)
    assert tokenizer.decode(ids) == text


def test_bytes_sizes_and_special_ids() -> None:
    tokenizer = get_tokenizer("bytes")
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (257, 256)
    assert tokenizer.decode([104, 105, 256, 33]) == "hi<|endoftext|>!"
    assert tokenizer.decode_bytes([104, 256, 105]) == b"hi"
    assert tokenizer.decode([0xE2, 0x98]) == "\ufffd"
    assert tokenizer.n_bytes.tolist() == [1] * 256 + [0]
    assert [ids.tolist() for ids in tokenizer.encode_batch(["a", "", "é"])] == [[97], [], [195, 169]]


def test_cl100k_known_ids_and_round_trip(cl100k: Tokenizer) -> None:
    assert (cl100k.vocab_size, cl100k.eot_id, cl100k.dtype) == (100_280, 100_257, np.uint32)
    assert cl100k.encode("hello world") == [15339, 1917]
    assert cl100k.decode(cl100k.encode(TEXT)) == TEXT
    assert cl100k.n_bytes[cl100k.encode_array(TEXT)].sum() == len(TEXT.encode()) and not cl100k.n_bytes[100_257:].any()
    assert cl100k.eot_id not in cl100k.encode(TEXT)  # the text spells the token out
    batch = cl100k.encode_batch([TEXT, "", "hello world"])
    assert [ids.tolist() for ids in batch] == [cl100k.encode(TEXT), [], [15339, 1917]]
    assert cl100k.decode([15339, 100_257, 100_279, 1917]) == "hello<|endoftext|> world"


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(InputError, match=r"corpus.tokenizer: unknown tokenizer 'byte' \(did you mean 'bytes'\?\)"):
        get_tokenizer("byte")


def test_missing_rank_file_without_network_is_one_line(tmp_path: Path) -> None:
    code = "from data.tokenizer import get_tokenizer; get_tokenizer('cl100k_base')"
    dead = "http://127.0.0.1:9"  # nothing listens: every download fails at once
    environment = os.environ | {
        "TIKTOKEN_CACHE_DIR": str(tmp_path),
        "https_proxy": dead,
        "HTTPS_PROXY": dead,
        "NO_PROXY": "",
        "no_proxy": "",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("arch.errors.InputError: corpus.tokenizer")
    assert "TIKTOKEN_CACHE_DIR" in last
    assert not list(tmp_path.iterdir())
