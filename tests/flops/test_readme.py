"""The numbers that flops/README.md prints are those that the package counts."""

from pathlib import Path

import pytest

from arch.config import ARCHS
from arch.presets import preset
from flops import (
    CONVENTIONS,
    by_module,
    checkpoint_bytes,
    conventions_of,
    count_params,
    decode_state,
    hardware_flops_per_token,
    state_bytes,
    train_flops_per_token,
    training_memory,
)
from flops.ladder import Ladder, rung
from tests.flops.test_kernel_peak import MEASURED, as_measured

README = Path(__file__).resolve().parents[2] / "flops" / "README.md"


def cost_row(arch):
    cfg = preset(arch, "410m")
    covered = {name: f"{train_flops_per_token(cfg, name) / 1e9:.4f}" for name in conventions_of(cfg)}
    cells = [covered.get(name, "-") for name in CONVENTIONS]
    hardware = f"{hardware_flops_per_token(cfg, 'layers') / 1e9:.4f}"
    return " | ".join(["| " + arch, f"{count_params(cfg).non_embedding:,}", *cells, hardware + " |"])


def memory_row(arch):
    cfg, gib = preset(arch, "410m", context_length=2048), 2**30
    cells = []
    for kernels in (True, False):
        how = {"micro_batch_tokens": 8192, "zero_stage": 0, "kernels": kernels}
        kept, again = training_memory(cfg, **how), training_memory(cfg, **how, recompute=True)
        cells += [f"{bytes_ / gib:.2f}" for bytes_ in (kept["activations"], kept["total"], again["total"])]
    cells.append(f"{decode_state(cfg, 8192, activation_bytes=2)['bytes'] / 2**20:.2f}")
    cells += [f"{checkpoint_bytes(cfg) / 1e9:.3f}", f"{state_bytes(cfg) / 1e9:.3f}"]
    return " | ".join(["| " + arch, *cells]) + " |"


def peak_row(arch):
    shown, measured = as_measured(arch) / 2**30, MEASURED.get(arch)
    columns = ["-", "-"] if measured is None else [f"{measured:.1f}", f"{shown / measured - 1:+.1%}"]
    return " | ".join([f"| {arch}", f"{shown:.2f}", *columns]) + " |"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("row", [cost_row, memory_row, peak_row])
def test_worked_numbers(arch, row):
    assert row(arch) in README.read_text().splitlines()


def unneeded_row(name, models):
    """Shares of `exact`: the masked half inside chunks, and of Mamba2 the scores of all heads but the first."""
    cells = []
    for arch, cfg in models.items():
        total, inside = train_flops_per_token(cfg, "exact"), by_module(cfg, "exact")["mixer.inside"]
        again = 0.0
        if arch == "mamba2":
            again = 3.0 * cfg.n_layers * (cfg.n_heads - 1) * 2 * cfg.chunk_size * cfg.options.ssm_state
        cells += [f"{(inside - again) / 2 / total:.1%}", *([f"{again / total:.1%}"] if again else [])]
    return " | ".join([f"| {name}", *cells]) + " |"


def test_what_exact_holds_beside_what_a_model_needs():
    archs, lines = ("tnl", "cosformer2", "mamba2"), README.read_text().splitlines()
    ladder = Ladder(1e6, 6e7, 4)
    for name, target in zip(ladder.names, ladder.targets, strict=True):
        fields = {"vocab_size": 257, "context_length": 2048}
        models = {arch: rung(arch, ladder, target, fields).cfg for arch in archs}
        assert unneeded_row(name, models) in lines
    assert unneeded_row("410m preset", {arch: preset(arch, "410m") for arch in archs}) in lines
