"""The DeepSpeed engine against a plain PyTorch loop: guards every upgrade of either."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from scaling.rundir.launcher import Ranks
from scaling.study.schedule import learning_rate
from scaling.study.training import Training
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.optimizers import parameter_groups

ROWS, CONTEXT, STEPS = 4, 64, 50
CPU = torch.device("cpu")


def training(**changes: object) -> Training:
    settings = {"lr": 3e-3, "warmup_tokens": 10 * ROWS * CONTEXT, "batch_tokens": ROWS * CONTEXT, "grad_clip": 0.5}
    return Training(**(settings | changes))


def batches() -> torch.Tensor:
    """[STEPS, ROWS, CONTEXT + 1] of tokens with some structure, so that the loss falls."""
    generator = np.random.default_rng(0)
    start = generator.integers(0, 257, (STEPS, ROWS, 1))
    return torch.from_numpy((start + np.arange(CONTEXT + 1) * generator.integers(1, 4, (STEPS, ROWS, 1))) % 257)


def plain_loop(arch: str, settings: Training, steps: int = STEPS) -> list[tuple[float, float]]:
    """(loss, gradient norm) of every step, in plain PyTorch, nothing of the engine."""
    model = build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16), seed=0)
    exempt = model.no_weight_decay()
    named = dict(model.named_parameters())
    decayed = {"params": [named[n] for n in named if n not in exempt], "weight_decay": settings.weight_decay}
    free = {"params": [named[n] for n in named if n in exempt], "weight_decay": 0.0}
    groups = [decayed, free] if exempt else [decayed]
    optimizer = torch.optim.AdamW(groups, betas=tuple(settings.betas), eps=settings.eps, fused=True)
    losses = []
    for i, tokens in enumerate(batches()[:steps], start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i, settings)
        loss = model(input_ids=tokens[:, :-1], targets=tokens[:, 1:]).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), norm.item()))
    return losses


def engine_loop(
    arch: str, settings: Training, steps: int = STEPS, recompute: bool = False
) -> list[tuple[float, float]]:
    model = build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16), seed=0)
    model.decoder.gradient_checkpointing = recompute
    engine = Engine(model, settings, ROWS, CPU, start_distributed("cpu"))
    losses = []
    for i, tokens in enumerate(batches()[:steps], start=1):
        loss, norm = engine.step(tokens, learning_rate(i, settings))
        losses.append((loss.item(), float(norm)))
    return losses


def assert_equal_steps(actual: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    (losses, norms), (expected_losses, expected_norms) = np.array(actual).T, np.array(expected).T
    assert expected_losses[-1] < expected_losses[0] - 0.2, "the reference must learn, else equality says nothing"
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-6)


@pytest.mark.parametrize("arch", ARCHS)
def test_first_50_steps_equal_a_plain_loop(arch: str) -> None:
    expected = plain_loop(arch, training())
    assert any(norm > 0.5 for _, norm in expected), "the clip must act on some step"
    assert_equal_steps(engine_loop(arch, training()), expected)


@pytest.mark.parametrize("arch", ["llama", "hgrn2", "mamba2"])
def test_first_50_steps_of_zero_equal_a_plain_loop(arch: str) -> None:
    """With a clip that never acts. Where it does, ZeRO multiplies gradients by 1 / (norm / clip) instead of
    clip / norm: one unit in the last place, which HGRN2 turns into 1e-3 within 30 steps (plain loops do as well)."""
    expected = plain_loop(arch, training(grad_clip=1e3))
    assert_equal_steps(engine_loop(arch, training(grad_clip=1e3, zero_stage=1)), expected)


def test_first_50_steps_of_zero_with_clipping() -> None:
    expected = plain_loop("llama", training(lr=1e-3))
    assert sum(norm > 0.5 for _, norm in expected) >= 10
    assert_equal_steps(engine_loop("llama", training(lr=1e-3, zero_stage=1)), expected)


def test_stage_2_equals_a_plain_loop() -> None:
    changes = {"grad_clip": 1e3, "zero_stage": 2}
    assert_equal_steps(engine_loop("tnl", training(**changes)), plain_loop("tnl", training(**changes)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputed_activations_change_no_bit(precision: str) -> None:
    plain, again = (engine_loop("hgrn2", training(precision=precision, zero_stage=1), 20, r) for r in (False, True))
    assert plain == again


@pytest.mark.parametrize("stage", [0, 1])
def test_gradient_accumulation_changes_only_the_order_of_sums(stage: int) -> None:
    whole = np.array(engine_loop("llama", training(zero_stage=stage), 20))
    halves = np.array(engine_loop("llama", training(zero_stage=stage, micro_batch_tokens=2 * CONTEXT), 20))
    np.testing.assert_allclose(halves, whole, rtol=2e-5)


def test_bf16_autocast_stays_near_fp32_and_keeps_fp32_parameters() -> None:
    model = build_model(preset("hgrn2", "14k", context_length=CONTEXT, chunk_size=16), seed=0)
    engine = Engine(model, training(precision="bf16", zero_stage=1), ROWS, CPU, start_distributed("cpu"))
    losses = [engine.step(tokens, 1e-3)[0].item() for tokens in batches()[:20]]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    reference = build_model(preset("hgrn2", "14k", context_length=CONTEXT, chunk_size=16), seed=0)
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
