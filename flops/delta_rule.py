"""The costs that DeltaNet, Gated DeltaNet and Kimi Delta Attention share. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable

from arch.architectures.common.delta_shape import convolved, keys, values
from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from . import by_kernels as kernels
from . import short_conv
from .activations import F, norm, unread_rows
from .cores import delta_chunks, delta_core, delta_excess
from .entry import Entry, Lines, Memory, norm_size


def delta_entry(matrices: Callable[[ModelConfig], dict[str, int]], by_channel: bool, gated: bool = True) -> Entry:
    """matrices(cfg): the mixer's; by_channel: whether each key channel has a decay of its own, not each head; gated:
    whether there are decays and an output gate."""

    def head(cfg: ModelConfig) -> tuple[int, int]:
        """Channels of a head's keys and values."""
        return keys(cfg) // cfg.n_heads, values(cfg) // cfg.n_heads

    def plain(cfg: ModelConfig) -> bool:
        """Whether no kernel takes its heads."""
        return max(head(cfg)) > WIDEST_HEAD

    def core(cfg: ModelConfig, T: int) -> Lines:
        """The gates and the chunk form, fp32: q, k and beta k, q from the chunk's start, k to its end, the right side
        of the solve and its solution, the rows written twice; scores, decays between rows, and states twice."""
        d, h, v = keys(cfg), cfg.n_heads, values(cfg)
        parts = delta_chunks(cfg, T, by_channel)
        rows, unread = sum(r * count for r, count in parts), unread_rows(parts)
        chunks, squares = (sum(r**power * count for r, count in parts) for power in (0, 2))
        kept = rows * (7 * d + 4 * v + h) - unread * d - parts[-1][0] * v
        # decays from and to the chunk's ends; by channel, of each level halves and decays of q k^T and of k k^T
        levels = sum(r * count * math.log2(r) for r, count in parts)
        decays = (2 * rows + 4 * levels) * d if by_channel else (2 * rows + chunks) * h
        return {
            "mixer.gates": F * T * (gated * 2 * (d if by_channel else h) + 5 * h),  # decays; beta, lengths of q and k
            "mixer.core": F * kept,
            "mixer.decays": F * decays * gated,
            "mixer.scores": F * squares * h * (2 if by_channel or not gated else 5),
            "mixer.states": 2 * F * chunks * head(cfg)[1] * d,
        }

    def convolution(cfg: ModelConfig, T: int, a: int, line: Callable[[ModelConfig, int, int, int], float]) -> float:
        """Its result is kept in fp32 alone: of q and k, which are normed."""
        wide = a * convolved(cfg) if a == F else F * 2 * keys(cfg)
        return line(cfg, T, a, convolved(cfg)) + T * (wide - a * convolved(cfg))

    def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
        """x; Norm(o), and of the output's gate what the first matrix gives, the gate, and their product."""
        return core(cfg, T) | {
            "mixer.projections": a * T * (cfg.d_model + gated * matrices(cfg)["mixer.in"] / cfg.d_model),
            "mixer.conv": convolution(cfg, T, a, short_conv.activations),
            "mixer.norm": T * cfg.n_heads * norm(cfg, head(cfg)[1]),
            "mixer.activation": (3 if gated else 1) * a * T * values(cfg),
        }

    def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
        """A sigmoid gate is one with the norm, one with silu is copied.
        What the first matrix gives is kept where the convolution's kernel or a low-rank gate reads it."""
        products = 1 if not gated else 2 if by_channel and cfg.norm != "layer" else 3
        read = by_channel or cfg.options.conv_width <= short_conv.TAPS
        # LayerNorm keeps o with the channels that heads are filled up by; in bf16 it makes an fp32 copy without
        filled = cfg.norm == "layer" and a == F and not plain(cfg)
        unused = F * (kernels.padded(head(cfg)[1]) - head(cfg)[1]) if filled else 0
        decays = "channel" if by_channel else "head" if gated else "none"
        operation = core(cfg, T) if plain(cfg) else kernels.delta(cfg, T, a, *head(cfg), decays)
        # decays; beta, twice where the operation reads the given one
        by_head = (1 if plain(cfg) else 2) if by_channel else 2 + 2 * gated
        gates = F * T * (by_channel * 2 * keys(cfg) + by_head * cfg.n_heads)
        return operation | {
            "mixer.gates": gates,
            "mixer.projections": a * T * (cfg.d_model + read * matrices(cfg)["mixer.in"] / cfg.d_model),
            "mixer.conv": short_conv.by_kernels(cfg, T, a, convolved(cfg)),
            "mixer.norm": T * cfg.n_heads * (kernels.norm(cfg, head(cfg)[1], a) + unused),
            "mixer.activation": products * a * T * values(cfg),
        }

    def masks(cfg: ModelConfig, T: int, by_kernels: bool) -> float:
        """Bytes of a chunk's triangles: two of truth values, or one of ones with a column."""
        if by_channel or (by_kernels and not plain(cfg)):
            return 0.0
        sizes = [rows for rows, _ in delta_chunks(cfg, T, by_channel)]
        return sum(2.0 * rows**2 if gated else F * rows * (rows + 1) for rows in sizes)

    def temporaries(cfg: ModelConfig, tokens: float, a: int) -> float:
        """The gradients of the MLP's inputs, or of states and rows written, when what the MLP kept is gone: the
        kernels' of whole chunks of their own, and of q, k and v beside them."""
        if plain(cfg):
            read = F * (keys(cfg) * head(cfg)[1] / cfg.chunk_size + values(cfg))
        else:
            key_dim, value_dim = map(kernels.padded, head(cfg))
            rows, _ = kernels.chunks_of(1, a)
            read = a * (cfg.n_heads * key_dim * value_dim / rows + 2 * values(cfg) + 2 * keys(cfg))
        return tokens * max(2 * a * cfg.d_ffn, read - kernels.mlp(cfg, a))

    return Entry(
        matrices=matrices,
        vectors=lambda cfg: {
            "mixer.conv": short_conv.weights(cfg, convolved(cfg)),
            "mixer.A_log": gated * cfg.n_heads,
            "mixer.dt_bias": gated * (keys(cfg) if by_channel else cfg.n_heads),
            "mixer.norm": norm_size(cfg, head(cfg)[1]),
        },
        core=lambda cfg, n: delta_core(cfg, n, *head(cfg), by_channel),
        excess=lambda cfg, n: delta_excess(cfg, n, *head(cfg), by_channel),
        unseen=("mixer.solve",),
        state=lambda cfg, n: {"state": head(cfg)[0] * values(cfg)} | short_conv.window(cfg, convolved(cfg)),
        rounded=lambda cfg: short_conv.weights(cfg, convolved(cfg)),
        memory=Memory(activations, by_kernels, shared=masks, mlp_tensors=4, temporaries=temporaries),
    )
