"""The sizes that every architecture has: the paper's six and the quickstart's tiny ones. Imports no torch."""

from __future__ import annotations

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
SIZES = (*TINY, *PAPER)  # every architecture has these


def matrices(n_layers: int, d_model: int, d_ffn: int) -> int:
    """4 l d^2 + 3 l d g: parameters of a LLaMA without embedding and norms."""
    return n_layers * (4 * d_model**2 + 3 * d_model * d_ffn)


def layers_at_paper_size(size: str) -> dict[str, int]:
    """The layers of models with a low-rank output gate: 25 at 410m, where the others have 26 (table 7)."""
    return {"n_layers": 25} if size == "410m" else {}
