"""Held-out loss, perplexity of a text and extrapolation, against the model called directly, token by token."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf

from analysis.bigram import ensure_baseline
from analysis.evals.losses import default_lengths, spans
from analysis.evals.model import LoadedModel, load_guarded
from analysis.evals.registry import make_tasks
from analysis.evals.task import TaskContext
from arch.errors import InputError
from data.bigram import bigram_loss
from data.corpus import Corpus, open_corpus, prepare
from data.files import write_json
from data.mixture import whole
from data.settings import CorpusSettings, Weighted
from data.windows import batches, packed, part_of, unpacked, window_starts
from scaling.study.spec import StudySpec

from .small_study import CONTEXT, write_study

TEXT = "The cat sat on the mät.\n " * 9 + "And  then it left."


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), steps=1)


@pytest.fixture(scope="module")
def corpus(study: StudySpec) -> Corpus:
    return open_corpus(study.directory / "corpus")


@pytest.fixture(params=["llama", "tnl"])
def model(request: pytest.FixtureRequest, study: StudySpec, corpus: Corpus) -> LoadedModel:
    path = study.directory / f"runs/{request.param}-14k-c32-s0/checkpoints/00000001"
    return load_guarded(path, corpus, "cpu", False)


def evaluate(
    model: LoadedModel, study: StudySpec, name: str, data: Path | None = None, **settings: Any
) -> dict[str, Any]:
    (task,) = make_tasks([name], TaskContext(study.directory / "corpus", data, {name: settings}))
    values = task.evaluate(model, task.prepare(model.tokenizer))
    json.dumps(values, allow_nan=False)
    return values


def nats_of(model: LoadedModel, ids: np.ndarray) -> list[float]:
    """-log p of ids[1:], in one forward pass of the whole model."""
    row = torch.from_numpy(np.asarray(ids, dtype=np.int64))
    with torch.no_grad():
        logits = model.model(input_ids=row[None, :-1]).logits[0]
    return nnf.cross_entropy(logits, row[1:], reduction="none").tolist()


def test_windows_are_fixed_whole_and_spread() -> None:
    starts = window_starts(whole(1001), 10, 200)
    assert len(starts) == 20
    assert (starts % 10 == 0).all() and (np.diff(starts) >= 10).all()
    assert starts[0] == 0 and starts[-1] >= 900 and starts[-1] + 11 <= 1001
    assert window_starts(whole(1001), 10, 10**9).tolist() == list(range(0, 1000, 10))
    assert window_starts(whole(1001), 10, 1).tolist() == [0]
    with pytest.raises(InputError, match="too few for one window"):
        window_starts(whole(10), 10, 200)


def test_validation_equals_the_model_called_directly(model: LoadedModel, study: StudySpec, corpus: Corpus) -> None:
    values = evaluate(model, study, "validation", validation_tokens=100 * CONTEXT, batch_rows=7)
    nats, targets = [], []
    for start in window_starts(corpus.parts("validation"), CONTEXT, 100 * CONTEXT):
        ids = np.asarray(corpus.validation[start : start + CONTEXT + 1])
        nats += nats_of(model, ids)
        targets += ids[1:].tolist()
    n_bytes = sum(token < 256 for token in targets)
    assert 256 in targets, "the windows should hold an end of text, which has no bytes"
    assert values["n_tokens_scored"] == len(targets) == 100 * CONTEXT and values["n_windows"] == 100
    assert values["n_bytes_scored"] == n_bytes < len(targets)
    assert values["loss"] == pytest.approx(np.mean(nats), rel=1e-6)
    assert values["perplexity"] == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    assert values["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / n_bytes, rel=1e-6)
    by_window = np.reshape(nats, (100, CONTEXT)).sum(1)
    np.testing.assert_allclose(unpacked(values["window_nats"]), by_window, rtol=2e-6)
    assert len(values["window_nats"]) == 4 * math.ceil(4 * 100 / 3)


def test_a_mixture_is_scored_in_its_proportions_and_by_source(model: LoadedModel, tmp_path: Path) -> None:
    sources = Weighted("synthetic:0:40000", 2, name="a"), Weighted("synthetic:1:40000", 1, name="b")
    mixed = prepare(CorpusSettings(source=sources, validation_fraction=0.2), tmp_path / "corpus")
    parts = mixed.parts("validation")

    def scored(name: str, **settings: Any) -> dict[str, Any]:
        (task,) = make_tasks([name], TaskContext(tmp_path / "corpus", None, {name: settings}))
        return dict(task.evaluate(model, task.prepare(model.tokenizer)))

    values = scored("validation", validation_tokens=30 * CONTEXT, batch_rows=7)
    starts = window_starts(parts, CONTEXT, 30 * CONTEXT)
    nats = np.array([sum(nats_of(model, np.asarray(mixed.validation[s : s + CONTEXT + 1]))) for s in starts])
    for i, name in enumerate("ab"):
        source_nats, source_values = nats[part_of(parts, starts) == i], values["by_source"][name]
        assert source_values["n_windows"] == len(source_nats) == (20, 10)[i]
        assert source_values["loss"] == pytest.approx(source_nats.mean() / CONTEXT, rel=1e-6)
    assert values["loss"] == pytest.approx(nats.mean() / CONTEXT, rel=1e-6) and values["n_windows"] == 30
    longer = scored("extrapolate", lengths=[CONTEXT, 2 * CONTEXT], n_tokens=60 * CONTEXT)[f"perplexity@{2 * CONTEXT}"]
    wanted = [nats_of(model, np.asarray(mixed.validation[s : s + 2 * CONTEXT + 1]))
              for s in window_starts(parts, 2 * CONTEXT, 60 * CONTEXT)]  # fmt: skip
    assert longer == pytest.approx(math.exp(np.mean(wanted)), rel=1e-5)


def test_windows_are_packed_exactly() -> None:
    values = np.random.default_rng(0).gamma(50, 30, 2_000)
    assert unpacked(packed(values)).tolist() == values.astype(np.float32).tolist()
    assert len(packed(values)) == 10_668  # of 2,000 windows
    with pytest.raises(ValueError):
        unpacked("not base64!")


def test_a_model_that_diverged_has_no_number(model: LoadedModel, study: StudySpec, tmp_path: Path) -> None:
    with torch.no_grad():
        next(model.model.parameters()).fill_(math.nan)
    assert (
        evaluate(model, study, "validation", validation_tokens=CONTEXT, batch_rows=1).items()
        >= {
            "loss": None,
            "perplexity": None,
            "bits_per_byte": None,
            "reason": "the loss is not finite",
        }.items()
    )
    (tmp_path / "t.txt").write_text(TEXT)
    assert evaluate(model, study, "perplexity", tmp_path, file="t.txt")["word_perplexity"] is None
    assert evaluate(model, study, "extrapolate", lengths=[32])["perplexity@32"] is None


@pytest.mark.parametrize(
    ("n", "window", "stride", "expected"),
    [
        (10, 4, 4, [(0, 4), (4, 4), (6, 2)]),  # the last is moved back to be whole
        (8, 4, 4, [(0, 4), (4, 4)]),
        (10, 4, 2, [(0, 4), (2, 2), (4, 2), (6, 2)]),
        (9, 4, 2, [(0, 4), (2, 2), (4, 2), (5, 1)]),
    ],
)
def test_spans_score_every_token_once(n: int, window: int, stride: int, expected: list[tuple[int, int]]) -> None:
    assert list(spans(n, window, stride)) == expected
    scored = [i for start, count in expected for i in range(start + window - count, start + window)]
    assert scored == list(range(n))


@pytest.mark.parametrize("stride", [None, 8])
def test_perplexity_by_token_byte_and_word(
    model: LoadedModel, study: StudySpec, tmp_path: Path, stride: int | None
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    values = evaluate(model, study, "perplexity", tmp_path, file="text.txt", stride=stride, batch_rows=3)
    ids = np.array([256, *TEXT.encode()])
    nats = []
    for start, n in spans(len(ids) - 1, CONTEXT, stride or CONTEXT):
        nats += nats_of(model, ids[start : start + CONTEXT + 1])[-n:]
    total, n_bytes = sum(nats), len(TEXT.encode())
    assert len(nats) == n_bytes == values["n_tokens_scored"] == values["n_bytes_scored"] > len(TEXT)
    assert values["n_words_scored"] == 9 * 6 + 4
    assert values["loss"] == pytest.approx(total / n_bytes, rel=1e-6)
    assert values["byte_perplexity"] == pytest.approx(math.exp(total / n_bytes), rel=1e-5)
    assert values["bits_per_byte"] == pytest.approx(total / n_bytes / math.log(2), rel=1e-6)
    assert values["word_perplexity"] == pytest.approx(math.exp(total / 58), rel=1e-4)
    assert (values["window"], values["extrapolated"]) == (CONTEXT, False)
    assert evaluate(model, study, "perplexity", tmp_path, file="text.txt", window=64)["extrapolated"]


@pytest.mark.parametrize("name", ["perplexity", "extrapolate"])
def test_a_text_is_read_byte_by_byte(name: str, model: LoadedModel, study: StudySpec, tmp_path: Path) -> None:
    """Line ends of other systems too, as in a corpus: they are tokens, and bytes that losses are divided by."""
    content = "one mät\r\ntwo\rthree\n".encode() * 9
    (tmp_path / "text.txt").write_bytes(content)
    (task,) = make_tasks([name], TaskContext(study.directory / "corpus", tmp_path, {name: {"file": "text.txt"}}))
    prepared: Any = task.prepare(model.tokenizer)
    assert bytes(prepared.tokens[1:].tolist()) == prepared.text.encode() == content


def test_a_text_that_cannot_be_read_is_one_line(study: StudySpec, tmp_path: Path) -> None:
    def task(**settings: Any) -> Any:
        return make_tasks(["perplexity"], TaskContext(study.directory / "corpus", tmp_path, {"perplexity": settings}))[
            0
        ]

    with pytest.raises(InputError, match=r"test.jsonl does not exist: run `scaling eval fetch --tasks wikitext"):
        task().data_hash()
    with pytest.raises(InputError, match=r"my.txt does not exist: put it there"):
        task(file="my.txt").data_hash()
    with pytest.raises(InputError, match="set the data folder in the study file"):
        make_tasks(["perplexity"], TaskContext(study.directory / "corpus"))[0].data_hash()
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfd")
    tokenizer = open_corpus(study.directory / "corpus").tokenizer
    with pytest.raises(InputError, match="not UTF-8 text"):
        task(file="bad.txt").prepare(tokenizer)
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(InputError, match="holds no text"):
        task(file="empty.txt").prepare(tokenizer)
    (tmp_path / "rows.jsonl").write_text('{"page": "one "}\n{"page": "two"}\n')
    text = task(file="rows.jsonl").prepare(tokenizer)
    assert bytes(text.tokens[1:].tolist()) == b"one two"
    with pytest.raises(InputError, match="line 1 has no text 'text'"):
        task(file="rows.jsonl", text_key="text").prepare(tokenizer)
    (tmp_path / "rows.txt").write_bytes(b'\xef\xbb\xbf{"page": "one "}\n{"page": "t\xe2\x80\xa8o"}\n')
    assert task(file="rows.txt").prepare(tokenizer).text == "one t\u2028o"
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbfone")
    assert task(file="mark.txt").prepare(tokenizer).text == "one"
    (tmp_path / "half.jsonl").write_bytes(b'{"page": "\\ud800"}\n')
    with pytest.raises(InputError, match=r"half.jsonl: line 1 is not JSON"):
        task(file="half.jsonl").prepare(tokenizer)
    context = TaskContext(study.directory / "corpus", tmp_path, {"extrapolate": {"file": "rows.txt"}})
    with pytest.raises(InputError, match=r"rows.txt holds JSON lines, which this task does not read; give plain text"):
        make_tasks(["extrapolate"], context)[0].data_hash()


def test_lengths_are_doublings_around_the_training_length() -> None:
    assert default_lengths(8192) == [512 * 2**k for k in range(9)]
    assert default_lengths(64) == [64, 128, 256, 512, 1024]
    assert default_lengths(2048) == [512, 1024, 2048, 4096, 8192, 16384, 32768]


def lengths_of(values: dict[str, Any]) -> list[int]:
    return [int(name.removeprefix("perplexity@")) for name in values if name.startswith("perplexity@")]


@pytest.mark.parametrize("lengths", [[16, 32, 128], [10, 16, 56, 100]])
def test_extrapolation_scores_the_same_tokens_at_every_length(
    lengths: list[int], model: LoadedModel, study: StudySpec, corpus: Corpus
) -> None:
    """Also at lengths of which few divide the longest, as in HGRN's table 14."""
    values = evaluate(model, study, "extrapolate", lengths=lengths, n_tokens=300, batch_tokens=64)
    longest = lengths[-1]
    starts = window_starts(corpus.parts("validation"), longest, 300).tolist()
    assert values["extrapolated"] and lengths_of(values) == lengths
    for length in lengths:
        nats: list[float] = []
        for start in starts:
            for at in range(0, longest, length):  # the last window of a stretch is moved back, and scores what is new
                first = start + min(at, longest - length)
                nats += nats_of(model, np.asarray(corpus.validation[first : first + length + 1]))[start + at - first :]
        assert values["n_tokens_scored"] == len(nats) == longest * len(starts)
        assert values[f"perplexity@{length}"] == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
        scored = [corpus.validation[start + 1 : start + 1 + longest] for start in starts]
        n_bytes = sum(len(corpus.tokenizer.decode_bytes(tokens)) for tokens in scored)
        assert values[f"bits_per_byte@{length}"] == pytest.approx(sum(nats) / math.log(2) / n_bytes, rel=1e-5)
    assert values["perplexity_avg"] == pytest.approx(np.mean([values[f"perplexity@{n}"] for n in lengths]))
    assert bool(values["warnings"]) == (model.config.arch == "llama")


def test_lengths_beyond_the_text_are_counted(
    model: LoadedModel, study: StudySpec, corpus: Corpus, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("x" * 40)
    values = evaluate(model, study, "extrapolate", tmp_path, file="t.txt", lengths=[8, 40, 41])
    assert lengths_of(values) == [8, 40]
    assert values["lengths_left_out"] == [41]
    with pytest.raises(InputError, match="too few for one window of 41"):
        evaluate(model, study, "extrapolate", tmp_path, file="t.txt", lengths=[41])


def test_baseline_scores_the_windows_of_the_checkpoints_once(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "results" / "bigram.json"
    baseline = ensure_baseline(corpus.directory, path, CONTEXT, 25 * CONTEXT)
    starts = window_starts(corpus.parts("validation"), CONTEXT, 25 * CONTEXT)
    rows = np.concatenate(list(batches(corpus.validation, starts, CONTEXT, 4)))
    assert baseline["loss"] == bigram_loss(corpus.train, rows, 257)
    n_bytes = int((rows[:, 1:] < 256).sum())
    assert baseline["n_tokens_scored"] == 25 * CONTEXT
    assert baseline["bits_per_byte"] == pytest.approx(baseline["loss"] / math.log(2) * rows[:, 1:].size / n_bytes)
    write_json(path, baseline | {"loss": 1.25})
    assert ensure_baseline(corpus.directory, path, CONTEXT, 25 * CONTEXT)["loss"] == 1.25
    write_json(path, baseline | {"loss": 1.25, "corpus_fingerprint": "another"})
    assert ensure_baseline(corpus.directory, path, CONTEXT, 25 * CONTEXT) == baseline


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("perplexity-typo", "name it in evaluation.settings.perplexity-typo.file"),
        ("perplexity-a/../b", "is unknown"),
        ("perplexity-", "is unknown"),
    ],
)
def test_a_text_of_ones_own_is_named(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        make_tasks([name], TaskContext(tmp_path, tmp_path))
