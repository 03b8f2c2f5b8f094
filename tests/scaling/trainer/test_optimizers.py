"""Muon: its batches against the singular values that they are made of, its steps against torch.optim.Muon, and which
parameters it moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from scaling.study.spec import load_study
from scaling.study.training import Training
from scaling.trainer.optimizers import (
    COEFFICIENTS,
    EPS,
    ITERATIONS,
    MOMENTUM,
    Adam,
    AdamW,
    Muon,
    optimizer_of,
    orthogonal,
)

from .test_engine_parity import CONTEXT, batches

MUON = {"optimizer": "muon", "lr": 3e-3, "weight_decay": 0.1}


def naive(matrix: torch.Tensor) -> torch.Tensor:
    """By the singular values, in float64."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.square().sum().sqrt().clamp(min=EPS)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 12), (4, 12, 5), (1, 1, 7)])
def test_a_batch_is_orthogonal_as_its_singular_values_say(shape):
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([naive(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonal(matrices), expected, rtol=1e-9, atol=1e-10)
    singular = torch.linalg.svdvals(orthogonal(matrices))
    assert singular.min() > 0.3 and singular.max() < 1.3


def test_no_gradient_moves_nothing_and_scale_means_nothing():
    assert not orthogonal(torch.zeros(2, 3, 4)).any()
    matrices = torch.randn(2, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(orthogonal(1e-3 * matrices), orthogonal(matrices), rtol=1e-9, atol=1e-10)


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator))
        for shape in ((8, 8), (8, 8), (5, 12), (12, 5), (8, 8))
    ]


def test_steps_are_those_of_torchs_muon():
    """Both round matrix products to bf16, one matrix at a time there and in batches here."""
    ours, theirs = parameters(), parameters()
    mine = Muon([{"params": ours, "matrices": True, "weight_decay": 0.3}], lr=1e-2)
    other = torch.optim.Muon(
        theirs, lr=1e-2, weight_decay=0.3, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw", ns_steps=ITERATIONS
    )
    for i in range(6):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.sin(3 * b.detach() + i)
            b.grad = a.grad.clone()
        before = [b.detach().clone() for b in theirs]
        mine.step()
        other.step()
        for a, b, start in zip(ours, theirs, before, strict=True):
            moved = (b - start).norm()
            assert moved > 0.01 and (a - b).norm() < 1e-4 * moved
            with torch.no_grad():
                a.copy_(b)  # so that each step is compared by itself


def test_a_rate_on_the_device_is_a_rate_of_the_host_to_the_bit():
    """Graphs read it from a tensor."""
    ours, theirs = parameters(), parameters()
    rate = float(np.float32(3e-3))
    first = Muon([{"params": ours, "matrices": True, "weight_decay": 0.1}], lr=rate)
    second = Muon([{"params": theirs, "matrices": True, "weight_decay": 0.1}], lr=torch.tensor(rate))
    for a, b in zip(ours, theirs, strict=True):
        a.grad = torch.cos(a.detach())
        b.grad = a.grad.clone()
    first.step()
    second.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("kind", "coupled"), [("adam", True), ("adamw", False)])
def test_weight_decay_is_in_the_gradient_of_adam_and_beside_the_step_of_adamw(kind, coupled):
    """Against the equations in float64, over steps and a saved state."""
    model = build_model(preset("mamba2", "6k", context_length=CONTEXT, chunk_size=16), seed=0)
    settings = Training(optimizer=kind, lr=3e-3, weight_decay=0.3, betas=[0.9, 0.98], eps=1e-8)
    optimizer, exempt = optimizer_of(model, settings), model.no_weight_decay()
    assert type(optimizer) is {"adam": Adam, "adamw": AdamW}[kind]
    generator = torch.Generator().manual_seed(2)
    weights = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    means = {name: torch.zeros_like(w) for name, w in weights.items()}
    squares = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(1, 5):
        for name, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator)
            w, decay, g = weights[name], 0.0 if name in exempt else 0.3, p.grad.double()
            if coupled:
                g = g + decay * w
            else:
                w *= 1 - 3e-3 * decay
            means[name].lerp_(g, 0.1)
            squares[name].lerp_(g * g, 0.02)
            w -= 3e-3 * means[name] / (1 - 0.9**step) / ((squares[name] / (1 - 0.98**step)).sqrt() + 1e-8)
        optimizer.step()
        saved = optimizer.state_dict()
        optimizer = optimizer_of(model, settings)
        optimizer.load_state_dict(saved)
    assert exempt and len(exempt) < len(weights)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().double(), weights[name], rtol=1e-5, atol=1e-6)


NARROW = ("embedding", "lm_head", "norm", "conv", "gamma", "theta", "gate.down", "gate.up", "tpe", "select", ".step")
NARROW += ("A_log", "dt_bias", ".D", "mixer.decay", "mixer.gate")


@pytest.mark.parametrize("arch", ARCHS)
def test_muon_moves_the_hidden_layers_matrices_and_adamw_the_rest(arch):
    model = build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16), seed=0)
    named, hidden = dict(model.named_parameters()), model.matrices()
    assert hidden <= set(named) and not hidden & model.no_weight_decay()
    assert all(named[name].dim() == 2 for name in hidden)
    assert not [name for name in hidden if any(word in name for word in NARROW)]
    assert any(name.endswith("mixer.out.weight") for name in hidden)
    assert not any("project.input" in name for name in hidden) or arch in ("hgrn1", "lru")  # several matrices elsewhere
    optimizer = optimizer_of(model, Training(**MUON))
    of_muon = {id(p) for group in optimizer.param_groups if group["matrices"] for p in group["params"]}
    assert of_muon == {id(named[name]) for name in hidden}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(named)


def test_the_rest_moves_as_adamw_moves_it():
    def trained(kind: str) -> tuple[dict[str, torch.Tensor], set[str]]:
        model = build_model(preset("tnl", "14k", context_length=CONTEXT, chunk_size=16), seed=0)
        optimizer = optimizer_of(model, Training(**(MUON | {"optimizer": kind})))
        tokens = batches()[0]
        model(input_ids=tokens[:, :-1], targets=tokens[:, 1:]).loss.backward()
        optimizer.step()
        assert type(optimizer) is {"muon": Muon, "adamw": AdamW}[kind]
        return {name: p.detach() for name, p in model.named_parameters()}, model.matrices()

    (muon, hidden), (adamw, _) = trained("muon"), trained("adamw")
    for name, weight in muon.items():
        assert torch.equal(weight, adamw[name]) is (name not in hidden), name


def test_sharded_matrices_are_refused_in_one_line(tmp_path):
    text = "name: s\ncorpus: {source: 'synthetic:0:100000'}\ngrid: {archs: [llama], sizes: [6k]}\n"
    path = tmp_path / "s.yaml"
    path.write_text(text + "training: {n_tokens: 20N, lr: 1e-3, optimizer: muon, zero_stage: 1}\n")
    with pytest.raises(
        InputError, match="zero_stage=1 of llama/6k cuts matrices up, and optimizer muon moves whole ones"
    ):
        load_study(path).runs()
    path.write_text(text + "training: {n_tokens: 20N, lr: 1e-3, optimizer: muons}\n")
    with pytest.raises(InputError, match=r"training\.optimizer"):
        load_study(path)
