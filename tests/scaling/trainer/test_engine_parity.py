"""The DeepSpeed engine against a plain PyTorch loop: guards every upgrade of either."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model import layers
from arch.model.layers import Layer, called_as_written
from arch.model.lm import build_model
from arch.ops.fused import gated_mlp
from arch.presets import preset
from scaling.rundir.launcher import Ranks
from scaling.trainer import engine as engine_module
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.optimizers import parameter_groups
from tests.arch.ops.hopper import emulate, pass_for_hopper

from .. import forks
from .step_loops import (
    CASES,
    CONTEXT,
    CPU,
    ROWS,
    Steps,
    batches,
    engine_loop,
    fused_nodes,
    plain_loop,
    small_model,
    training,
)

KINDS = ("llama", "hgrn2", "mamba2", "gated_deltanet")
OTHERS = [arch for arch in ARCHS if arch not in KINDS]
SUMS_IN_ANOTHER_ORDER = (1e-5, 1e-3)  # of gradient norms: ten steps, and all


def assert_equal_steps(actual: Steps, expected: Steps, norms_within: tuple[float, float] = (1e-6, 1e-6)) -> None:
    """norms_within: relative, of the first ten steps and of all."""
    (losses, norms), (expected_losses, expected_norms) = np.array(actual).T, np.array(expected).T
    assert expected_losses[-1] < expected_losses[0] - 0.2, "the reference must learn, else equality says nothing"
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    np.testing.assert_allclose(norms[:10], expected_norms[:10], rtol=norms_within[0])
    np.testing.assert_allclose(norms, expected_norms, rtol=norms_within[1])


@pytest.mark.parametrize("arch", [*KINDS, *(pytest.param(arch, marks=pytest.mark.slow) for arch in OTHERS)])
def test_first_steps_equal_a_plain_loop(arch: str) -> None:
    expected = plain_loop(small_model(arch), training())
    assert any(norm > 0.5 for _, norm in expected), "the clip must act on some step"
    assert_equal_steps(engine_loop(small_model(arch), training()), expected)


@pytest.mark.parametrize(("arch", "stage"), [("llama", 1), ("tnl", 2), ("mamba2", 3)])
def test_first_steps_of_zero_equal_a_plain_loop(arch: str, stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clip that never acts. Where it does, ZeRO multiplies gradients by 1 / (norm / clip) instead of
    clip / norm: one unit in the last place, which HGRN2 turns into 1e-3 within 30 steps (plain loops do as well).
    Stage 3 shares every parameter, vectors too, and is as far from the plain loop as its order of sums takes it."""
    monkeypatch.setattr(engine_module, "PERSISTENT", 0)
    expected = plain_loop(small_model(arch), training(grad_clip=1e3))
    steps = engine_loop(small_model(arch), training(grad_clip=1e3, zero_stage=stage))
    assert_equal_steps(steps, expected, SUMS_IN_ANOTHER_ORDER if stage == 3 else (1e-6, 1e-6))


@pytest.mark.parametrize("stage", [1, 3])
def test_first_steps_of_zero_with_clipping(stage: int) -> None:
    expected = plain_loop(small_model("llama"), training(lr=1e-3))
    assert sum(norm > 0.5 for _, norm in expected) >= 10
    assert_equal_steps(engine_loop(small_model("llama"), training(lr=1e-3, zero_stage=stage)), expected)


def test_the_steps_of_two_processes_equal_plain_data_parallel() -> None:
    """In fp32 with a tied head, in bf16 with one of its own, of a mixed model whose fused nodes read
    weights outside of their modules: losses within 2e-6, gradient norms within 1e-5 for ten steps, then 1e-3."""
    code, out, err = forks.run("tests.scaling.trainer.step_loops", processes=2)
    assert code == 0, err[-3000:]
    results = json.loads(out.splitlines()[-1])
    assert [case for *case, _, _ in results] == [[name, stage] for name, _, stages in CASES for stage in stages]
    for *_, plain, steps in results:
        assert_equal_steps(steps, plain, SUMS_IN_ANOTHER_ORDER)


def test_stage_3_gathers_whole_layers_and_each_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an embedding larger than two layers, which is held meanwhile."""
    monkeypatch.setattr(engine_module, "PERSISTENT", 0)
    model = build_model(preset("llama", "14k", n_layers=4, vocab_size=2000, context_length=CONTEXT), seed=0)
    engine = Engine(model, training(zero_stage=3), ROWS, CPU, start_distributed("cpu"))
    coordinator, called = engine.deepspeed_engine.optimizer.parameter_offload.param_coordinator, list[Any]()
    fetch = coordinator.fetch_sub_module

    def noted(module: torch.nn.Module, forward: bool) -> None:
        called.append((module, {parameter.ds_status.name for parameter in module.parameters()}))
        fetch(module, forward)

    monkeypatch.setattr(coordinator, "fetch_sub_module", noted)
    for tokens in batches()[:3]:  # the first records the order
        called.clear()
        engine.step(tokens, 1e-3)
    within = {part for layer in model.decoder.layers for part in layer.modules() if part is not layer}
    assert not within & {module for module, _ in called}
    of_layers = [(module, states) for module, states in called if isinstance(module, Layer)]
    assert {module for module, _ in of_layers} == set(model.decoder.layers)
    assert all("NOT_AVAILABLE" not in states for _, states in of_layers)


@pytest.mark.parametrize("stage", range(4))
def test_an_engine_that_is_dropped_leaves_no_weights(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PERSISTENT", 0)
    engine = Engine(small_model("hgrn2"), training(zero_stage=stage), ROWS, CPU, start_distributed("cpu"))
    for tokens in batches()[:3]:
        engine.step(tokens, 1e-3)
    zero = engine.deepspeed_engine.optimizer
    left = [weakref.ref(engine.model), weakref.ref(zero)]
    left += [weakref.ref(flat) for flat in zero.fp32_partitioned_groups_flat] if stage == 3 else []
    del engine, zero
    gc.collect()
    assert not any(reference() for reference in left)


@pytest.mark.parametrize("recompute", [False, True])
def test_nodes_of_a_hopper_gpu_read_weights_that_are_shared(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the projections, the MLP, embedding and loss. `layer_end` reads weights of several modules in one call:
    the hooks of stage 3 turn it off. The pass's own casts are left out, which the interpreter rounds another way."""
    pass_for_hopper(monkeypatch)
    emulate(monkeypatch)
    monkeypatch.setattr(layers, "takes_layer_end", lambda *a: pytest.fail("it reads weights that may be away"))
    taken = mock.Mock(side_effect=gated_mlp._GatedMLP.apply)
    monkeypatch.setattr(gated_mlp._GatedMLP, "apply", taken)
    steps = []
    for stage in (0, 3):
        model = build_model(preset("llama", "14k", d_ffn=88, context_length=CONTEXT, tie_embeddings=False), seed=0)
        model.decoder.gradient_checkpointing = recompute
        with fused_nodes():
            if not stage:
                monkeypatch.setattr(layers, "called_as_written", lambda module: False)
            steps.append(engine_loop(model, training(precision="bf16", grad_clip=1e3, zero_stage=stage), 3))
        monkeypatch.setattr(layers, "called_as_written", called_as_written)
    assert taken.call_count == 2 * 3 * 2 * (1 + recompute)
    np.testing.assert_allclose(steps[1], steps[0], rtol=1e-6)


def test_recomputed_activations_change_no_bit() -> None:
    runs = []
    for recompute in (0, 0.5, 1):
        model = small_model("hgrn2")
        model.decoder.gradient_checkpointing = recompute
        runs.append(engine_loop(model, training(precision="bf16", zero_stage=1), 10))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_gradient_accumulation_changes_only_the_order_of_sums(stage: int) -> None:
    whole = np.array(engine_loop(small_model("llama"), training(zero_stage=stage), 10))
    halves = np.array(engine_loop(small_model("llama"), training(zero_stage=stage, micro_batch_tokens=2 * CONTEXT), 10))
    np.testing.assert_allclose(halves, whole, rtol=2e-5)


def test_bf16_autocast_stays_near_fp32_and_keeps_fp32_parameters() -> None:
    model = small_model("hgrn2")
    engine = Engine(model, training(precision="bf16", zero_stage=1), ROWS, CPU, start_distributed("cpu"))
    losses = [engine.step(tokens, 1e-3)[0].item() for tokens in batches()[:20]]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    reference = small_model("hgrn2")
    engine = Engine(reference, training(zero_stage=1), ROWS, CPU, start_distributed("cpu"))
    exact = [engine.step(tokens, 1e-3)[0].item() for tokens in batches()[:20]]
    assert losses != exact
    np.testing.assert_allclose(losses, exact, rtol=0.02)


def test_parameters_named_by_the_model_are_not_decayed() -> None:
    model = build_model(preset("llama", "14k"), seed=0)
    decayed, free = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    named = dict(model.named_parameters())
    assert {id(p) for p in free["params"]} == {id(named[name]) for name in model.no_weight_decay()}
    assert len(decayed["params"]) + len(free["params"]) == len(named)


def test_a_batch_must_split_over_processes() -> None:
    model = build_model(preset("llama", "14k", context_length=CONTEXT), seed=0)
    with pytest.raises(InputError, match=r"training.batch_tokens: 4 sequences do not split over 3 processes"):
        Engine(model, training(), ROWS, CPU, Ranks(0, 3))
