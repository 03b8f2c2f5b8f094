"""The gated MLP's products with the gate inside, as custom operators with fake kernels and FLOP formulas."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ....kernel_config import MULTIPROCESSORS, MlpConfig, mlp_config
from ...triton.launch import on_its_device, with_context
from .mlp_backward import gate_gradients
from .mlp_forward import up_gate

ROWS, INNER = 128, 64  # of a block; mlp_parts.py


def blocks(x: Tensor, *block: int) -> TensorDescriptor:
    with_context(x)
    layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(block), layout)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The left and the right half of x [N, 2 g]."""
    left, right = x.chunk(2, 1)
    return left, right


def config_of(width: int) -> MlpConfig:
    config = mlp_config(width)
    assert config is not None, "the caller asks first"
    return config


def grid_of(x: Tensor, tiles: int) -> tuple[int]:
    """A program for each multiprocessor, where there is work for as many."""
    count = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else MULTIPROCESSORS
    return (min(count, tiles),)


@torch.library.custom_op("arch::up_gate", mutates_args=())
@on_its_device
def up_and_gate(x: Tensor, weights: Tensor, gate: str) -> tuple[Tensor, Tensor]:
    """h = x weights^T [N, 2 g], u and v side by side, and act [N, g] = u v, or with gate "silu" u silu(v): x [N, d],
    weights [2 g, d], bf16; u and v are rounded before the gate is applied."""
    (count, width), hidden = x.shape, len(weights) // 2
    x, weights, config = x.contiguous(), weights.contiguous(), config_of(width)
    h, act = x.new_empty(count, 2 * hidden), x.new_empty(count, hidden)
    tiles, across = triton.cdiv(count, ROWS), triton.cdiv(hidden, config.up_columns)
    up_gate[grid_of(x, tiles if config.resident else tiles * across)](
        blocks(x, ROWS, INNER), blocks(weights.unflatten(0, (2, -1)), 2, config.up_columns, INNER),
        *(blocks(half, ROWS, config.up_columns) for half in (*halves(h), act)), tiles, across,
        K=triton.cdiv(width, INNER), STAGES=config.up_stages, BUFFERS=config.up_buffers, RESIDENT=config.resident,
        GATE=gate, num_warps=4,
    )  # fmt: skip
    return h, act


@up_and_gate.register_fake
def _(x: Tensor, weights: Tensor, gate: str) -> tuple[Tensor, Tensor]:
    hidden = weights.shape[0] // 2
    return x.new_empty(x.shape[0], 2 * hidden), x.new_empty(x.shape[0], hidden)


@torch.library.custom_op("arch::gate_gradients", mutates_args=())
@on_its_device
def gradients_of_gate(d_out: Tensor, weight: Tensor, h: Tensor, gate: str) -> Tensor:
    """The gradient of h [N, 2 g], of `up_and_gate`, where act weight^T has the gradient d_out [N, d]: weight [d, g]."""
    (count, width), hidden = d_out.shape, weight.shape[1]
    d_out, weight, config = d_out.contiguous(), weight.contiguous(), config_of(width)
    d_h = torch.empty_like(h)
    tiles, across, inner = triton.cdiv(count, ROWS), triton.cdiv(hidden, config.down_columns), triton.cdiv(width, INNER)
    gate_gradients[grid_of(d_out, tiles if config.resident else tiles * across)](
        blocks(d_out, ROWS, INNER), blocks(weight, INNER, config.down_columns),
        *(blocks(half, ROWS, INNER) for half in (*halves(h), *halves(d_h))), tiles, across,
        K=inner, STAGES=config.down_stages, SLOTS=config.down_slots, ASKED=min(config.down_asked, inner - 1),
        RESIDENT=config.resident, GATE=gate, num_warps=4,
    )  # fmt: skip
    return d_h


@gradients_of_gate.register_fake
def _(d_out: Tensor, weight: Tensor, h: Tensor, gate: str) -> Tensor:
    return torch.empty_like(h)


@register_flop_formula(torch.ops.arch.up_gate)
def _(x: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * x[1] * weights[0]


@register_flop_formula(torch.ops.arch.gate_gradients)
def _(d_out: Any, weight: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * d_out[0] * d_out[1] * weight[1]
