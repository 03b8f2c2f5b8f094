"""The costs of causal_filter as the Toeplitz position encoding (TPE) uses it, once a model. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .activations import F, unread_rows
from .by_kernels import stream
from .cores import chunks, unread
from .entry import Lines


def filter_core(cfg: ModelConfig, context: int) -> dict[str, float]:
    """causal_filter (TPE) in chunks of C rows: state read and update 2Cde each, inside a Toeplitz product 2CCd."""
    d, e = float(cfg.d_model), float(cfg.options.tpe_dim)
    inside = sum(2.0 * count * rows * rows * d for rows, count in chunks(context, cfg.chunk_size))
    return {"tpe.inside": inside, "tpe.state": 4.0 * context * d * e}


def filter_excess(cfg: ModelConfig, context: int) -> dict[str, float]:
    """As for decay_attention; and where the poles are fixed, their powers need no gradient: no second product for the
    state's read, nor for the updates that are read."""
    product, parts = 2.0 * cfg.d_model * float(cfg.options.tpe_dim), chunks(context, cfg.chunk_size)
    reads, updates = unread(parts)
    fixed = 0.0 if cfg.options.tpe_learned_decay else 2 * context - updates / 2
    return {"tpe.state.unread": -product * (reads + updates), "tpe.state.fixed": -product * fixed}


def filter_setup(cfg: ModelConfig, context: int) -> dict[str, float]:
    """The Toeplitz kernel B [d, e] times the powers of the decays [e, C], once for each length of chunk: 2deC."""
    d, e = float(cfg.d_model), float(cfg.options.tpe_dim)
    return {"tpe.kernel": sum(2.0 * d * e * rows for rows, _ in chunks(context, cfg.chunk_size))}


def filter_setup_excess(cfg: ModelConfig, context: int) -> dict[str, float]:
    """Fixed powers need no gradient."""
    return {"tpe.kernel": 0.0 if cfg.options.tpe_learned_decay else -filter_setup(cfg, context)["tpe.kernel"]}


def filter_memory(cfg: ModelConfig, T: int, a: int, sequences: int, kernels: bool) -> Lines:
    """Bytes that autograd keeps: its kernel, which there is for fixed poles, keeps its input alone."""
    if kernels and not cfg.options.tpe_learned_decay and int(cfg.options.tpe_dim) <= WIDEST_HEAD:
        return {"tpe": float(sequences * T) * stream(cfg, a) * cfg.d_model}
    return {"tpe": sequences * _one_sequence(cfg, T, sequences), "tpe.kernel": _toeplitz(cfg, T)}


def _one_sequence(cfg: ModelConfig, T: int, sequences: int) -> float:
    """Its input, the updates and the states before the chunks, in fp32. Where a
    shorter chunk is left over, the rows of several sequences are copied to stand side by side."""
    parts = chunks(T, cfg.chunk_size)
    copied = parts[0][0] * parts[0][1] if len(parts) > 1 and sequences > 1 else 0
    states = 2 * sum(count for _, count in parts) - (unread_rows(parts) > 0)
    return F * cfg.d_model * (T + copied + states * int(cfg.options.tpe_dim))


def _toeplitz(cfg: ModelConfig, T: int) -> float:
    """Shared by the sequences of a batch: a kernel and its Toeplitz matrix for each channel, and the matrix's
    indices and mask."""
    sizes = [rows for rows, _ in chunks(T, cfg.chunk_size)]
    return sum(F * cfg.d_model * (rows * rows + rows) + 9.0 * rows * rows for rows in sizes)
