"""mamba_ssm's Mamba operations as `python -m arch.bench` times them: given what its own layers would give them.

No pass over activations is timed that its layers do not make. Version 2.3.2.post1 cannot be imported without its
compiled extension, though Mamba2's operation is Triton alone; such rows say so. Its first call tunes 110 kernels or so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from ..ops import decay_attention

CHUNK = 256  # tokens; what its Mamba2 layer takes by default


@lru_cache(maxsize=4)
def _minus_one(heads: int, device: torch.device) -> Tensor:
    """Made once, as a layer's parameter is."""
    return torch.full((heads,), -1.0, device=device)


def ssd(*shape: int) -> Callable[[list[Tensor]], Tensor]:
    """Mamba2's operation, of dt v where ours is of v.

    Its kernels take dt and A, decay by exp(A dt), and multiply the values by dt on their way. With A = -1 and
    dt = -log_decay the decays are the case's and the values v dt. Values v / dt would make it the same function, but
    with a pass over them before its kernels and one over their gradients behind; a Mamba2 layer needs no such pass, so
    it is not timed, and errors are against `scaled_naive`. Our layers multiply by dt outside of the operation.
    """
    from mamba_ssm.ops.triton import ssd_combined

    def run(x: list[Tensor]) -> Tensor:
        q, k, v, log_decay = x
        A = _minus_one(v.shape[2], v.device)
        return ssd_combined.mamba_chunk_scan_combined(v, -log_decay, A, k, q, chunk_size=CHUNK)

    return run


def scaled_naive(*shape: int) -> Callable[[list[Tensor]], Tensor]:
    """The recurrence of what `ssd` computes."""
    return lambda x: decay_attention(x[0], x[1], -x[3][..., None] * x[2], x[3], backend="naive")[0]


def peer_scan(*shape: int) -> Callable[[list[Tensor]], Tensor]:
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


# How a backend is given what is timed, where that is not as ours: same numbers in another layout; by case and backend.
LAYOUTS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {("mamba1", "mamba_ssm"): steps_inside}
