"""Checkpoints opened for evaluation: what is refused, and what is read of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.evals.model import PROBE_TOLERANCE, LoadedModel, load_guarded, token_nats
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.layout import check_ids, ids_checked
from arch.model.lm import load_model
from arch.presets import preset
from arch.registry import ARCHITECTURES, register_pattern
from data.corpus import open_corpus, prepare
from data.files import MANIFEST, parse_json, read_json, sha256, write_json
from data.settings import CorpusSettings
from scaling.study.spec import StudySpec
from tests.registries import as_registered

from .small_study import CONTEXT, write_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return write_study(tmp_path_factory.mktemp("study"), 1, ", ".join(ARCHS))


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
    write_json(checkpoint / MANIFEST, manifest)


def opened(study: StudySpec, checkpoint: Path, autocast: bool = False) -> LoadedModel:
    return load_guarded(checkpoint, open_corpus(study.directory / "corpus"), "cpu", autocast)


def refusal(study: StudySpec, checkpoint: Path) -> str:
    with pytest.raises(InputError) as caught:
        opened(study, checkpoint)
    assert "\n" not in str(caught.value) and str(checkpoint) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("arch", ARCHS)
def test_an_intact_checkpoint_is_opened(study: StudySpec, arch: str) -> None:
    path = study.directory / f"runs/{arch}-14k-c32-s0/checkpoints/00000001"
    model = opened(study, path, autocast=True)
    assert (model.context_length, model.tokenizer.name, model.autocast) == (CONTEXT, "bytes", False)
    row = torch.arange(10)[None]
    with model.reading():
        assert torch.equal(model.model(row).logits, load_model(path)(row).logits) and not model.model.training
        model.model.decoder(row, None, None, None, False, None)
    assert model.n_tokens_read == 20
    warnings = model.warnings_at(CONTEXT + 1)
    assert model.warnings_at(CONTEXT) == [] and bool(warnings) == (not ARCHITECTURES[arch].constant_state)
    assert arch != "llama" or "LLaMA was trained at 32 tokens" in warnings[0]


def test_a_hybrid_is_warned_of_for_the_tokens_that_its_attention_reads(study: StudySpec) -> None:
    """Whether or not they have rotary positions; a window that training filled reads no more."""
    model = opened(study, study.directory / "runs/tnl-14k-c32-s0/checkpoints/00000001")
    with as_registered():
        for window, warned in ((0, True), (CONTEXT, False), (CONTEXT + 1, True)):
            register_pattern("mix", ["tnl", "softmax"], {"softmax": {"position": "none", "window": window}})
            warnings = replace(model, config=preset("mix", "14k")).warnings_at(CONTEXT + 1)
            assert bool(warnings) == warned and "rotary" not in "".join(warnings)


def shuffled(weights: dict[str, Any], name: str) -> None:
    weights[name] = weights[name][torch.randperm(len(weights[name]), generator=torch.Generator().manual_seed(0))]


def scaled(weights: dict[str, Any], name: str) -> None:
    weights[name] = weights[name] * 3


@pytest.mark.parametrize(("change", "embedding"), [(shuffled, True), (scaled, False)])
def test_weights_that_are_others_are_refused(change: Any, embedding: bool, study: StudySpec, checkpoint: Path) -> None:
    """As where weights were converted wrongly: checksums fit, the model runs, and it scores at chance level."""
    weights = load_file(checkpoint / "model.safetensors")
    change(weights, next(n for n in sorted(weights) if weights[n].ndim == 2 and ("embedding" in n) == embedding))
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    seal(checkpoint)
    assert "its probe loss is" in refusal(study, checkpoint)


def test_a_configuration_that_computes_something_else_is_refused(study: StudySpec, checkpoint: Path) -> None:
    config = parse_json((checkpoint / "config.json").read_bytes())
    write_json(checkpoint / "config.json", config | {"n_heads": config["n_heads"] * 2})
    seal(checkpoint)
    assert "its probe loss is" in refusal(study, checkpoint)


def test_a_probe_loss_is_needed_and_must_come_out_again(study: StudySpec, checkpoint: Path) -> None:
    recorded = read_json(checkpoint / MANIFEST)["probe_loss"]
    seal(checkpoint, probe_loss=recorded + 0.9 * PROBE_TOLERANCE)
    opened(study, checkpoint)
    seal(checkpoint, probe_loss=recorded + 1.1 * PROBE_TOLERANCE)
    assert "its probe loss is" in refusal(study, checkpoint)
    seal(checkpoint, probe_loss=None)
    assert "has no probe loss" in refusal(study, checkpoint)


def test_a_tokenizer_that_differs_is_refused(study: StudySpec, checkpoint: Path) -> None:
    made_with = read_json(checkpoint / MANIFEST)["tokenizer"]
    seal(checkpoint, tokenizer=made_with | {"identity": "0" * 64})
    assert "was made with another tokenizer than the bytes that is here" in refusal(study, checkpoint)


def test_another_studys_corpus_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    corpus = prepare(CorpusSettings(source="synthetic:1:60000", validation_fraction=0.2), tmp_path / "corpus")
    with pytest.raises(InputError, match="its probe loss is"):
        load_guarded(checkpoint, corpus, "cpu", False)


def test_nats_of_sliced_logits_are_the_same_and_ids_are_checked(
    study: StudySpec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(study, checkpoint)
    rows = np.random.default_rng(0).integers(0, 257, (3, CONTEXT + 1))
    whole = token_nats(model, rows)
    assert whole.shape == (3, CONTEXT) and whole.dtype == np.float32
    monkeypatch.setattr("analysis.evals.model.MAX_LOGITS", 5 * 3 * 257)  # 5 positions at a time
    np.testing.assert_allclose(token_nats(model, rows), whole, rtol=1e-6)
    bad = torch.full((1, CONTEXT + 1), 257)
    with pytest.raises(InputError, match="token id 257 is outside the vocabulary"):
        token_nats(model, bad.numpy())
    with ids_checked():
        check_ids(bad, 257)
    with pytest.raises(InputError), ids_checked():
        check_ids(bad.float(), 257)
