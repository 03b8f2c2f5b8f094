"""The lower bounds of HGRN's forget gates, by kind: where they start, and what holds whatever gamma is."""

import math

import pytest
import torch

from arch.architectures.common.forget_gates import lower_bounds
from arch.model.lm import build_model
from arch.presets import preset
from tests.arch.architectures.test_ablations import normal


@pytest.mark.parametrize("arch", ["hgrn1", "hgrn2"])
def test_lower_bounds_at_the_start(arch):
    """Four layers: their values, and that a gate keeps them."""
    starts = {
        "increasing": [0, 0.25, 0.5, 0.75],
        "decreasing": [0.75, 0.5, 0.25, 0],
        "only": [1 / 8, 3 / 8, 5 / 8, 7 / 8],
    }
    for kind, expected in starts.items():
        model = build_model(preset(arch, "25k", lower_bound=kind, n_layers=4), seed=0)
        bounds = lower_bounds(model.decoder.gamma, kind)
        torch.testing.assert_close(bounds, torch.tensor(expected)[:, None].expand(-1, 32))
    assert build_model(preset(arch, "25k", lower_bound="off"), seed=0).decoder.gamma is None


def test_random_lower_bounds_are_independent_and_uniform():
    model = build_model(preset("hgrn2", "393k", lower_bound="random", n_layers=8), seed=0)
    bounds = lower_bounds(model.decoder.gamma, "random")
    assert bounds.min() >= 1 / 16 and bounds.max() <= 15 / 16
    assert bounds.mean(1).sub(0.5).abs().max() < 0.1 and bounds.std(1).sub(7 / 8 / math.sqrt(12)).abs().max() < 0.03
    assert torch.corrcoef(bounds)[~torch.eye(8, dtype=torch.bool)].abs().max() < 0.35
    assert torch.equal(build_model(model.model_config, seed=0).decoder.gamma, model.decoder.gamma)
    lower_bounds(model.decoder.gamma, "random")[3].sum().backward()
    assert (model.decoder.gamma.grad.abs().amax(1) > 0).tolist() == [False] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("kind", ["increasing", "decreasing", "only"])
def test_lower_bounds_are_monotone_whatever_gamma_is(kind):
    bounds = lower_bounds(3 * normal(6, 40), kind)
    steps = bounds.diff(dim=0) * (-1 if kind == "decreasing" else 1)
    assert (steps > 0).all() and bounds.min() >= 0 and bounds.max() < 1
    assert (bounds[{"increasing": 0, "decreasing": -1}[kind]] == 0).all() if kind != "only" else bounds.min() > 0
