"""The cases of `python -m arch.bench`: inputs like a model's, and each backend of the operation as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from ..architectures.tnl.decays import log_decays
from ..model.positions import cosine_pairs, rotation
from ..ops import decay_attention, gated_attention, gated_delta
from .floors import Products, decayed, delta, floors, gated, softmax
from .scans import SCANS

BACKENDS = ("triton", "chunk", "sdpa", "sdpa-flash", "sdpa-cudnn")
Run = Callable[[list[Tensor]], Tensor]


@dataclass
class Case:
    name: str
    names: tuple[str, ...]  # of the inputs, all differentiated
    make: Callable[..., list[Tensor]]  # of (B, T, H, D, a random tensor's maker)
    runs: dict[str, Callable[..., Run]]  # by backend; of (B, T, H, D)
    products: Products
    activations: tuple[float, float] = (4, 11)  # how many are moved by the forward, and by forward and backward
    # how a backend is given what is timed, where that is not as ours: the same numbers in another layout
    layouts: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def inputs(self, *shape: int, dtype: torch.dtype, device: str, backend: str = "") -> tuple[list[Tensor], Tensor]:
        """The inputs and a weight of the output's shape; activations in `dtype`, parameters and decays in fp32; with
        `backend` in its own layout."""
        generator = torch.Generator(device).manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, device=device)

        tensors = self.make(*shape, normal)
        inputs = [
            x if x.dim() != 4 or name == "log_decay" else x.to(dtype)
            for name, x in zip(self.names, tensors, strict=True)
        ]
        lay = self.layouts.get(backend, lambda x: x)
        return [lay(x) for x in inputs], lay(normal(*shape).to(dtype))

    def reference(self, against: str, backend: str) -> Callable[..., Run]:
        """The backend `against` of the function that `backend` computes, which for a peer can be another than ours."""
        return self.runs.get(f"{against} for {backend}", self.runs[against])

    def floors(self, *shape: int) -> dict[str, float]:
        """ms by bytes and by matrix products: floors.py."""
        return floors(self.activations, self.products, shape)


def _own(call: Callable[[Any, str], tuple[Tensor, Tensor]]) -> dict[str, Callable[..., Run]]:
    def by(backend: str) -> Callable[..., Run]:
        return lambda *shape: lambda x: call(x, backend)[0]

    return {backend: by(backend) for backend in ("triton", "chunk", "naive")}


def _hgrn2_given(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """q before its silu."""
    q, v, logits = (normal(batch, length, heads, width) for _ in range(3))
    return [q, v, logits + 1, torch.linspace(0.05, 0.9, heads * width, device=q.device).view(heads, width)]


def _hgrn2_far(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """Like a trained model's first layer, whose bound is 0: 1 to 11 of 128 channels of a head, here and there,
    forget so much in half a chunk that they are not referred to its middle
    (docs/research/kernels-gated-attention.md)."""
    q, v, logits, bound = _hgrn2_given(batch, length, heads, width, normal)
    strength = torch.linspace(2.5, -2.1, width, device=q.device)[torch.arange(width, device=q.device) * 37 % width]
    return [q, v, logits - 1 + strength, torch.zeros_like(bound)]


def _hgrn2(*shape: Any) -> list[Tensor]:
    q, *rest = _hgrn2_given(*shape)
    return [nnf.silu(q), *rest]


def _hgrn2_silu(x: Any, backend: str) -> tuple[Tensor, Tensor]:
    return gated_attention(x[0], None, x[1], (x[2], x[3]), backend=backend, activation="silu")


def _gla(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    q, k, v, logits = (normal(batch, length, heads, width) for _ in range(4))
    return [nnf.silu(q), torch.sigmoid(k), v, nnf.logsigmoid(logits + 2)]


def _given(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """q and k before their silu."""
    return [normal(batch, length, heads, width) for _ in range(3)]


def _qkv(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    q, k, v = _given(batch, length, heads, width, normal)
    return [nnf.silu(q), nnf.silu(k), v]


@lru_cache(maxsize=4)
def rates(heads: int, device: torch.device) -> Tensor:
    """TNL's log-decays. As a model's buffer: made once, for a copy to the device would wait for it."""
    return torch.tensor(log_decays(3, 12, heads), dtype=torch.float32, device=device)


def _tnl(x: Any, backend: str, activation: str = "") -> tuple[Tensor, Tensor]:
    q, k, v = x
    return decay_attention(q, k, v, rates(q.shape[2], q.device), backend=backend, activation=activation)


def _tnl_silu(x: Any, backend: str) -> tuple[Tensor, Tensor]:
    return _tnl(x, backend, "silu")


def _with_theta(inputs: list[Tensor]) -> list[Tensor]:
    heads, width = inputs[0].shape[2:]
    theta = 10_000.0 ** (-2 * torch.arange(heads * width) / (heads * width))
    return [*inputs, theta.view(heads, width).to(inputs[0].device)]


def _cosformer2(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    return _with_theta(_qkv(batch, length, heads, width, normal))


def _cosformer2_given(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    return _with_theta(_given(batch, length, heads, width, normal))


def _rotary(x: Any, backend: str, activation: str = "") -> tuple[Tensor, Tensor]:
    positions = torch.arange(x[0].shape[1], device=x[0].device)
    q, k, v, theta = x
    return decay_attention(q, k, v, backend=backend, angles=(theta, positions), activation=activation)


def _rotary_silu(x: Any, backend: str) -> tuple[Tensor, Tensor]:
    return _rotary(x, backend, "silu")


def doubled(x: list[Tensor]) -> list[Tensor]:
    """cosFormer2's q, k, v as flash-linear-attention takes them: q and k rotated and twice as wide."""
    q, k, v, theta = x
    cos, sin = rotation(theta, torch.arange(q.shape[1], device=q.device))
    return [cosine_pairs(q, cos, sin), cosine_pairs(k, cos, sin), v]


def _cosformer2_doubled(*shape: Any) -> list[Tensor]:
    return doubled(_cosformer2(*shape))


def _mamba2(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    q, k = (normal(batch, length, 1, 128) / 128**0.25 for _ in range(2))
    return [q, k, normal(batch, length, heads, width), -nnf.softplus(normal(batch, length, heads) - 3)]


def _gated_deltanet(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    q, k, v = _given(batch, length, heads, width, normal)
    beta, log_decay = torch.sigmoid(normal(batch, length, heads)), -nnf.softplus(normal(batch, length, heads) - 3)
    return [nnf.normalize(q, dim=-1) / width**0.5, nnf.normalize(k, dim=-1), v, beta, log_decay]


def _kimi_delta(batch: int, length: int, heads: int, width: int, normal: Any) -> list[Tensor]:
    """Decays of a layer at initialisation: of each head its own strength, of each channel its own step size."""
    *rest, _ = _gated_deltanet(batch, length, heads, width, normal)
    strength = torch.linspace(1, 16, heads, device=rest[0].device)[:, None]
    return [*rest, -strength * nnf.softplus(normal(batch, length, heads, width) - 4)]


def _deltanet(*shape: Any) -> list[Tensor]:
    return _gated_deltanet(*shape)[:4]


def _sdpa(backend: str | None) -> Callable[..., Run]:
    def make(*shape: int) -> Run:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def run(x: list[Tensor]) -> Tensor:
            q, k, v = (y.transpose(1, 2) for y in x)
            if backend is None:
                return nnf.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return nnf.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

        return run

    return make


_attention = {
    "sdpa": _sdpa(None),
    "sdpa-flash": _sdpa("FLASH_ATTENTION"),
    "sdpa-cudnn": _sdpa("CUDNN_ATTENTION"),
}
CASES = {
    case.name: case
    for case in (
        Case(
            "hgrn2",
            ("q", "v", "logits", "bound"),
            _hgrn2,
            _own(lambda x, backend: gated_attention(x[0], None, x[1], (x[2], x[3]), backend=backend)),
            gated,
        ),
        Case("hgrn2-silu", ("q", "v", "logits", "bound"), _hgrn2_given, _own(_hgrn2_silu), gated),
        Case("hgrn2-far", ("q", "v", "logits", "bound"), _hgrn2_far, _own(_hgrn2_silu), gated),
        Case(
            "gla",
            ("q", "k", "v", "log_f"),
            _gla,
            _own(lambda x, backend: gated_attention(x[0], x[1], x[2], x[3], backend=backend)),
            gated,
        ),
        Case("tnl", ("q", "k", "v"), _qkv, _own(_tnl), decayed()),
        Case("cosformer2-silu", ("q", "k", "v", "theta"), _cosformer2_given, _own(_rotary_silu), decayed(2)),
        Case("tnl-silu", ("q", "k", "v"), _given, _own(_tnl_silu), decayed()),
        Case("cosformer2", ("q", "k", "v", "theta"), _cosformer2, _own(_rotary), decayed(2)),
        Case(
            "cosformer2-doubled",
            ("q", "k", "v"),
            _cosformer2_doubled,
            _own(lambda x, backend: decay_attention(x[0], x[1], x[2], backend=backend)),
            decayed(2),
            (6, 17),
        ),
        Case(
            "mamba2",
            ("q", "k", "v", "log_decay"),
            _mamba2,
            _own(lambda x, backend: decay_attention(x[0], x[1], x[2], x[3], backend=backend)),
            decayed(keys=128),
        ),
        Case(
            "gated-deltanet",
            ("q", "k", "v", "beta", "log_decay"),
            _gated_deltanet,
            _own(lambda x, backend: gated_delta(x[0], x[1], x[2], x[3], x[4], backend=backend)),
            delta(),
        ),
        Case(
            "kimi-delta",
            ("q", "k", "v", "beta", "log_decay"),
            _kimi_delta,
            _own(lambda x, backend: gated_delta(x[0], x[1], x[2], x[3], x[4], backend=backend)),
            delta(by_channel=True),
            (6, 17),  # decays are fp32
        ),
        Case(
            "deltanet",
            ("q", "k", "v", "beta"),
            _deltanet,
            _own(lambda x, backend: gated_delta(x[0], x[1], x[2], x[3], backend=backend)),
            delta(),
        ),
        Case("llama", ("q", "k", "v"), _qkv, _attention, softmax),
    )
}
CASES |= {
    name: Case(name, names, make, _own(call), products, moved) for name, names, make, call, moved, products in SCANS
}
