"""Configurations found for a target: the paper's own, and that nothing on the grid comes closer."""

import itertools
import json

import pytest

from arch.config import ARCHS
from arch.errors import InputError
from arch.presets import PAPER, preset
from arch.registry import ARCHITECTURES
from flops import count_params, train_flops_per_token
from flops.shapes import grid_shape
from flops.sizing import COARSE, best, default_aspect, flops_under, matches, missed, parameters, total_parameters
from tests.flops.test_cli import flops, must


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", [*PAPER, "6k", "55k", "393k"])
def test_the_presets_have_the_sizes_of_their_counts(arch, size):
    """By parameters with and without embedding, and by FLOP: the first one found is the preset, and exact. Small models
    are shaped as the tiny presets."""
    cfg = preset(arch, size)
    if size not in PAPER:
        same = {"vocab_size": 257, "context_length": 256, "chunk_size": 32}
        assert grid_shape(arch, cfg.d_model, cfg.n_layers, **same) == cfg
        return
    more = (total_parameters, flops_under("exact"), flops_under("6nd")) if size in ("70m", "3b") else ()
    for measure in (parameters, *more):
        sizing = best(arch, measure, measure(cfg))[0]
        assert (sizing.cfg, sizing.deviation) == (cfg, 0.0)


@pytest.mark.parametrize("arch", ["llama", "mamba1"])
@pytest.mark.parametrize("target", [3.3e7, 1.3e9])
def test_nothing_on_the_grid_is_closer(arch, target):
    low, high = default_aspect(arch)
    widths = [*range(256, 1024, 64), *range(1024, 4097, 128)]
    off = [
        (abs(parameters(grid_shape(arch, width, layers)) / target - 1), width)
        for width, layers in itertools.product(widths, range(2, 200))
        if low <= width / layers <= high
    ]
    closest = {width: min(value for value, w in off if w == width) for _, width in off}
    sizings = best(arch, parameters, target, top=4)
    assert [abs(sizing.deviation) for sizing in sizings] == sorted(closest.values())[:4]
    assert all(low <= sizing.cfg.d_model / sizing.cfg.n_layers <= high for sizing in sizings)
    assert all(sizing.value == count_params(sizing.cfg).non_embedding for sizing in sizings)


@pytest.mark.parametrize("arch", ["llama", "hgrn1", "mamba1", "mamba2"])
def test_no_hole_of_more_than_5_percent_from_10k_to_10b(arch):
    """But one of Mamba2's, whose tiny models have no MLP to vary: that is reported."""
    targets = [1e4 * 1.45**k for k in range(38)]
    assert targets[-1] > 9e9
    sizings = [best(arch, parameters, target, top=1)[0] for target in targets]
    coarse = [sizing for sizing in sizings if abs(sizing.deviation) > COARSE]
    assert len(coarse) == (arch == "mamba2") and len(missed(sizings, "it")) == len(coarse)


def test_off_the_grid():
    sizings = best("llama", flops_under("exact"), 5e9, (60.0, 70.0), context_length=2048, vocab_size=32_000)
    assert sizings and all(60 <= sizing.cfg.d_model / sizing.cfg.n_layers <= 70 for sizing in sizings)
    assert all(train_flops_per_token(sizing.cfg, "exact", 2048) == sizing.value for sizing in sizings)
    for target, message in ((1e3, "less than .* the smallest that tnl has"), (1e17, "more than .* the largest")):
        with pytest.raises(InputError, match=message):
            best("tnl", parameters, target)
    with pytest.raises(InputError, match="no width of the grid"):
        best("tnl", parameters, 1e9, (1e6, 1e6))
    assert best("llama", parameters, 1e14)[0].deviation == pytest.approx(0, abs=0.01)


def test_matches_of_a_preset():
    """Every architecture twice, each close; the model itself first."""
    target = preset("llama", "410m")
    pairs = matches(target, "exact")
    assert [kind for kind, _ in pairs] == ["params", "flops"] * len(ARCHS)
    assert [sizing.cfg.arch for _, sizing in pairs[::2]] == list(ARCHS)
    assert pairs[0][1].cfg == pairs[1][1].cfg == target
    for kind, sizing in pairs:
        assert abs(sizing.deviation) < 0.02
        count = parameters if kind == "params" else flops_under("exact")
        assert sizing.deviation == count(sizing.cfg) / count(target) - 1
        if kind == "flops" and ARCHITECTURES[sizing.cfg.arch].constant_state:  # its softmax buys others parameters
            assert parameters(sizing.cfg) > 1.2 * parameters(target)
    assert [sizing.cfg.arch for _, sizing in matches(target, "exact", archs=["hgrn2"])] == ["hgrn2"] * 2


def test_matches_under_a_convention_that_knows_no_g():
    """`paper` counts g = 8d/3 whatever it is: at small widths too, where g is varied else, layers and width reach the
    target alone. It ended in a division by zero."""
    of_the_paper = ["llama", "tnl", "hgrn2", "cosformer2"]
    for size in ("98k", "410m"):
        for kind, sizing in matches(preset("llama", size), "paper", archs=of_the_paper):
            assert abs(sizing.deviation) < (0.02 if size == "410m" else 0.15)
            if kind == "flops":
                again = grid_shape(
                    sizing.cfg.arch, sizing.cfg.d_model, sizing.cfg.n_layers, vocab_size=sizing.cfg.vocab_size
                )
                assert sizing.cfg.d_ffn == again.d_ffn


def test_the_command():
    budget = json.loads(must("size", "--arch", "tnl", "--budget", "1e22", "--tokens", "300B", "--json"))
    plain = json.loads(must("size", "--arch", "tnl", "--flops-per-token", str(1e22 / 300e9), "--json"))
    assert budget == plain and budget["target"] == {"flops_per_token_train_exact": 1e22 / 300e9}
    total = json.loads(must("size", "--arch", "llama", "--params", "7B", "--total", "--top", "2", "--json"))
    assert len(total["rows"]) == 2 and abs(total["rows"][0]["n_params"] / 7e9 - 1) < 0.02
    everyone = json.loads(must("size", "--params", "1M", "--json"))
    assert [row["arch"] for row in everyone["rows"]] == list(ARCHS) and everyone["warnings"] == []
    assert all(abs(row["deviation"]) < 0.02 for row in everyone["rows"])
    wide = flops("size", "--arch", "tnl", "--params", "3M", "--aspect", "500:600")
    assert "tnl: the closest shape of the grid is +18.0% off 3,000,000 non-embedding parameters" in wide.stderr
    assert "+17.96%" in wide.stdout
    matched = json.loads(must("match", "LLaMA-410m", "--arch", "cos2", "--context", "2048", "--json"))
    target = preset("llama", "410m", context_length=2048)
    assert matched["target"]["flops_per_token_train_exact"] == train_flops_per_token(target, "exact")
    assert [(row["arch"], row["by"]) for row in matched["rows"]] == [("cosformer2", "params"), ("cosformer2", "flops")]
