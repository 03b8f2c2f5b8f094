"""The control variate: known expectation, the right batch for the right row, less noise."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.bigram import add_difficulty, batch_difficulty
from data.bigram import Bigram, bigram_loss, fit_bigram
from data.corpus import Corpus, prepare
from data.loader import Loader
from data.settings import CorpusSettings, Weighted
from scaling.study.spec import load_study

STUDY = """
name: control
corpus: {source: "synthetic:0:300000"}
grid: {archs: [tnl], sizes: [6k, 14k], seeds: [0, 1]}
model: {context_length: 64}
training: {batch_tokens: 512}
overrides: {by_size: {6k: {n_tokens: 20_000}, 14k: {n_tokens: 40_000}}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare(CorpusSettings(source="synthetic:0:300000"), tmp_path_factory.mktemp("study") / "corpus")


def test_each_row_gets_its_own_batch(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "control.yaml").write_text(STUDY)
    runs = load_study(str(tmp_path / "control.yaml")).runs(None)
    steps = [(run.run_id, step) for run in runs for step in (1, 7, run.n_steps)]
    curves = add_difficulty(pd.DataFrame(steps, columns=["run_id", "step"]), runs, corpus)
    mean = fit_bigram(corpus.train, 257).mean_nats()
    for row in curves.itertuples():
        seed = int(str(row.run_id)[-1])
        batch = Loader(corpus.train, 64, 8, seed).batch(row.step - 1)
        assert row.difficulty == pytest.approx(bigram_loss(corpus.train, batch, 257) - mean, abs=1e-9)


def test_difficulty_of_a_mixture_is_beside_its_mean_in_its_proportions(tmp_path: Path) -> None:
    """Over whole epochs of both sources it averages to nothing, though the sources are of unequal lengths."""
    sources = Weighted("synthetic:0:200000", 1), Weighted("stdlib:", 3)
    settings = CorpusSettings(source=sources, max_bytes=60_000, validation_fraction=0.2)
    corpus = prepare(settings, tmp_path / "corpus")
    parts = corpus.parts("train")
    model = fit_bigram(corpus.train, 257, parts=parts)
    of_parts = [bigram_loss_of(model, np.asarray(corpus.train[p.first : p.first + p.n_tokens])) for p in parts]
    assert model.mean_nats() == pytest.approx((of_parts[0] + 3 * of_parts[1]) / 4, rel=1e-9)
    loader = Loader(corpus.train, 64, 40, 0, 6.0, parts)
    difficulty = batch_difficulty(model, loader, loader.steps_available)
    assert abs(difficulty.mean()) < 0.02 < abs(of_parts[0] - of_parts[1])


@pytest.mark.parametrize(("rest_tokens", "near"), [(1 << 25, 2e-3), (20_000, 0.05)])
def test_difficulty_averages_to_nothing_over_a_split_that_is_counted_in_part(
    rest_tokens: int, near: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not counted is harder for the bigram model, by nearly a nat here, and for no other."""
    monkeypatch.setattr("analysis.bigram.REST_TOKENS", rest_tokens)
    monkeypatch.setattr("analysis.bigram.REST_STRETCH", 128)
    settings = CorpusSettings(source="stdlib:", tokenizer="bpe:2048", max_bytes=1_500_000)
    corpus = prepare(settings, tmp_path / "corpus")
    model = fit_bigram(corpus.train, 2048, len(corpus.train) // 4)
    loader = Loader(corpus.train, 64, 40, 0)
    nats = [bigram_loss_on(model, loader.batch(step)) for step in range(loader.steps_available)]
    difficulty = batch_difficulty(model, loader, len(nats))
    assert np.mean(nats) - model.mean_nats() > 0.9
    assert abs(difficulty.mean()) < near
    assert difficulty.std() < 0.9 * np.std(nats)


def test_difficulty_of_a_mixture_that_is_counted_in_part(tmp_path: Path) -> None:
    sources = Weighted("synthetic:0:200000", 1), Weighted("stdlib:", 3)
    settings = CorpusSettings(source=sources, max_bytes=400_000, validation_fraction=0.2)
    corpus = prepare(settings, tmp_path / "corpus")
    parts = corpus.parts("train")
    model = fit_bigram(corpus.train, 257, 60_000, parts)
    loader = Loader(corpus.train, 64, 40, 0, 12.0, parts)
    difficulty = batch_difficulty(model, loader, loader.steps_available)
    of_parts = [bigram_loss_of(model, np.asarray(corpus.train[p.first : p.first + p.n_tokens])) for p in parts]
    assert abs(difficulty.mean()) < 2e-3 < 0.02 < (of_parts[0] + 3 * of_parts[1]) / 4 - model.mean_nats()


def bigram_loss_on(model: Bigram, rows: np.ndarray) -> float:
    return float(model.nats(rows[:, :-1], rows[:, 1:]).mean())


def bigram_loss_of(model: Bigram, tokens: np.ndarray) -> float:
    ids = tokens.astype(np.int64)
    return float(model.nats(ids[:-1], ids[1:]).mean())


def test_difficulty_averages_to_nothing_over_the_split(corpus: Corpus) -> None:
    loader = Loader(corpus.train, 64, 8, 0)
    model = fit_bigram(corpus.train, 257)
    difficulty = batch_difficulty(model, loader, loader.steps_available)
    assert difficulty.std() > 0.005
    assert abs(difficulty.mean()) < 1e-3
    assert model.mean_nats() == pytest.approx(bigram_loss(corpus.train, np.asarray(corpus.train[:]), 257), rel=1e-9)
