import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from data.tokenizer import ByteTokenizer, Tokenizer, get_tokenizer, refuse_another
from data.tokenizer.ranks import PATTERN, RankTokenizer, rank_files
from data.tokenizer.training import train_tokenizer
from data.units import loss_unit
from data.vocabulary import ENCODINGS, padded, vocabulary

TEXT = "def f(x):\n    return x  # naïve ☃ <|endoftext|>\n"


@pytest.fixture
def cl100k(ranks: Path) -> Tokenizer:
    return get_tokenizer("cl100k_base")


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
    with pytest.raises(InputError, match=r"unknown tokenizer 'cl100k' \(did you mean 'cl100k_base'\?\)"):
        get_tokenizer("cl100k")
    for name in ("bpe:", "bpe:256", "bpe:1e4", "bpe:-300", "bpe:0300", "bpe:٣٠٠", "bpe:99999999999"):
        with pytest.raises(InputError, match="is not bpe:V with V from 257 "):
            vocabulary(name)


def test_the_encodings_are_tiktokens_own(ranks: Path) -> None:
    """Their names, ids and cache files are copied, so that a plan needs neither tiktoken nor a rank file."""
    import tiktoken
    from tiktoken_ext import openai_public

    assert set(ENCODINGS) == set(openai_public.ENCODING_CONSTRUCTORS)
    tokenizer = get_tokenizer("cl100k_base")
    assert isinstance(tokenizer, RankTokenizer) and tokenizer.pattern == PATTERN
    assert ENCODINGS["cl100k_base"] == tiktoken.get_encoding("cl100k_base").n_vocab
    assert rank_files("cl100k_base")[0].is_file() and rank_files("bytes") == rank_files("bpe:300") == []
    source = Path(openai_public.__file__).read_text()
    for name in ENCODINGS:
        files = inspect.getsource(openai_public.ENCODING_CONSTRUCTORS[name])
        assert f'explicit_n_vocab": {ENCODINGS[name]}' in files or "explicit_n_vocab" not in files
        assert len(rank_files(name)) == (2 if name == "gpt2" else 1)
    assert "200013, 201088" in source and ENCODINGS["o200k_harmony"] == 201088
    assert [vocabulary(name) for name in ("bytes", "cl100k_base", "gpt2", "bpe:8192", "bpe:258")] == [
        *(257, 100_280, 50_264, 8192, 264)
    ]
    assert padded(8) == 8


def test_an_identity_is_of_what_decides_the_ids() -> None:
    trained = train_tokenizer("bpe:290", [TEXT * 20])
    same = RankTokenizer("another name", trained.ranks, trained.pattern, trained.special)
    assert same.identity == trained.identity and len(same.identity) == 64
    a, b = list(trained.ranks)[-2:]
    changed = trained.ranks | {a: trained.ranks[b], b: trained.ranks[a]}
    others = [
        RankTokenizer("bpe:290", changed, trained.pattern, trained.special),
        RankTokenizer("bpe:290", trained.ranks, trained.pattern + "|x", trained.special),
        RankTokenizer("bpe:290", trained.ranks, trained.pattern, {"<|endoftext|>": 400}),
    ]
    assert len({trained.identity, ByteTokenizer().identity, *(other.identity for other in others)}) == 5
    refuse_another(trained, same.identity, "it")
    with pytest.raises(InputError, match=r"^the run was made with another tokenizer than the bpe:290 that is here"):
        refuse_another(trained, others[0].identity, "the run")


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


def test_losses_of_bytes_are_in_nats_a_byte() -> None:
    """Where all tokenizers are bytes; a run that has not begun has none."""
    assert {loss_unit(names) for names in (["bytes", "bytes"], ["bytes", None, float("nan")])} == {"nats/byte"}
    assert {loss_unit(names) for names in (["bpe:16384"], ["bytes", "gpt2"], [None], [])} == {"nats/token"}
