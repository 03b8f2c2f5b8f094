"""Checkpoints are read ahead, once each, and refused when it is their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import analysis.evals.loaded as module
from analysis.evals.loaded import Files, ModelCache, ReadAhead, load_guarded, pinned
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import load_model
from scaling.study.spec import StudySpec

from .small_study import write_study
from .test_worker import matrix_of, work


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), 3, ", ".join(ARCHS))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str]]:
    """The (path, thread) of every checkpoint that is read."""
    entries: list[tuple[Path, str]] = []
    read: Callable[[ReadAhead, Path], Files] = ReadAhead._read

    def counted(self: ReadAhead, path: Path) -> Files:
        entries.append((path, threading.current_thread().name))
        return read(self, path)

    monkeypatch.setattr(ReadAhead, "_read", counted)
    return entries


def paths(study: StudySpec) -> list[Path]:
    return sorted(study.directory.glob("runs/*/checkpoints/*"))


def test_a_worker_reads_every_checkpoint_once_and_ahead(study: StudySpec, reads: list[tuple[Path, str]]) -> None:
    matrix = matrix_of(study)
    assert work(study, matrix)[0].n_done == len(matrix.pairs)
    assert [path for path, _ in reads] == [checkpoint.path for checkpoint, _ in matrix.checkpoints()]
    assert {name.split("_")[0] for _, name in reads[1:]} == {"reader"} and reads[0][1] == "MainThread"


def test_another_checkpoint_than_was_read_ahead_is_read(study: StudySpec, reads: list[tuple[Path, str]]) -> None:
    first, second, third = paths(study)[:3]
    ahead = ReadAhead()
    ahead.start(second)
    assert ahead.files(third).checkpoint.path == third and ahead.files(second).checkpoint.path == second
    ahead.start(first)
    assert ahead.files(first).checkpoint.path == first and [path for path, _ in reads].count(first) == 1


def test_a_damaged_checkpoint_is_reported_when_it_is_opened(study: StudySpec, tmp_path: Path) -> None:
    ahead = ReadAhead()
    ahead.start(tmp_path / "none")
    with pytest.raises(InputError, match="none: does not exist"):
        ahead.files(tmp_path / "none")
    assert ahead.files(paths(study)[0]).weights


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_all_that_follow_in_one_architectures_modules_have_the_bits_of_a_model_loaded_alone(
    study: StudySpec, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """limit: the bytes of weights that are read ahead."""
    monkeypatch.setattr(module, "MAX_BYTES", limit)
    cache = ModelCache()
    for path in paths(study):
        opened = load_guarded(path, study.directory / "corpus", "cpu", False, cache).model
        alone = load_model(path)
        for (name, ours), (other, theirs) in zip(opened.named_parameters(), alone.named_parameters(), strict=True):
            assert name == other and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        for (name, ours), (other, theirs) in zip(opened.named_buffers(), alone.named_buffers(), strict=True):
            assert name == other and torch.equal(ours, theirs)
    assert len(paths(study)) == 3 * len(ARCHS)


@pytest.mark.gpu
def test_weights_of_every_dtype_are_pinned() -> None:
    weights = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16(), "c": torch.randn(2, 2)}
    copies = pinned(weights)
    assert all(tensor.is_pinned() and torch.equal(tensor, weights[name]) for name, tensor in copies.items())
