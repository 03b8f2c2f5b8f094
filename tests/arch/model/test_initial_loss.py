"""The loss of every preset before any training: ln V + sigma^2 d / 2 on random targets within 1%, for a tied head with
sigma = 0.02 (2e-4 d). The paper's sizes at full width and vocabulary, with two layers, so that they fit in memory."""

import math

import pytest
import torch

from arch.config import ARCHS
from arch.model.lm import build_model
from arch.presets import PAPER, TINY, preset

SMALLEST, *MIDDLE, LARGEST = TINY


def initial_loss(config, n_tokens):
    """Mean loss of random targets after random tokens, in rows of 256."""
    generator = torch.Generator().manual_seed(0)
    model = build_model(config, seed=0)
    losses = []
    with torch.no_grad():
        for _ in range(n_tokens // 1024):
            ids, targets = (torch.randint(0, config.vocab_size, (4, 256), generator=generator) for _ in range(2))
            losses.append(model(input_ids=ids, targets=targets).loss.item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", [SMALLEST, LARGEST, *(pytest.param(size, marks=pytest.mark.slow) for size in MIDDLE)])
def test_tiny_presets(arch, size):
    config = preset(arch, size)
    # an estimate from n tokens has a standard error of sqrt(4e-4 d / n): 0.002 at most here
    assert initial_loss(config, 8192) == pytest.approx(math.log(257) + 2e-4 * config.d_model, rel=0.01)


@pytest.mark.parametrize("arch", ARCHS)
def test_matrices_that_start_by_the_width(arch):
    """sigma^2 = 1 / (3 d): ln V + 1 / 6 at every width, those that a configuration is changed to among them."""
    config = preset(arch, SMALLEST, init_std=None)
    assert initial_loss(config, 8192) == pytest.approx(math.log(257) + 1 / 6, rel=0.01)
    wider = config.replace(d_model=3 * config.d_model)
    assert build_model(wider, 0).decoder.embedding.weight.std().item() == pytest.approx(wider.matrix_std, rel=0.05)
    assert wider.matrix_std == pytest.approx(config.matrix_std / math.sqrt(3))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", PAPER)
def test_the_papers_presets(arch, size):
    config = preset(arch, size, n_layers=2)
    n_tokens = 1024 if config.d_model < 2048 else 4096  # standard error at most 0.02
    expected = math.log(config.vocab_size) + 2e-4 * config.d_model
    assert initial_loss(config, n_tokens) == pytest.approx(expected, rel=0.01)
