"""Paired differences of held-out loss: sums against all pairs, standard errors against simulation, what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.evals.registry import make_tasks
from analysis.evals.task import TaskContext
from analysis.held_out import (
    HeldOut,
    clustered_sum,
    compare_held_out,
    documents_of,
    load_held_out,
    paired_difference,
    standard_error,
)
from arch.errors import InputError
from data.corpus import open_corpus
from data.files import read_json, write_json
from data.windows import packed
from scaling.study.spec import StudySpec

from .evals.small_study import CONTEXT, write_study


def cut(lengths: np.ndarray, window: int, n: int) -> np.ndarray:
    """[n, 2]: first and last document of contiguous windows over documents of `lengths`."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ends = np.stack([np.arange(n) * window, np.arange(1, n + 1) * window - 1], axis=1)
    return np.searchsorted(starts, ends, side="right") - 1


def test_sum_over_pairs_that_share_a_document() -> None:
    random = np.random.default_rng(0)
    documents = cut(random.integers(1, 60, 200), 16, 100)
    values = random.normal(size=100)
    shared = (documents[:, None, 0] <= documents[None, :, 1]) & (documents[None, :, 0] <= documents[:, None, 1])
    assert shared.any() and not shared.all()
    assert clustered_sum(values, documents) == pytest.approx(float(values @ shared @ values))
    alone = np.repeat(np.arange(100), 2).reshape(100, 2)
    assert standard_error(values, alone) == pytest.approx(values.std(ddof=1) / 10)


def losses(random: np.random.Generator, documents: np.ndarray, offset: float) -> np.ndarray:
    """Nats a token of two models on the same windows [2, n]: text that both find hard, and a difference by document."""
    n_documents = documents.max() + 1
    hard, apart = random.normal(0, 1.0, n_documents), random.normal(offset, 0.1, n_documents)
    mean = lambda by_document: np.array([by_document[a : b + 1].mean() for a, b in documents])  # noqa: E731
    first = 3 + mean(hard) + random.normal(0, 0.3, len(documents))
    return np.stack([first, first - mean(apart) + random.normal(0, 0.05, len(documents))])


@pytest.mark.slow
@pytest.mark.parametrize("longest", [8, 64, 200], ids=["short documents", "of some windows", "long documents"])
def test_intervals_cover_the_difference(longest: int) -> None:
    """docs/research/held-out-windows.md has the figures."""
    random, n_covered = np.random.default_rng(longest), 0
    for _ in range(2_000):
        documents = cut(random.integers(1, longest, 16 * 300), 16, 300)
        a, b = (HeldOut(str(i), nats, 16, "c") for i, nats in enumerate(losses(random, documents, 0.02)))
        result = paired_difference(a, b, documents)
        interval = result.interval()
        assert interval
        n_covered += interval[0] < 0.02 < interval[1]
    print(f"longest {longest}: covered {n_covered / 2000:.3f}")
    assert 0.92 < n_covered / 2000 < 0.98


def test_pairs_or_refuses() -> None:
    random = np.random.default_rng(1)
    documents = cut(random.integers(1, 60, 4800), 16, 300)
    a, b = (HeldOut(name, nats, 16, "corpus") for name, nats in zip("ab", losses(random, documents, 0.1), strict=True))
    one_each = np.repeat(np.arange(300), 2).reshape(300, 2)
    result = paired_difference(a, b, documents)
    assert result.value == pytest.approx(a.loss - b.loss)
    apart = np.hypot(standard_error(a.losses, documents), standard_error(b.losses, documents))
    assert result.se and result.se < apart / 3
    assert paired_difference(b, a, documents).value == pytest.approx(-result.value)
    assert 5 < result.n_effective < 300 == paired_difference(a, b, one_each).n_effective
    difference = paired_difference(a, b, np.zeros((300, 2), dtype=int))  # a single document tells of no others
    assert (difference.se, difference.interval(), difference.n_effective) == (None, None, 1)
    for other, why in (
        (replace(b, corpus="another"), "corpora"),
        (replace(b, window_tokens=32), "window lengths"),
        (replace(b, losses=b.losses[:200]), "numbers of windows"),
    ):
        with pytest.raises(InputError, match=f"a and b were scored on other windows .{why}"):
            paired_difference(a, other, documents)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), steps=1)


def store(study: StudySpec, run_id: str, nats: np.ndarray, step: int = 1, version: int = 3, **values: object) -> Path:
    (task,) = make_tasks(["validation"], TaskContext(study.directory / "corpus"))
    path = study.directory / "runs" / run_id / "evals" / f"{step:08d}" / "validation.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = {"n_windows": len(nats), "context_length": CONTEXT, "n_tokens_scored": len(nats) * CONTEXT}
    result = {"loss": 1.0, **counts, "window_nats": packed(nats), **values}
    write_json(path, {"version": version, "data_hash": task.data_hash(), "step": step, "values": result})
    return path


def test_stored_windows(study: StudySpec) -> None:
    first, second = (run.run_id for run in study.runs())
    nats = np.random.default_rng(2).gamma(100, 1, (2, 100))
    store(study, first, nats[0] + 50, step=1)
    store(study, first, nats[0], step=2)
    path = store(study, second, nats[1])
    a, b = load_held_out(study.directory, first), load_held_out(study.directory, second)
    assert a.name == f"{first}/00000002" and a.loss == pytest.approx(nats[0].mean() / CONTEXT)
    assert load_held_out(study.directory, first, 1).loss > a.loss
    result, documents = compare_held_out(study.directory, a, b), documents_of(study.directory, a)
    starts = open_corpus(study.directory / "corpus").document_starts("validation")
    assert result == paired_difference(a, b, documents) and 0 <= documents.min() <= documents.max() < len(starts) - 1

    with pytest.raises(
        InputError, match=r"00000007: no held-out loss is stored in .*; `scaling eval study STUDY --tasks"
    ):
        load_held_out(study.directory, first, 7)
    old = read_json(path)
    del old["values"]["window_nats"]
    write_json(path, old | {"version": 2})
    with pytest.raises(InputError, match=r"holds no windows \(it is of version 2 of the evaluation\)"):
        load_held_out(study.directory, second)
    store(study, second, nats[1], n_windows=99)
    with pytest.raises(InputError, match=r"validation\.json: cannot be read \(its windows are not those"):
        load_held_out(study.directory, second)
    with pytest.raises(InputError, match="was scored on corpus elsewhere"):
        compare_held_out(study.directory, replace(a, corpus="elsewhere"), replace(b, corpus="elsewhere"))
