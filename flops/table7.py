"""Table 7 of Shen et al. 2024 (Scaling Laws for Linear Complexity Language Models): ours, the print, and where the
print contradicts itself. Imports no torch."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

from arch.config import ModelConfig
from arch.errors import InputError, choice
from arch.presets import PAPER, preset
from arch.registry import plugins

from .conventions import CONVENTIONS, conventions_of, train_flops_per_token
from .params import count_params

DATA = Path(__file__).parent / "data"
# The training step of the table: 480 sequences of 8192 tokens.
BATCH, CONTEXT = 480, 8192
STEP_TOKENS = BATCH * CONTEXT
LABELS = {"llama": "LLaMA", "tnl": "TNL", "hgrn2": "HGRN2", "cosformer2": "cos2"}

# What gives the norms of the parameter column. `paper`: LayerNorms with weight and bias in LLaMA and cosFormer2, no
# norm weights in TNL and HGRN2: this reproduces the print. `preset`: the models as this package builds them.
NORMS = ("paper", "preset")
LAYER_NORM = ("llama", "cosformer2")
COLUMNS = ("arch", "size", "b", "n", "l", "d", "h", "g", "v", "params_million", "pflops_per_step")


@cache
def printed() -> dict[tuple[str, str], dict[str, str]]:
    """The cells as printed, by (arch, size) in this package's names (data/table7.csv)."""
    names = {label: arch for arch, label in LABELS.items()}
    with open(DATA / "table7.csv", newline="", encoding="utf-8") as handle:
        return {(names[row["arch"]], row["size"].lower()): row for row in csv.DictReader(handle)}


def configuration(arch: str, size: str, norms: str = "paper") -> ModelConfig:
    """The model of a row. Raises InputError for an unknown choice of norms."""
    if norms not in NORMS:
        raise InputError(f"--norms: unknown choice {norms!r}{choice(norms, list(NORMS))}")
    changes = {"norm": "layer"} if norms == "paper" and arch in LAYER_NORM else {}
    return preset(arch, size, context_length=CONTEXT, **changes)


def row(arch: str, size: str, norms: str = "paper") -> dict[str, Any]:
    """One row, COLUMNS and then `pflops_per_step_<convention>` in 1e15 FLOP for every convention, None under one that
    does not cover the architecture. `params_million` is without embeddings; `pflops_per_step` is the `paper`
    convention's, table 1 of the paper."""
    cfg = configuration(arch, size, norms)
    shape = {"l": cfg.n_layers, "d": cfg.d_model, "h": cfg.n_heads, "g": cfg.d_ffn, "v": cfg.vocab_size}
    label, name = (LABELS[arch], size.upper()) if arch in LABELS else (arch, size)
    result: dict[str, Any] = {"arch": label, "size": name, "b": BATCH, "n": CONTEXT} | shape
    result["params_million"] = count_params(cfg).non_embedding / 1e6
    covered = {n: train_flops_per_token(cfg, n) * STEP_TOKENS / 1e15 for n in conventions_of(cfg)}
    result["pflops_per_step"] = covered.get("paper")
    return result | {f"pflops_per_step_{n}": covered.get(n) for n in CONVENTIONS}


def rows(norms: str = "paper") -> list[dict[str, Any]]:
    """The paper's 24 rows in its order, and those of plugins' architectures at the same sizes."""
    return [row(arch, size, norms) for arch in (*LABELS, *plugins()) for size in PAPER]


# What the print contradicts, by the letter that marks the rows.
NOTES = {
    "a": "h: tables 2 and 7 print 16 heads at 1B; with the stated head width of 128 a width of 1536 has 12, and only "
    "12 gives the printed PFLOP of the linear models.",
    "b": "h: table 2 prints 8 heads, table 7 4 and 6, which is d / 128 and what the linear models' printed PFLOP need.",
    "c": "g: 5632 is printed; the printed parameters need 4096 = 8d / 3 (with 5632 they would be a quarter more).",
    "d": "l: table 2 says 26 layers; the printed parameters are those of table 7's 25.",
    "e": "params: printed above HGRN2's, while table 1 has LLaMA = HGRN2 - ld. The print holds 4ld more than 4ld^2 + "
    "3ldg: two LayerNorms a layer with weight and bias (norm=layer), which TNL's and HGRN2's counts do not have.",
    "f": "params: the print holds 7ld more than the text's sum: three LayerNorms a layer with weight and bias "
    "(norm=layer) and LRPE's angles.",
    "g": "params: the count that gives the other five rows of cos2 gives 2799.3 here; no formula gives all six.",
}


def notes_of(arch: str, size: str) -> str:
    """Letters of NOTES."""
    letters = {"1b": "ac", "70m": "b", "160m": "b"}.get(size, "")
    if size == "410m" and arch in ("tnl", "cosformer2"):
        letters += "d"
    letters += {"llama": "e", "cosformer2": "f"}.get(arch, "")
    return letters + ("g" if (arch, size) == ("cosformer2", "3b") else "")


def compared(norms: str = "paper") -> list[dict[str, Any]]:
    """The 24 rows beside the print: for h, g, parameters and PFLOP the printed cell and ours, whether ours rounds to
    it, and the letters of the notes."""
    result = []
    for (arch, size), cells in printed().items():
        ours = row(arch, size, norms)
        line: dict[str, Any] = {"arch": ours["arch"], "size": ours["size"]}
        for key in ("l", "h", "g"):
            line |= {f"{key}_printed": int(cells[key]), key: ours[key]}
        for key in ("params_million", "pflops_per_step"):
            line |= {f"{key}_printed": float(cells[key]), key: ours[key]}
            line[f"{key}_agrees"] = f"{ours[key]:.1f}" == cells[key]
        line["notes"] = notes_of(arch, size)
        line["note"] = " ".join(NOTES[letter] for letter in line["notes"])
        result.append(line)
    return result
