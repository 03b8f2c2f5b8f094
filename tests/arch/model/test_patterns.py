"""Models whose layers follow a pattern: one function in all ways to compute it, files, initialisation."""

import json
import math

import pytest
import torch

from arch.config import ModelConfig
from arch.errors import InputError
from arch.model.lm import build_model, load_model
from arch.presets import preset
from arch.registry import ARCHITECTURES, kinds_of, register_pattern
from tests.patterns import random_pattern

pytestmark = pytest.mark.usefixtures("registered")
SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 200))]
LENGTH = 53


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", SEEDS)
def test_chunks_steps_and_the_naive_form_are_one_function(seed):
    cfg = random_pattern(seed, init_std=0.1)
    assert ModelConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg
    model = build_model(cfg, seed=1).double()
    ids = torch.randint(0, 67, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        whole, cache, steps = model(input_ids=ids).logits, None, []
        close(model(input_ids=ids, backend="naive").logits, whole)
        for part in (ids[:, :17], *ids[:, 17:20].split(1, 1), ids[:, 20:]):
            out = model(input_ids=part, cache=cache, use_cache=True)
            cache = out.cache
            steps.append(out.logits)
        close(torch.cat(steps, 1), whole)
        packed = model(input_ids=ids[:1], documents=(torch.arange(LENGTH) >= 30).long()[None]).logits
        close(packed[:, 30:], model(input_ids=ids[:1, 30:]).logits)
        other = ids.clone()
        other[:, 30] = (other[:, 30] + 1) % 67
        moved = (model(input_ids=other).logits != whole).any(-1).any(0)
    assert not moved[:30].any() and moved[30:].any()


def test_a_pattern_of_one_kind_is_the_architectures_model():
    """The same parameters by name, bits and groups of weight decay."""
    register_pattern("only", ["hgrn2", "hgrn2"])
    pattern, pure = (build_model(preset(arch, "25k"), seed=3) for arch in ("only", "hgrn2"))
    assert ARCHITECTURES["only"].layers == ("hgrn2",)
    ours, theirs = dict(pattern.named_parameters()), dict(pure.named_parameters())
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert pattern.no_weight_decay() == pure.no_weight_decay()
    ids = torch.arange(64)[None]
    assert torch.equal(pattern(input_ids=ids).logits, pure(input_ids=ids).logits)


def test_what_belongs_to_a_kind_is_by_kind(tmp_path):
    register_pattern("mix", ["hgrn2", "mamba2", "llama", "hgrn2"], {"llama": {"n_heads": 4, "norm": "layer"}})
    cfg = preset("mix", "25k", n_layers=8, n_heads=2)
    assert kinds_of("mix") == ("hgrn2", "mamba2", "llama")
    assert [(kind.arch, kind.n_layers, kind.n_heads, kind.norm) for kind in cfg.kinds] == [
        ("hgrn2", 4, 2, "srms"),
        ("mamba2", 2, 2, "rms"),
        ("llama", 2, 2, "layer"),  # what the whole model is given wins
    ]
    model = build_model(cfg, seed=0)
    assert model.decoder.gamma.shape == (4, 32)  # rows for the layers of HGRN2 alone
    assert [hasattr(layer, "channel") for layer in model.decoder.layers] == [True, False, True, True] * 2
    writers = torch.cat([p.flatten() for name, p in model.named_parameters() if name.endswith("mixer.out.weight")])
    assert writers.std().item() == pytest.approx(0.02 / math.sqrt(14), rel=0.05)
    exempt = model.no_weight_decay()
    assert {"decoder.gamma", "decoder.layers.1.mixer.A_log", "decoder.layers.2.mixer_norm.bias"} <= exempt
    assert "decoder.layers.0.mixer.out.weight" not in exempt and not cfg.constant_state
    model.save_pretrained(tmp_path)
    del ARCHITECTURES["mix"]  # a checkpoint needs no study
    loaded = load_model(tmp_path)
    assert loaded.model_config == cfg
    ids = torch.arange(64)[None]
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert cfg.shortened(2).n_layers == 4 and cfg.replace(gate_rank=None) == cfg
    assert cfg.replace(d_model=64, ssm_state=8).kinds[1].options.ssm_state == 8


@pytest.mark.parametrize(
    "layers, own, message",
    [
        ([], {}, "name the architecture of each layer"),
        (["hgrn3"], {}, "unknown architecture 'hgrn3'"),
        (["hgrn2", "llama"], {"tnl": {}}, "tnl is none of its layers: hgrn2, llama"),
    ],
)
def test_a_wrong_pattern_is_refused(layers, own, message):
    with pytest.raises(InputError, match=message):
        register_pattern("mix", layers, own)
    assert "mix" not in ARCHITECTURES


def test_a_name_of_an_architecture_is_no_pattern():
    with pytest.raises(InputError, match="'tnl' is the name of an architecture already"):
        register_pattern("tnl", ["hgrn2"])


@pytest.mark.parametrize(
    "change",
    [
        {"layers": ["hgrn2", 3]},
        {"layers": ["hgrn2"]},
        {"kinds": {"hgrn2": {"d_model": 8}, "llama": {}}},
        {"kinds": None},
        {"gate_rank": 4},
    ],
)
def test_plain_data_that_is_no_pattern_is_refused(change):
    register_pattern("mix", ["hgrn2", "llama"])
    fields = preset("mix", "25k").to_dict()
    with pytest.raises(InputError, match=r"model\.layers"):
        ModelConfig.from_dict(fields | change)
