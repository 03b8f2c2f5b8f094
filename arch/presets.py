"""Named sizes: the paper's 24 models and the quickstart's tiny ones. Imports no torch."""

from __future__ import annotations

from .config import ARCHS, ModelConfig
from .errors import InputError, nearest

# Scaling Laws for Linear Complexity LMs, tables 2 and 7: layers, d_model, d_ffn. Head dimension 128 everywhere and
# d_ffn 4096 at 1B: the printed 8/16 heads and g=5632 contradict the paper's own parameter counts.
PAPER = {
    "70m": (6, 512, 1536),
    "160m": (12, 768, 2048),
    "410m": (26, 1024, 2816),
    "1b": (32, 1536, 4096),
    "3b": (35, 2560, 6912),
    "7b": (32, 4096, 11008),
}
PAPER_LAYERS = {("tnl", "410m"): 25, ("cosformer2", "410m"): 25}  # table 7: 25 layers, not 26

# Two layers and two heads at every width, so that only the width scales; named by 4 l d^2 + 3 l d g, the parameters of
# a LLaMA without embedding and norms. d_model, d_ffn.
TINY = {
    "6k": (16, 40),
    "10k": (20, 56),
    "14k": (24, 64),
    "18k": (28, 72),
    "25k": (32, 88),
    "38k": (40, 104),
    "55k": (48, 128),
    "98k": (64, 168),
    "221k": (96, 256),
    "393k": (128, 344),
}

# Mamba has no channel mixer and gets more layers: 3 where others have 2, twice as many at the paper's sizes. Its heads
# are d (tiny) or 64 of the inner stream's 2 d channels. A tiny model's state is d over this: as wide as the others'
# head dimension in Mamba2; in Mamba1 such that 128 channels have the published 16.
STATE_SHARE = {"mamba2": 2, "mamba1": 8}
SIZES = (*TINY, *PAPER)


def preset(arch: str, size: str, **changes: object) -> ModelConfig:
    """The configuration of `arch` at `size` (a name from SIZES), with `changes` to its fields.

    Raises InputError for an unknown architecture or size.
    """
    if arch not in ARCHS:
        raise InputError(f"unknown architecture {arch!r}{nearest(arch, list(ARCHS))}")
    if size in TINY:
        layers, heads, (d_model, d_ffn) = 2, 2, TINY[size]
        # byte-level vocabulary: 256 bytes and one end-of-text token
        fields: dict[str, object] = {"vocab_size": 257, "context_length": 256, "chunk_size": 32}
    elif size in PAPER:
        layers, d_model, d_ffn = PAPER[size]
        layers, heads, fields = PAPER_LAYERS.get((arch, size), layers), d_model // 128, {}
    else:
        raise InputError(f"unknown size {size!r}{nearest(size, list(SIZES))}")
    # HGRN1's mixer has 7 d^2 parameters: with d_ffn = 2 d, its authors' choice, a layer has 13 d^2, else 12
    d_ffn = 2 * d_model if arch == "hgrn1" else d_ffn
    if arch in STATE_SHARE:
        fields["norm_eps"] = 1e-5
        if size in TINY:
            layers, fields["ssm_state"] = 3, d_model // STATE_SHARE[arch]
        else:
            layers, heads = 2 * layers, d_model // 32
    shape = {"arch": arch, "d_model": d_model, "n_layers": layers, "n_heads": heads, "d_ffn": d_ffn}
    return ModelConfig.from_dict(shape | fields | changes)
