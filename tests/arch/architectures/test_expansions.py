"""HGRN2's table 2: what each expansion costs, and how it starts. Their equations: test_ablations.py."""

import math

import pytest
import torch

from arch.model.lm import build_model
from arch.presets import preset
from tests.arch.architectures.test_ablations import EXPANSIONS, REAL, normal

# HGRN2, table 2; lr with r = d / (n + 1)
TABLE_2 = {
    "naive": lambda d, n: n * d * d,
    "lr": lambda d, n: d * (d // (n + 1)) * (n + 1),
    "glt": lambda d, n: d * d,
    "glti": lambda d, n: d * d + n * n,
    "krp": lambda d, n: n * d,
    "kp": lambda d, n: d * d + n,
}


@pytest.mark.parametrize("kind", EXPANSIONS)
@pytest.mark.parametrize("copies", [1, 4, 8])
def test_parameters_of_an_expansion_are_table_2s(kind, copies):
    d = 360  # divisible by all of n and n + 1
    changes = REAL | {"d_ffn": 64, "expansion": kind, "expand_ratio": copies, "d_model": d, "n_heads": 1, "n_layers": 1}
    mixer = build_model(preset("hgrn1", "25k", **changes), seed=0).decoder.layers[0].mixer
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in mixer.project.items()}
    assert sizes == dict.fromkeys(("input", "forget", "gate"), TABLE_2[kind](d, copies))
    if kind == "lr":
        assert sizes["input"] == d * d
    assert sum(p.numel() for p in mixer.parameters()) == sum(sizes.values()) + d * d


@pytest.mark.parametrize("kind", EXPANSIONS)
@torch.no_grad()
def test_expansions_start_as_wide_as_a_dense_projection(kind):
    """Standard deviation of the whole output on unit inputs, mean over seeds (KP and GLTI have few random factors)."""
    squares = []
    for seed in range(8):
        changes = REAL | {
            "d_ffn": 64,
            "expansion": kind,
            "expand_ratio": 8,
            "d_model": 128,
            "n_heads": 1,
            "n_layers": 1,
        }
        mixer = build_model(preset("hgrn1", "25k", **changes), seed).decoder.layers[0].mixer
        squares.append(mixer.project["forget"].double()(normal(50, 128, seed=seed)).square().mean())
    assert torch.stack(squares).mean().sqrt() == pytest.approx(0.02 * math.sqrt(128), rel=0.15)
