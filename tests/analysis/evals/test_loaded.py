"""Checkpoints opened for evaluation: what is refused, and that files are read once and ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.evals import loaded
from analysis.evals.loaded import PROBE_TOLERANCE, Files, ModelCache, ReadAhead, load_guarded, pinned
from analysis.evals.replayed import Batches
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import load_model
from data.corpus import prepare
from data.files import MANIFEST, parse_json, read_json, sha256, write_json
from data.hf_tokenizer import tokenizer_files
from data.settings import CorpusSettings
from data.tokenizer import ByteTokenizer
from scaling.rundir.checkpoint_writer import probe_loss
from scaling.study.spec import StudySpec

from .small_study import CONTEXT, write_study
from .test_worker import matrix_of, work


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), steps=1)


@pytest.fixture
def checkpoint(study: StudySpec, tmp_path: Path) -> Path:
    """A copy of a checkpoint that a test may damage."""
    source = study.directory / "runs/llama-14k-c32-s0/checkpoints/00000001"
    target = tmp_path / "00000001"
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def seal(checkpoint: Path, **changes: object) -> None:
    """Write a manifest whose checksums fit the files: checksums alone would let them pass."""
    manifest = read_json(checkpoint / MANIFEST) | changes
    for name in manifest["files"]:
        file = checkpoint / name
        manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    write_json((checkpoint / MANIFEST), manifest)


def refusal(study: StudySpec, checkpoint: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_guarded(checkpoint, study.directory / "corpus", "cpu", False)
    assert "\n" not in str(caught.value) and str(checkpoint) in str(caught.value)
    return str(caught.value)


def test_an_intact_checkpoint_is_opened(study: StudySpec, checkpoint: Path) -> None:
    opened = load_guarded(checkpoint, study.directory / "corpus", "cpu", True)
    assert (opened.context_length, opened.tokenizer.name, opened.autocast) == (CONTEXT, "bytes", False)
    assert not opened.model.training and opened.config == load_model(checkpoint).model_config
    row = torch.arange(10)[None]
    with opened.reading():
        opened.model(row)
        opened.model.decoder(row, None, None, None, False, None)
    assert opened.meter.tokens == 20 and opened.meter.seconds > 0
    assert opened.warnings_at(CONTEXT) == [] and "LLaMA was trained at 32 tokens" in opened.warnings_at(CONTEXT + 1)[0]


def test_a_head_that_is_another_is_refused(study: StudySpec, checkpoint: Path) -> None:
    """As where weights were converted wrongly: checksums fit, the model runs, and it scores at chance level."""
    weights = load_file(checkpoint / "model.safetensors")
    name = "decoder.embedding.weight"
    weights[name] = weights[name][torch.randperm(len(weights[name]), generator=torch.Generator().manual_seed(0))]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    seal(checkpoint)
    assert "its probe loss is" in refusal(study, checkpoint)


def test_a_small_change_of_one_matrix_is_refused(study: StudySpec, checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    name = next(name for name in sorted(weights) if weights[name].ndim == 2 and "embedding" not in name)
    weights[name] = weights[name] * 3
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    seal(checkpoint)
    assert "its probe loss is" in refusal(study, checkpoint)


def test_a_configuration_that_computes_something_else_is_refused(study: StudySpec, checkpoint: Path) -> None:
    config = parse_json((checkpoint / "config.json").read_bytes())
    write_json((checkpoint / "config.json"), config | {"n_heads": config["n_heads"] * 2})
    seal(checkpoint)
    assert "its probe loss is" in refusal(study, checkpoint)


def test_a_probe_loss_within_rounding_is_accepted(study: StudySpec, checkpoint: Path) -> None:
    recorded = read_json(checkpoint / MANIFEST)["probe_loss"]
    seal(checkpoint, probe_loss=recorded + 0.9 * PROBE_TOLERANCE)
    load_guarded(checkpoint, study.directory / "corpus", "cpu", False)
    seal(checkpoint, probe_loss=recorded + 1.1 * PROBE_TOLERANCE)
    assert "its probe loss is" in refusal(study, checkpoint)


def test_a_reading_that_is_quicker_and_rounds_more_is_enough_where_it_is_near(
    study: StudySpec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = read_json(checkpoint / MANIFEST)["probe_loss"]
    exact, read = list[float](), Batches.few
    monkeypatch.setattr(loaded, "probe_loss", lambda model, rows: exact.append(probe_loss(model, rows)) or exact[-1])
    for off, again in ((0.2, False), (-0.2, False), (0.3, True), (float("nan"), True), (1e6, True)):
        monkeypatch.setattr(Batches, "few", lambda *given, off=off: read(*given) + off * PROBE_TOLERANCE)
        exact.clear()
        opened = load_guarded(checkpoint, study.directory / "corpus", "cpu", False, ModelCache(passes=Batches(print)))
        assert (exact == [pytest.approx(recorded, abs=1e-6)]) == again and opened.meter.tokens == 0
    seal(checkpoint, probe_loss=recorded + 1.1 * PROBE_TOLERANCE)
    with pytest.raises(InputError, match="its probe loss is"):
        load_guarded(checkpoint, study.directory / "corpus", "cpu", False, ModelCache(passes=Batches(print)))


def test_without_a_probe_loss_nobody_can_tell(study: StudySpec, checkpoint: Path) -> None:
    seal(checkpoint, probe_loss=None)
    assert "has no probe loss" in refusal(study, checkpoint)


def test_a_tokenizer_that_differs_is_refused(study: StudySpec, checkpoint: Path) -> None:
    path = checkpoint / "tokenizer.json"
    content = parse_json(path.read_bytes())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    write_json(path, content)
    seal(checkpoint)
    assert "differs from this program's tokenizer bytes" in refusal(study, checkpoint)
    path.write_text("{}")
    seal(checkpoint)
    assert "differs from this program's tokenizer bytes" in refusal(study, checkpoint)
    path.write_bytes(tokenizer_files(ByteTokenizer())["tokenizer.json"])
    made_with = read_json(checkpoint / MANIFEST)["tokenizer"]
    seal(checkpoint, tokenizer=made_with | {"identity": "0" * 64})
    assert "was made with another tokenizer than the bytes that is here" in refusal(study, checkpoint)
    seal(checkpoint, tokenizer=made_with)
    load_guarded(checkpoint, study.directory / "corpus", "cpu", False)


def test_another_studys_corpus_is_refused(study: StudySpec, checkpoint: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    prepare(CorpusSettings(source="synthetic:1:60000", validation_fraction=0.2), corpus)
    with pytest.raises(InputError, match="its probe loss is"):
        load_guarded(checkpoint, corpus, "cpu", False)


def test_the_next_checkpoint_of_a_configuration_takes_the_modules_of_the_last(tmp_path: Path) -> None:
    """Only its weights are read; the losses are those of a model opened by itself, after a refusal too."""
    study = write_study(tmp_path, steps=3)
    paths = [
        study.directory / f"runs/{arch}-14k-c32-s0/checkpoints/0000000{step}"
        for arch in ("tnl", "llama")
        for step in "123"
    ]
    seal(paths[1], probe_loss=99.0)
    kept, corpus, row, modules = ModelCache(), study.directory / "corpus", torch.arange(32)[None], []
    for path in paths:
        try:
            opened = load_guarded(path, corpus, "cpu", False, kept)
        except InputError as error:
            assert path == paths[1] and "probe loss" in str(error) and kept.loaded is None
            continue
        with opened.reading():
            ours, theirs = opened.model(row).logits, load_model(path)(row).logits
        assert torch.equal(ours, theirs) and opened.checkpoint == path and opened.meter.tokens == 32
        modules.append(opened.model)
    assert [modules[i] is modules[i + 1] for i in range(4)] == [False, False, True, True]  # tnl 1, 3, llama 1, 2, 3


@pytest.fixture(scope="module")
def longer_study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
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


def paths(longer_study: StudySpec) -> list[Path]:
    return sorted(longer_study.directory.glob("runs/*/checkpoints/*"))


def test_a_worker_reads_every_checkpoint_once_and_ahead(longer_study: StudySpec, reads: list[tuple[Path, str]]) -> None:
    matrix = matrix_of(longer_study)
    assert work(longer_study, matrix)[0].n_done == len(matrix.pairs)
    assert [path for path, _ in reads] == [checkpoint.path for checkpoint, _ in matrix.checkpoints()]
    assert {name.split("_")[0] for _, name in reads[1:]} == {"reader"} and reads[0][1] == "MainThread"


def test_another_checkpoint_than_was_read_ahead_is_read(longer_study: StudySpec, reads: list[tuple[Path, str]]) -> None:
    first, second, third = paths(longer_study)[:3]
    ahead = ReadAhead()
    ahead.start(second)
    assert ahead.files(third).checkpoint.path == third and ahead.files(second).checkpoint.path == second
    ahead.start(first)
    assert ahead.files(first).checkpoint.path == first and [path for path, _ in reads].count(first) == 1


def test_a_damaged_checkpoint_is_reported_when_it_is_opened(longer_study: StudySpec, tmp_path: Path) -> None:
    ahead = ReadAhead()
    ahead.start(tmp_path / "none")
    with pytest.raises(InputError, match="none: does not exist"):
        ahead.files(tmp_path / "none")
    assert ahead.files(paths(longer_study)[0]).weights


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_all_that_follow_in_one_architectures_modules_have_the_bits_of_a_model_loaded_alone(
    longer_study: StudySpec, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """limit: the bytes of weights that are read ahead."""
    monkeypatch.setattr(loaded, "MAX_BYTES", limit)
    cache = ModelCache()
    for path in paths(longer_study):
        opened = load_guarded(path, longer_study.directory / "corpus", "cpu", False, cache).model
        alone = load_model(path)
        for (name, ours), (other, theirs) in zip(opened.named_parameters(), alone.named_parameters(), strict=True):
            assert name == other and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        for (name, ours), (other, theirs) in zip(opened.named_buffers(), alone.named_buffers(), strict=True):
            assert name == other and torch.equal(ours, theirs)
    assert len(paths(longer_study)) == 3 * len(ARCHS)


@pytest.mark.gpu
def test_weights_of_every_dtype_are_pinned() -> None:
    weights = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16(), "c": torch.randn(2, 2)}
    copies = pinned(weights)
    assert all(tensor.is_pinned() and torch.equal(tensor, weights[name]) for name, tensor in copies.items())
