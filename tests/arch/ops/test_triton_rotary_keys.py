"""The run of keys' gradients with angles, by itself, against a loop over time in float64."""

import importlib.util
import itertools
import math

import pytest
import torch
import torch.nn.functional as nnf

from .compare import assert_close
from .test_triton import GPU

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (pip install triton==3.7.1)", allow_module_level=True)

from arch.ops.decay_attention.triton.rotary_hopper_keys import run_keys

BATCH, LENGTH, HEADS, GROUPS, KEYS, VALUES, CHUNK, COUNT = 2, 73, 2, 1, 32, 16, 16, 3


def loop(a, b, c, own, theta, positions, initial, reverse, silu):
    """Gradients [B, T, H, DK] of own, of the angles [B, T, H, DK], and the states before (reverse: after) every row and
    behind the last one [B, H, T + 1, 2 DK, DV]."""
    shared = a.shape[2] // c.shape[2]
    angles = positions.double().expand(a.shape[:2])[..., None, None] * theta
    c, own, angles = (x.repeat_interleave(shared, 2) for x in (c, own, angles))
    cos, sin = angles.cos(), angles.sin()
    primal = nnf.silu(own) if silu else own
    state, states = initial, [initial]
    out, d_angle = torch.zeros_like(own), torch.zeros_like(own)
    for t in range(a.shape[1])[:: -1 if reverse else 1]:
        rotated = torch.cat([c[:, t] * cos[:, t], c[:, t] * sin[:, t]], -1)
        state = state + rotated[..., None] * b[:, t][..., None, :]
        states.append(state)
        upper, lower = (state @ a[:, t][..., None]).squeeze(-1).chunk(2, -1)
        out[:, t] = upper * cos[:, t] + lower * sin[:, t]
        position = positions.expand(a.shape[:2])[:, t, None, None]
        d_angle[:, t] = primal[:, t] * (lower * cos[:, t] - upper * sin[:, t]) * position
    if silu:
        sigmoid = own.sigmoid()
        out = out * sigmoid * (1 + own * (1 - sigmoid))
    return out, d_angle, torch.stack(states, 2)


@pytest.mark.skipif(GPU, reason="for the interpreter: the copy engine asks for wider rows than fp32 tiles of 16 have")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_run(reverse, everything):
    """Three segments, the last shorter and its last chunk too, heads that share their keys. everything: a first state,
    silu, positions of every sequence; else none of these, and positions of all at once."""
    torch.manual_seed(reverse)
    double = {"dtype": torch.float64}
    a, b = (torch.randn(BATCH, LENGTH, HEADS, VALUES, **double) for _ in range(2))
    c, own = (torch.randn(BATCH, LENGTH, GROUPS, KEYS, **double) for _ in range(2))
    theta = torch.rand(GROUPS, KEYS, **double)
    positions = torch.arange(LENGTH)
    initial = torch.zeros(BATCH, HEADS, 2 * KEYS, VALUES, **double)
    if everything:
        positions = torch.stack([positions % 41, positions + 20])
        initial = torch.randn_like(initial)
    expected, d_angle, states = loop(a, b, c, own, theta, positions, initial, reverse, everything)
    chunks = math.ceil(LENGTH / CHUNK)
    length = math.ceil(chunks / COUNT) * CHUNK
    bounds = [min(length * i, LENGTH) for i in range(COUNT + 1)]
    ends = [LENGTH - x for x in bounds] if reverse else bounds
    sums = torch.stack([states[:, :, y] - states[:, :, x] for x, y in itertools.pairwise(ends)], 2)
    sums = -sums if reverse else sums
    rotation = theta / (2 * math.pi)
    high = rotation.float()
    out = torch.full_like(expected, math.nan, dtype=torch.float32)
    d_angles = torch.full((BATCH * HEADS, COUNT, KEYS), math.nan)
    run_keys(
        *(x.float() for x in (a, b, c, own, high, rotation - high, positions)),
        initial.flatten(0, 1).float() if everything else None, sums.flatten(0, 1).float().contiguous(), out, d_angles,
        (LENGTH, HEADS, GROUPS, chunks, COUNT, length // CHUNK), reverse, everything,
        dict(C=CHUNK, DK=KEYS, DV=VALUES, TILE=16, STAGES=2, num_warps=4, EXACT=True, FAST=False),
    )  # fmt: skip
    parts = [d_angle[:, x:y].sum(1) for x, y in itertools.pairwise(bounds)]
    assert_close([out.double(), d_angles.double()], [expected, torch.stack(parts, 2).flatten(0, 1)], 1e-5)
