"""Costs of patterns: against the instantiated model, torch's counter and its cache; on ladders."""

import pytest
import torch

from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from arch.registry import register_pattern
from flops import conventions_of, count_params, decode_state, train_flops_per_token, training_memory
from flops.conventions import _needed_products
from flops.hardware import device_of
from flops.ladder import Ladder, rung
from flops.memory import kept_fp32, outer_activations
from flops.pace import pace
from tests.flops.test_against_torch import counted, executed, instantiated
from tests.patterns import random_pattern

pytestmark = pytest.mark.usefixtures("registered")
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pattern_costs_what_its_model_has(seed):
    cfg = random_pattern(seed)
    assert count_params(cfg).total == instantiated(cfg)
    model, context = build_model(cfg, seed=0), (40, 16, 37)[seed % 3]
    assert counted(cfg, 2, context) == executed(cfg, 2, context)
    with torch.no_grad():
        cache = model(input_ids=torch.zeros(1, context, dtype=torch.int64), use_cache=True).cache
    assert decode_state(cfg, context)["bytes"] == cache.n_bytes
    keep = model.keep_fp32()
    assert kept_fp32(cfg) == sum(p.numel() for name, p in model.named_parameters() if name in keep)


def test_a_pattern_of_one_kind_costs_what_the_architecture_does():
    register_pattern("only", ["hgrn2"])
    pattern, pure = preset("only", "410m"), preset("hgrn2", "410m")
    assert count_params(pattern) == count_params(pure) and conventions_of(pattern) == conventions_of(pure)
    for name in conventions_of(pure):
        assert train_flops_per_token(pattern, name) == train_flops_per_token(pure, name)
    kept = [
        training_memory(cfg, micro_batch_tokens=8192, recompute=again) for cfg in (pattern, pure) for again in (0, 1)
    ]
    assert kept[:2] == kept[2:]


def test_costs_of_a_pattern_are_those_of_its_layers():
    """Half of the layers of each of two models: half of what both have but embedding and head."""
    register_pattern("half", ["llama", "tnl"])
    both = {"n_layers": 8, "vocab_size": 1000, "context_length": 1024}
    half, llama, tnl = (preset(arch, "70m", **both) for arch in ("half", "llama", "tnl"))
    for name in ("paper", "appendix", "executed", "exact", "6nd"):
        mean = (train_flops_per_token(llama, name) + train_flops_per_token(tnl, name)) / 2
        assert train_flops_per_token(half, name) == pytest.approx(mean, rel=1e-4)  # the final norm
    seconds = [pace(cfg, 65_536, device_of("h100")).step_seconds for cfg in (half, llama, tnl)]
    assert seconds[0] == pytest.approx(sum(seconds[1:]) / 2)
    memory = [training_memory(cfg, micro_batch_tokens=8192)["activations"] for cfg in (half, llama, tnl)]
    assert memory[0] == pytest.approx(sum(memory[1:]) / 2, rel=1e-2)
    assert "paper" not in conventions_of(preset("half", "70m", decay="dependent"))
    assert sum(_needed_products(half, 1024).values()) * 3 == train_flops_per_token(half, "exact") * 1024


def test_each_kind_keeps_its_own_angles():
    register_pattern("angles", ["llama", "retnet"])
    rotary = [
        outer_activations(preset(arch, "70m", context_length=1024), 1024, 8, 2, kernels=True)["rotary"]
        for arch in ("angles", "llama", "retnet")
    ]
    assert rotary[0] == rotary[1] + rotary[2] and min(rotary) > 0


@pytest.mark.parametrize(
    "layers",
    [
        ["hgrn2"] * 3 + ["llama"],
        ["mamba2"] * 3 + ["llama"],
        ["mamba2"] * 7 + ["llama"],  # no MLP of one layer in eight makes up for the first shape of some sizes
        ["mamba1", "mamba2"],
    ],
)
def test_a_ladder_matches_patterns_to_pure_models(layers):
    register_pattern("mix", layers)
    ladder = Ladder(2e6, 1e9, 8)
    for target in ladder.targets:
        sized = rung("mix", ladder, target, {"context_length": 2048})
        assert abs(sized.deviation) <= (0.03 if layers == ["mamba1", "mamba2"] and target < 1e7 else 0.01)
        assert sized.cfg.n_layers % len(layers) == 0
        assert {kind.options.ssm_state for kind in sized.cfg.kinds if kind.arch == "mamba2"} <= {128}


def test_a_ladder_of_one_depth_gives_all_architectures_one_shape_whose_width_alone_grows():
    register_pattern("mix", ["hgrn2"] * 3 + ["llama"])
    ladder, widths = Ladder(1e6, 1e8, 6, layers=8), []
    for target in ladder.targets:
        shapes = [rung(arch, ladder, target, {}).cfg for arch in ("mix", "llama", "hgrn2")]
        assert len({(cfg.d_model, cfg.n_heads) for cfg in shapes}) == 1
        assert {cfg.n_layers for cfg in shapes} == {8}
        widths.append(shapes[0].d_model)
    assert widths == sorted(set(widths))
    with pytest.raises(InputError, match="layers: 6 does not hold the 4 layers that mix repeats"):
        rung("mix", Ladder(1e6, 1e8, 6, layers=6), 1e6, {})


def test_a_depth_that_cannot_hold_the_pattern_is_refused():
    register_pattern("mix", ["hgrn2"] * 3 + ["llama"])
    with pytest.raises(InputError, match=r"n_layers=6: mix repeats 4 layers .*: give a multiple of 4"):
        preset("mix", "70m")
    with pytest.raises(InputError, match="encodes positions before all layers"):
        register_pattern("mix", ["hgrn2", "cosformer2"])
        preset("mix", "98k")
