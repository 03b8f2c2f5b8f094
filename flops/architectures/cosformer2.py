"""The costs of cosFormer2: linear attention over rotated keys, and its position encoding (TPE). Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.kernel_config import WIDEST_HEAD

from .. import activations as plain
from .. import by_kernels as kernels
from ..activations import F
from ..appendix import linear_attention, low_rank_gate_lines, projections
from ..cores import decay_core, decay_excess
from ..entry import Entry, Lines, Memory, Times, low_rank_gate, norm_size, square
from ..toeplitz import filter_core, filter_excess, filter_memory, filter_setup, filter_setup_excess


def key_width(cfg: ModelConfig) -> int:
    """Channels of a head's keys: p, and again as many channels as turn (all, or with lrpe="half" the first half)."""
    return cfg.head_dim + (cfg.head_dim if cfg.options.lrpe == "full" else cfg.head_dim // 2)


def angles(cfg: ModelConfig) -> dict[str, int]:
    """theta [h, p], with lrpe="half" [p / 2] for all heads; none where they are constants."""
    size = cfg.d_model if cfg.options.lrpe == "full" else cfg.head_dim // 2
    return {"mixer.theta": size if cfg.options.theta_learned else 0}


def tpe(cfg: ModelConfig) -> dict[str, int]:
    e = int(cfg.options.tpe_dim)
    return {"tpe": cfg.d_model * e} | ({"tpe.decay": e} if cfg.options.tpe_learned_decay else {})


def appendix(cfg: ModelConfig, n: int) -> Lines:
    """8nd^2 + 8nd^2/h + 2nd^2/(Bh) + 6nBd + nBh + 4ntd + 6nd (printed 2nd), over n."""
    lines = projections(cfg, "q", "k", "v", "o") | linear_attention(cfg, 2) | low_rank_gate_lines(cfg)
    return lines | {"mixer.lrpe": 4.0 * cfg.d_model}


def activations(cfg: ModelConfig, T: int, a: int) -> Lines:
    """As TNL with wider keys; where theta is learned, q's and k's turning channels in fp32 before they turn."""
    d, half = cfg.d_model, cfg.head_dim // 2 * cfg.n_heads
    turning = d if cfg.options.lrpe == "full" else half
    keys = d + turning
    lines = plain.chunked(cfg, T, keys, d, False) | plain.gated_output(cfg, T, a)
    lines["mixer.activation"] = a * T * (3 if cfg.options.value_activation else 2) * d
    if cfg.options.theta_learned:
        lines["mixer.rotated"] = 2 * F * T * d
    return lines


def by_kernels(cfg: ModelConfig, T: int, a: int, B: int) -> Lines:
    """As TNL; with lrpe="full" the kernels turn q and k themselves and keep the states before the chunks (Hopper's own,
    of heads of 128, do not: this is the most that a GPU keeps), with "half" q and k are rotated before, in fp32, which
    is kept where theta is learned."""
    p, h, d = cfg.head_dim, cfg.n_heads, cfg.d_model
    full = cfg.options.lrpe == "full"
    keys, values = kernels.padded(p if full else p + p // 2), kernels.padded(p)
    if (2 * p if full else p + p // 2) > WIDEST_HEAD:
        return activations(cfg, T, a) | kernels.gated_output(cfg, T, a)
    lines = kernels.gated_output(cfg, T, a)
    lines["mixer.activation"] = a * T * (2 * (h * keys if full else d) + (d if cfg.options.value_activation else 0))
    lines["mixer.core"] = a * T * h * (2 * keys + values)
    if full:
        return lines | {"mixer.states": 2 * a * h * kernels.chunks_of(T, a)[1] * keys * values}
    lines["mixer.rotated"] = 2 * F * T * d if cfg.options.theta_learned else 0.0
    return lines | kernels.decay(cfg, T, a, B, keys, values, False)


def rotation(cfg: ModelConfig, T: int, kernels: bool) -> float:
    """Bytes of cos and sin of all positions, of the layer's own angles, which are kept in fp64 with the positions too
    where they are learned; kernels that rotate q and k themselves read the positions, 4 bytes each."""
    full = cfg.options.lrpe == "full"
    if kernels and full and 2 * cfg.head_dim <= WIDEST_HEAD:
        return 4.0 * T
    n_angles = cfg.d_model if full else cfg.head_dim // 2
    return T * (n_angles * 2 * F + ((n_angles + 1) * 2 * F if cfg.options.theta_learned else 0.0))


ENTRY = Entry(
    matrices=lambda cfg: square(cfg, "q", "k", "v", "o") | low_rank_gate(cfg),
    vectors=lambda cfg: {"mixer.norm": norm_size(cfg)} | angles(cfg),
    core=lambda cfg, n: decay_core(cfg, n, key_width(cfg)),
    excess=lambda cfg, n: decay_excess(cfg, n, key_width(cfg)),
    once=tpe,
    once_core=filter_core,
    once_excess=filter_excess,
    once_fp32=lambda cfg: tpe(cfg).get("tpe.decay", 0),
    setup=filter_setup,
    setup_excess=filter_setup_excess,
    paper=lambda cfg, n: 1 + 3 / (4 * cfg.n_heads) + 23 / (72 * cfg.d_model),
    state=lambda cfg, n: {"state": key_width(cfg) * cfg.d_model},
    state_once=lambda cfg: {"state": cfg.d_model * int(cfg.options.tpe_dim)},
    appendix=appendix,
    appendix_once=lambda cfg, n, sequences: {"tpe.state": 4 * float(cfg.d_model) * float(cfg.options.tpe_dim)},
    memory=Memory(activations, by_kernels, shared=rotation, once=filter_memory),
    times=Times(host_ms=(12.1, 5.15), replayed=(0.603, 0.136, 0.0582, 0.0028, 4.10, 1.11), core=(7.1, 0.9, 1.9, 0.55)),
)
