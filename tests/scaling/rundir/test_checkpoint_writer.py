"""Artifact checkpoints: what is written is what was trained, in the precision asked for, or it does not count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from arch.errors import InputError
from arch.model.lm import LanguageModel, build_model, load_model
from arch.presets import preset
from data.files import read_manifest
from data.tokenizer import get_tokenizer
from data.tokenizer.training import train_tokenizer
from scaling.rundir import checkpoint_writer
from scaling.rundir.checkpoint_writer import (
    ProbeError,
    probe_loss,
    probe_parts,
    probe_rows,
    valid_checkpoint,
    write_checkpoint,
)
from scaling.rundir.saved import Checkpoint

CPU = torch.device("cpu")
CONTEXT = 32
MANIFEST = {"schema": 1, "run_id": "r", "spec_hash": "abc", "step": 3, "n_tokens": 96}
VALIDATION = np.random.default_rng(0).integers(0, 257, 1000).astype(np.uint16)


def write(path: Path, dtype: str, arch: str = "hgrn2", spoil: bool = False) -> LanguageModel:
    model = build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16), seed=0)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):  # not the round numbers of the initialisation
            noise = torch.Generator().manual_seed(i)
            parameter += 0.01 * torch.randn(parameter.shape, generator=noise)
        if spoil:
            next(iter(model.parameters()))[0] = float("nan")
    write_checkpoint(path, model, dtype, probe_rows(VALIDATION, CONTEXT), CPU, MANIFEST, get_tokenizer("bytes"))
    return model


@pytest.mark.parametrize("arch", ["llama", "hgrn2", "cosformer2"])
def test_bf16_checkpoints_keep_in_fp32_what_the_model_names(tmp_path: Path, arch: str) -> None:
    model = write(tmp_path / "00000003", "bf16", arch)
    saved, keep = load_file(tmp_path / "00000003" / "model.safetensors"), model.keep_fp32()
    parameters = dict(model.named_parameters())
    assert saved.keys() == parameters.keys()
    for name, tensor in saved.items():
        assert tensor.dtype == (torch.float32 if name in keep else torch.bfloat16), name
        expected = parameters[name].detach()
        assert torch.equal(tensor, expected if name in keep else expected.bfloat16()), name


def test_the_probe_loss_is_that_of_the_reloaded_file(tmp_path: Path) -> None:
    rows = probe_rows(VALIDATION, CONTEXT)
    assert rows.shape == (8, CONTEXT + 1)
    assert np.array_equal(rows[1], VALIDATION[CONTEXT : 2 * CONTEXT + 1])
    trained = write(tmp_path / "00000003", "bf16")
    recorded = json.loads((tmp_path / "00000003" / "manifest.json").read_text())
    assert recorded["dtype"] == "bf16"
    assert (recorded["step"], recorded["n_tokens"], recorded["spec_hash"]) == (3, 96, "abc")
    assert probe_loss(load_model(tmp_path / "00000003").eval(), torch.from_numpy(rows)) == recorded["probe_loss"]
    in_memory = probe_loss(trained.eval(), torch.from_numpy(rows))
    assert recorded["probe_loss"] != in_memory, "bf16 must round some weight"
    assert abs(recorded["probe_loss"] - in_memory) < 0.01
    write(tmp_path / "b", "fp32")
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["probe_loss"] == in_memory


@pytest.mark.parametrize(("name", "width"), [("PROBE_NUMBERS", "d_model"), ("PROBE_LOGITS", "vocab_size")])
def test_a_large_model_reads_the_probe_in_parts(
    name: str, width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows at a time, then two; one where not even that fits."""
    model, rows = write(tmp_path / "a", "fp32").eval(), torch.from_numpy(probe_rows(VALIDATION, CONTEXT))
    whole, seen = probe_loss(model, rows), list[int]()
    model.register_forward_pre_hook(lambda _, __, given: seen.append(len(given["input_ids"])), with_kwargs=True)
    limit = 3 * CONTEXT * getattr(model.model_config, width)
    for most, wanted in ((limit, [3, 3, 2]), (10, [1] * 8)):
        monkeypatch.setattr(checkpoint_writer, name, most)
        assert probe_loss(model, rows) == pytest.approx(whole, rel=1e-6) and seen == wanted
        seen.clear()


@pytest.mark.parametrize(("name", "of_a_row"), [("PROBE_NUMBERS", 49 * 32), ("PROBE_LOGITS", 10)])
def test_a_classifier_of_images_reads_the_probe_by_patches(
    name: str, of_a_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 x 7 of 32 channels, and 10 logits."""
    encoder = {"n_classes": 10, "image": (28, 28, 3), "patch": 4}
    config = preset("hgrn2", "14k", d_model=32, context_length=28 * 28 * 3, encoder=encoder)
    rows = torch.zeros(8, 28 * 28 * 3 + 1)
    assert [len(part) for part in probe_parts(rows, config)] == [8]
    monkeypatch.setattr(checkpoint_writer, name, 3 * of_a_row)
    assert [len(part) for part in probe_parts(rows, config)] == [3, 3, 2]


def test_the_tokenizer_goes_with_the_weights(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write(tmp_path / "00000003", "bf16")
    write(tmp_path / "b", "bf16")
    manifest = read_manifest(tmp_path / "00000003")
    assert manifest is not None
    expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert manifest["files"].keys() == expected
    for name in (*expected, "manifest.json"):
        assert (tmp_path / "00000003" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    tokenizer, ours = AutoTokenizer.from_pretrained(tmp_path / "00000003"), get_tokenizer("bytes")
    text = "naïve <|endoftext|> ☃\n"
    assert tokenizer(text)["input_ids"] == ours.encode(text)
    assert tokenizer.eos_token_id == ours.eot_id
    (tmp_path / "00000003" / "tokenizer.json").write_text("{}")
    assert not valid_checkpoint(tmp_path / "00000003", "abc")


def test_a_trained_tokenizer_goes_with_the_weights_and_is_known_again(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    text = "a naïve text, and <|endoftext|> in it; 中文的文本 ☃\n"
    ours, other = (train_tokenizer("bpe:270", [words * 3]) for words in (text, text[::-1]))
    model = build_model(preset("tnl", "14k", context_length=CONTEXT, chunk_size=16, vocab_size=272), seed=0)
    path = tmp_path / "00000003"
    write_checkpoint(path, model, "bf16", probe_rows(VALIDATION, CONTEXT), CPU, MANIFEST, ours)
    manifest = read_manifest(path)
    assert manifest is not None and manifest["tokenizer"]["identity"] == ours.identity
    # nothing but the checkpoint is needed
    assert Checkpoint(path, manifest).tokenizer().encode(text) == ours.encode(text)
    assert AutoTokenizer.from_pretrained(path)(text)["input_ids"] == ours.encode(text)
    (path / "tokenizer.tiktoken").write_bytes(other.files()["tokenizer.tiktoken"])
    with pytest.raises(InputError, match="made with another tokenizer than the bpe:270 that is here"):
        Checkpoint(path, manifest).tokenizer()


def test_damage_and_another_spec_are_seen(tmp_path: Path) -> None:
    write(tmp_path / "00000003", "bf16")
    assert valid_checkpoint(tmp_path / "00000003", "abc")
    assert not valid_checkpoint(tmp_path / "00000003", "another")
    weights = tmp_path / "00000003" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert not valid_checkpoint(tmp_path / "00000003", "abc")


def test_a_model_that_is_no_number_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ProbeError):
        write(tmp_path / "00000003", "bf16", spoil=True)
    assert list(tmp_path.iterdir()) == []


def test_a_short_validation_split_gives_a_short_probe() -> None:
    assert probe_rows(VALIDATION[:20], CONTEXT).shape == (1, 20)
