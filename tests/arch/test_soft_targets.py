"""Targets of two classes: what goes in comes out, and the loss is that of the distribution that they stand for."""

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf

from arch.config import ModelConfig
from arch.encoder import EncoderConfig
from arch.errors import InputError
from arch.model.lm import class_loss
from arch.soft_targets import CLASSES, UNIT, parts_of, soft_target


def test_parts_come_back():
    for first, second, weight, smoothing in (
        (0, 0, 0.0, 0.0),
        (7, CLASSES - 1, 1.0, 0.999),
        (CLASSES - 1, 3, 0.25, 0.1),
    ):
        target = soft_target(first, second, weight, smoothing)
        for kind in (np.array([target]), torch.tensor([target])):
            label, other, share, spread = (part[0].item() for part in parts_of(kind))
            assert (label, other, share) == (first, second, weight) and abs(spread - smoothing) <= 0.5 / UNIT
    assert soft_target(7, 3, 0.0, 0.0) == 7  # a class is itself


def test_the_loss_is_the_cross_entropy_with_the_distribution():
    logits = torch.randn(5, 1, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mixed = [(0, 3, 0.25, 0.125), (8, 8, 0.5, 0.0), (2, 1, 1.0, 0.5), (4, 0, 0.0, 0.0), (5, 6, 0.75, 0.25)]
    expected = torch.zeros(5, 9, dtype=torch.float64)
    for row, (first, second, weight, smoothing) in zip(expected, mixed, strict=True):
        row += smoothing / 9
        row[first] += (1 - smoothing) * (1 - weight)
        row[second] += (1 - smoothing) * weight
    loss = class_loss(logits, torch.tensor([[soft_target(*parts)] for parts in mixed]))
    naive = nnf.cross_entropy(logits[:, 0], expected)
    torch.testing.assert_close(loss, naive, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (loss, naive)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)
    classes = torch.tensor([[1], [0], [8], [3], [3]])
    torch.testing.assert_close(
        class_loss(logits, classes), nnf.cross_entropy(logits[:, 0], classes[:, 0]), rtol=1e-12, atol=0
    )
    with pytest.raises(InputError, match="targets have shape"):
        class_loss(logits, classes[:3])


def test_more_classes_than_a_target_names_are_refused():
    shape = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_ffn": 16, "vocab_size": 8, "context_length": 4}
    with pytest.raises(InputError, match=r"n_classes=65537: a classifier has at most 65,536"):
        ModelConfig("hgrn2", **shape, encoder=EncoderConfig(n_classes=CLASSES + 1))
