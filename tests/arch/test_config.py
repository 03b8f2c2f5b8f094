"""ModelConfig refuses what contradicts itself or means nothing to the architecture, in one line."""

import dataclasses

import pytest
import torch

from arch.config import ARCHS, field_choices, means, reads
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from arch.registry import ARCHITECTURES, archs_with
from flops import count_params, train_flops_per_token
from tests.commands import refused

CHOICES = field_choices()
OPTIONS = sorted({name for arch in ARCHS for name in ARCHITECTURES[arch].options.names()})
OTHER = {"value_activation": True, "theta_learned": False, "tpe_learned_decay": True, "output_gate": False}
OTHER |= {"data_dependent_theta": True, "expand_ratio": 3, "expand": 3, "conv_width": 3}
OTHER |= {"ssm_state": 5, "dt_rank": 3, "tpe_context": 7, "gate_rank": 3, "tpe_dim": 3, "tpe_residual": False}
OTHER |= {"key_dim": 3, "expand_v": 3, "negative_eigenvalues": True, "gate_temperature": 3}
OTHER |= {"rope_base": 5.0, "n_kv_heads": 2, "qk_norm": False, "window": 9, "attention_gate": True} | {
    name: valid[1] for name, valid in CHOICES.items()
}


@pytest.mark.parametrize("field", OPTIONS)
def test_a_field_is_refused_where_it_means_nothing(field):
    for arch in ARCHS:
        if reads(arch, field):
            continue
        with pytest.raises(InputError) as error:
            preset(arch, "14k", **{field: OTHER[field]})
        message = str(error.value)
        assert message == f"model.{field} means nothing to {arch}, only to {', '.join(archs_with(field))}: leave it out"
        default = default_of(archs_with(field)[0], field)
        assert field not in preset(arch, "14k", **{field: default}).to_dict()  # saying the default is no mistake
    assert all(field in preset(arch, "14k").to_dict() for arch in archs_with(field))


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        ("hgrn1", {"hgrn1_state": "real", "data_dependent_theta": True}, "needs hgrn1_state complex: a real state has"),
        ("hgrn1", {"expansion": "lr", "expand_ratio": 4}, "expansion=lr is of narrow states: set hgrn1_state to narr"),
        ("hgrn1", {"expand_ratio": 4}, "expand_ratio=4 needs an expansion: naive, lr, glt, glti, krp, kp"),
        ("hgrn2", {"lower_bound": "only", "input_gate": "none"}, "no gate on the state that depends on the token"),
        ("hgrn1", {"lower_bound": "one"}, "nothing would enter the state: set model.input_gate to own"),
        ("hgrn1", {"hgrn1_state": "narrow", "expansion": "glt", "expand_ratio": 5}, "choose a ratio that divides it"),
        ("hgrn2", {"lower_bound": "increasng"}, "model.lower_bound must be one of increasing, off, random, decreasing"),
        ("tnl", {"norm": "rmss"}, "one of srms, rms, layer, not 'rmss' (did you mean 'rms'?)"),
        ("hgrn2", {"output_gate": "off"}, "model.output_gate must be true or false, not 'off'"),
        ("cosformer2", {"tpe_dim": "8"}, "model.tpe_dim must be a positive integer, not '8'"),
        ("cosformer2", {"tpe_dim": 10**11}, "model.tpe_dim is absurdly large: at most 10,000,000,000"),
        ("llama", {"d_ffn": 10**400}, "is absurdly large: at most 10,000,000,000"),
        ("tnl", {"norm_eps": 1e60}, "model.norm_eps=1e+60 is absurdly large: at most 1"),
        ("llama", {"d_model": 18, "n_heads": 2}, "rotary embedding needs an even head dimension, not 9"),
        ("hgrn2", {"d_model": 97}, "is not divisible by model.n_heads"),
        ("hgrn2", {"n_layers": 0}, "n_layers must be a positive integer"),
        ("hgrn2", {"chunk_size": 48}, "power of two"),
        ("hgrn2", {"d_mdel": 96}, "did you mean 'd_model'"),
    ],
)
def test_contradictions_are_one_clear_line(arch, changes, message):
    with refused(message):
        preset(arch, "14k", **changes)


def test_an_ablation_at_its_default_is_no_part_of_a_runs_identity():
    """So that runs keep their hashes when another ablation is added; a changed one is part of it."""
    for arch in ARCHS:
        for field, default in ARCHITECTURES[arch].options.ablations().items():
            more = {"hgrn1_state": "narrow", "expansion": "lr", "expand_ratio": 3} if "expan" in field else {}
            plain = preset(arch, "14k", **{field: default})
            changed = preset(arch, "14k", **({field: OTHER[field]} | more))
            assert field not in plain.identity() and changed.identity()[field] == changed.to_dict()[field]


def default_of(arch, option):
    return next(field.default for field in dataclasses.fields(ARCHITECTURES[arch].options) if field.name == option)


def test_an_option_of_another_architecture_replaces_nothing():
    with pytest.raises(InputError, match="gate_rank means nothing to llama"):
        preset("llama", "14k").replace(gate_rank=3)
    with pytest.raises(InputError, match="give an architecture's options flat"):
        preset("llama", "14k").replace(options=None)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_an_architecture_ignores_changes_nothing_of_it(arch):
    """Neither its weights at the start, nor its outputs, nor its costs; and each of the fields that some ignore changes
    those of the architectures that do not (a chunk's rows: the costs of those that work in chunks)."""
    ids = torch.arange(40)[None] % 7
    for field, values in {"n_heads": (2, 4), "d_ffn": (32, 64), "chunk_size": (8, 16)}.items():
        first, other = (preset(arch, "14k", context_length=40, **{field: value}) for value in values)
        costs = [(count_params(cfg), train_flops_per_token(cfg, "exact")) for cfg in (first, other)]
        logits = [build_model(cfg)(ids).logits for cfg in (first, other)]
        same = costs[0] == costs[1] and torch.equal(*logits)
        if means(arch, field):
            assert not same or (arch, field) == ("hgrn1", "chunk_size"), field
        else:
            assert same, field
    assert all(means(arch, field) for field in ("d_model", "context_length", *ARCHITECTURES[arch].options.names()))
    assert not means(arch, "taps")
