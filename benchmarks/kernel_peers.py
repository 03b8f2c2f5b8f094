"""The cases of `python -m arch.bench` with the operations of other packages: flash-linear-attention and mamba_ssm.

mamba_ssm's are given what its own layers would give them: no pass over activations is timed that its layers do not
make. Version 2.3.2.post1 cannot be imported without its compiled extension, though Mamba2's operation is Triton alone;
such rows say so. Its first call tunes 110 kernels or so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from arch.bench.cases import CASES, Case, Run, doubled, rates
from arch.ops import decay_attention

CHUNK = 256  # tokens; what its Mamba2 layer takes by default


@lru_cache(maxsize=4)
def _minus_one(heads: int, device: torch.device) -> Tensor:
    """Made once, as a layer's parameter is."""
    return torch.full((heads,), -1.0, device=device)


def ssd(*shape: int) -> Run:
    """Mamba2's operation, of dt v where ours is of v.

    Its kernels take dt and A, decay by exp(A dt), and multiply the values by dt on their way. With A = -1 and
    dt = -log_decay the decays are the case's and the values v dt. Values v / dt would make it the same function, but
    with a pass over them before its kernels and one over their gradients behind; a Mamba2 layer needs no such pass, so
    it is not timed, and errors are against `scaled_naive`. Our layers give dt as the gain.
    """
    from mamba_ssm.ops.triton import ssd_combined

    def run(x: list[Tensor]) -> Tensor:
        q, k, v, log_decay = x
        A = _minus_one(v.shape[2], v.device)
        return ssd_combined.mamba_chunk_scan_combined(v, -log_decay, A, k, q, chunk_size=CHUNK)

    return run


def scaled_naive(*shape: int) -> Run:
    """The recurrence of what `ssd` computes."""
    return lambda x: decay_attention(x[0], x[1], -x[3][..., None] * x[2], x[3], backend="naive")[0]


def peer_scan(*shape: int) -> Run:
    """Mamba1's operation, compiled. It wants everything in one dtype and a channel's steps side by side; inputs laid
    out as `steps_inside` does pass without a copy."""
    from mamba_ssm.ops import selective_scan_interface

    def run(x: list[Tensor]) -> Tensor:
        dt, A, B, C, values = x
        u, dt, B, C = (y.transpose(1, 2) for y in (values.flatten(2), dt.to(values.dtype), B[:, :, 0], C[:, :, 0]))
        out = selective_scan_interface.selective_scan_fn(u, dt, A, B, C)
        return out.unflatten(1, values.shape[2:]).movedim(-1, 1)

    return run


def steps_inside(x: Tensor) -> Tensor:
    """An activation as its Mamba1 layer has it: bf16, step sizes too, and the steps of a channel side by side."""
    return x if x.dim() < 3 else x.bfloat16().movedim(1, -1).contiguous().movedim(-1, 1)


def _fla_hgrn2(*shape: int) -> Run:
    from fla.ops.gla import chunk_gla

    def run(x: list[Tensor]) -> Tensor:
        q, v, logits, bound = x
        f = bound + (1 - bound) * torch.sigmoid(logits.float())
        return chunk_gla(q, (1 - f).to(q.dtype), v, f.log(), scale=1.0)[0]

    return run


def _fla_gla(*shape: int) -> Run:
    """The operation alone, its gates given."""
    from fla.ops.gla import chunk_gla

    return lambda x: chunk_gla(*x[:3], x[3].float(), scale=1.0)[0]


def _fla_tnl(*shape: int) -> Run:
    """Its operation of one decay a head, given ours: its lightning attention makes others of the layer's number."""
    from fla.ops.simple_gla import chunk_simple_gla

    return lambda x: chunk_simple_gla(*x, g_gamma=rates(x[0].shape[2], x[0].device), scale=1.0)[0]


def _fla_doubled(*shape: int) -> Run:
    from fla.ops.linear_attn import chunk_linear_attn

    return lambda x: chunk_linear_attn(*x, scale=1.0, normalize=False)[0]


def _fla_cosformer2(*shape: int) -> Run:
    run = _fla_doubled(*shape)
    return lambda x: run(doubled(x))


def _fla_mamba2(*shape: int) -> Run:
    from fla.ops.simple_gla import chunk_simple_gla

    def run(x: list[Tensor]) -> Tensor:
        q, k = (y.expand(-1, -1, x[2].shape[2], -1).contiguous() for y in x[:2])
        return chunk_simple_gla(q, k, x[2], x[3], scale=1.0)[0]

    return run


def _fla_hgrn1(*shape: int) -> Run:
    from fla.ops.hgrn import chunk_hgrn

    def run(x: list[Tensor]) -> Tensor:
        logits, c, bound = x
        f = bound + (1 - bound) * torch.sigmoid(logits.flatten(2).float())
        return chunk_hgrn(((1 - f) * c.flatten(2)).to(c.dtype), f.log().to(c.dtype))[0].view_as(c)

    return run


def _fla_gated_deltanet(*shape: int) -> Run:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return lambda x: chunk_gated_delta_rule(*x[:3], x[4], x[3], scale=1.0)[0]


def _fla_kimi_delta(*shape: int) -> Run:
    from fla.ops.kda import chunk_kda

    return lambda x: chunk_kda(*x[:3], x[4], x[3], scale=1.0)[0]


def _fla_deltanet(*shape: int) -> Run:
    from fla.ops.delta_rule import chunk_delta_rule

    return lambda x: chunk_delta_rule(*x, scale=1.0)[0]


PEERS = ("fla", "mamba_ssm")
RUNS: dict[str, dict[str, Callable[..., Run]]] = {
    "hgrn2": {"fla": _fla_hgrn2},
    "gla": {"fla": _fla_gla},
    "tnl": {"fla": _fla_tnl},
    "cosformer2": {"fla": _fla_cosformer2},
    "cosformer2-doubled": {"fla": _fla_doubled},
    "mamba2": {"fla": _fla_mamba2, "mamba_ssm": ssd, "naive for mamba_ssm": scaled_naive},
    "gated-deltanet": {"fla": _fla_gated_deltanet},
    "kimi-delta": {"fla": _fla_kimi_delta},
    "deltanet": {"fla": _fla_deltanet},
    "hgrn1": {"fla": _fla_hgrn1},
    "mamba1": {"mamba_ssm": peer_scan},
}
LAYOUTS: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {"mamba1": {"mamba_ssm": steps_inside}}


def with_peers(case: Case) -> Case:
    """The case with the backends of other packages that compute its operation."""
    return replace(case, runs=case.runs | RUNS.get(case.name, {}), layouts=LAYOUTS.get(case.name, {}))


CASES_WITH_PEERS = {name: with_peers(case) for name, case in CASES.items()}
