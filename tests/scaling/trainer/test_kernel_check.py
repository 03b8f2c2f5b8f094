"""Kernels are held against PyTorch's own operations before a model is first trained on a GPU."""

import importlib
from dataclasses import replace

import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.ops import common
from arch.presets import preset
from scaling.trainer import kernel_check
from scaling.trainer.kernel_check import check_kernels

CPU = torch.device("cpu")
SHAPE = dict(d_model=64, n_layers=3, n_heads=1, d_ffn=128, vocab_size=257, context_length=96)


def test_a_cpu_has_nothing_to_check_and_both_roundings_agree_there():
    config = preset("hgrn2", "70m", **SHAPE)
    assert check_kernels(config, CPU, bf16=True, micro_rows=2) is None
    rows = kernel_check._compare(replace(config, norm_eps=1.0), CPU, True, 2, 96, resets=True)
    assert [row["tensor"] for row in rows][:2] == ["the loss", "the gradient of decoder.embedding.weight"]
    assert all(row["error"] == row["rounding"] < 0.03 and row["share"] <= 1 for row in rows)


def test_images_in_patches_are_checked_in_as_many_rows_as_their_kernels_need(monkeypatch):
    """4 x 4 patches of images of 8 x 8 pixels."""
    encoder = {"n_classes": 3, "image": (8, 8, 3), "patch": 2}
    config = preset("hgrn2", "70m", **SHAPE | {"context_length": 192}, encoder=encoder)
    monkeypatch.setattr(kernel_check, "SUM_NORM_ROWS", 5 * 16)
    monkeypatch.setattr(kernel_check, "sum_norm_stages", lambda width: 1)
    seen = []
    monkeypatch.setattr(torch, "randint", lambda high, shape, **_: seen.append(shape) or torch.zeros(shape).long())
    kernel_check._compare(replace(config, norm_eps=1.0), CPU, True, 7, 192, resets=False)
    assert seen == [(5, 193)]


def test_kernels_can_be_switched_off():
    with common.without_kernels():
        assert common.device_obstacle(CPU) == "they are switched off (ARCH_KERNELS=off)"
    assert common.device_obstacle(CPU) != "they are switched off (ARCH_KERNELS=off)"


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """No model was checked before."""
    import triton

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    return tmp_path / "checked-models"


@pytest.mark.gpu
@pytest.mark.parametrize("arch", ARCHS)
def test_right_kernels_are_noted_once(arch, notes):
    config, device = preset(arch, "70m", **SHAPE), torch.device("cuda", 0)
    line = check_kernels(config, device, bf16=True, micro_rows=4)
    assert line is not None and line.startswith("kernels checked on this GPU in ")
    assert len(list(notes.iterdir())) == 1
    assert check_kernels(config, device, bf16=True, micro_rows=4) is None


@pytest.mark.gpu
def test_wrong_kernels_train_nothing(notes, monkeypatch):
    operation = importlib.import_module("arch.ops.gated_attention.operation")
    right = operation._by_kernels

    def wrong(*arguments):
        out, state = right(*arguments)
        return out.roll(1, 1), state

    monkeypatch.setattr(operation, "_by_kernels", wrong)
    with pytest.raises(InputError, match=r"the kernels of hgrn2 compute wrong numbers on this .*ARCH_KERNELS=off"):
        check_kernels(preset("hgrn2", "70m", **SHAPE), torch.device("cuda", 0), bf16=True, micro_rows=4)
    assert not notes.exists()
