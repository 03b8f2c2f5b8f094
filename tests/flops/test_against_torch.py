"""Counts against the real thing: the instantiated model's parameters, torch's FLOP counter over its forward pass."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arch.config import ABLATIONS, ARCHS, CHOICES, NORMS, ONLY_FOR, ModelConfig
from arch.errors import InputError
from arch.lm import LanguageModel, build_model
from arch.presets import PAPER, TINY, preset
from flops import CONVENTIONS, conventions_of, cost_table, count_params, train_flops_per_token
from flops.forward import forward_products
from tests.arch.test_ablations import CASES, name_of


def instantiated(cfg: ModelConfig) -> int:
    """Parameters of the model on the meta device, tied ones once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in LanguageModel(cfg).parameters())


def counted(cfg: ModelConfig, sequences: int, context: int) -> int:
    """FLOP of a forward pass as torch counts them; SDPA is counted in its MATH form only."""
    model = build_model(cfg, seed=0)
    tokens = torch.zeros(sequences, context, dtype=torch.int64)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=tokens)
    return counter.get_total_flops()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size", [*TINY, *PAPER])
def test_parameters_of_every_preset(arch, size):
    cfg = preset(arch, size)
    assert count_params(cfg).total == instantiated(cfg)


# what an architecture may have beside the common fields, and values that contradict nothing
OWN = {
    "hgrn1_complex": st.booleans(),
    "data_dependent_theta": st.booleans(),
    "lower_bound": st.sampled_from(CHOICES["lower_bound"]),
    "input_gate": st.sampled_from(CHOICES["input_gate"]),
    "output_gate": st.booleans(),
    "expansion": st.sampled_from(CHOICES["expansion"]),
    "expand_ratio": st.integers(1, 5),
    "value_activation": st.booleans(),
    "theta_learned": st.booleans(),
    "lrpe": st.sampled_from(CHOICES["lrpe"]),
    "tpe_learned_decay": st.booleans(),
    "expand": st.integers(1, 3),
    "conv_width": st.integers(1, 5),
    "ssm_state": st.one_of(st.none(), st.integers(1, 40)),
    "dt_rank": st.one_of(st.none(), st.integers(1, 20)),
}


@st.composite
def configurations(draw):
    heads = draw(st.integers(1, 4))
    arch = draw(st.sampled_from(ARCHS))
    own = {name: draw(values) for name, values in OWN.items() if arch in ONLY_FOR[name]}
    d_model = heads * 2 * draw(st.integers(1, 12))
    if arch == "hgrn1":
        own["hgrn1_complex"] &= own["expansion"] == "none"
        own["data_dependent_theta"] &= own["hgrn1_complex"]
        ratio = own["expand_ratio"] if own["expansion"] != "none" else 1
        own["expand_ratio"] = math.gcd(ratio, d_model) if own["expansion"] in ("glt", "glti") else ratio
    if own.get("lower_bound") == "only" and own["input_gate"] == "none":
        own["input_gate"] = "own"
    return ModelConfig(
        arch=arch,
        d_model=d_model,
        n_layers=draw(st.integers(1, 4)),
        n_heads=heads,
        d_ffn=draw(st.integers(1, 90)),
        vocab_size=draw(st.integers(1, 300)),
        context_length=draw(st.integers(1, 200)),
        tie_embeddings=draw(st.booleans()),
        norm=draw(st.sampled_from([None, *NORMS])),
        chunk_size=2 ** draw(st.integers(0, 6)),
        gate_rank=draw(st.one_of(st.none(), st.integers(1, 40))),
        tpe_dim=draw(st.one_of(st.none(), st.integers(1, 40))),
        tpe_residual=draw(st.booleans()),
        **own,
    )


ABLATED = [
    *CASES,
    *(
        ("cosformer2", {"lrpe": kind, "theta_learned": learned})
        for kind in CHOICES["lrpe"]
        for learned in (True, False)
    ),
    ("cosformer2", {"tpe_learned_decay": True, "tpe_dim": 5}),
    (
        "cosformer2",
        {"lrpe": "half", "d_model": 48, "n_heads": 16, "value_activation": True},
    ),  # a head of three channels
    ("tnl", {"value_activation": True}),
]
every_ablation = pytest.mark.parametrize("arch, changes", ABLATED, ids=name_of)


@every_ablation
def test_ablations(arch, changes):
    """Parameters and products, with a shorter last chunk."""
    cfg = preset(arch, "55k", **({"d_model": 60} if changes.get("expand_ratio") == 5 else {}) | changes)
    assert count_params(cfg).total == instantiated(cfg)
    assert counted(cfg, 2, 77) == sum(forward_products(cfg, 77, 2).values())


@every_ablation
def test_ablations_of_the_paper_are_under_its_convention_where_they_cost_the_same(arch, changes):
    cfg = preset(arch, "55k", **changes)
    plain = preset(arch, "55k", **{k: v for k, v in changes.items() if k not in ABLATIONS})
    same = arch != "hgrn1" and forward_products(cfg) == forward_products(plain)
    assert (
        conventions_of(cfg)
        == (CONVENTIONS if same else ("exact", "6nd"))
        == tuple(cost_table(cfg)["flops_per_token_train"])
    )
    if same:
        assert train_flops_per_token(cfg, "paper") == train_flops_per_token(plain, "paper")
    else:
        with pytest.raises(InputError, match=r"'paper' has no formula for .*use exact or 6nd"):
            train_flops_per_token(cfg, "paper")


def test_the_paper_convention_names_the_ablation_it_does_not_cover():
    with pytest.raises(InputError, match="no formula for hgrn2 with input_gate=own, output_gate=False: use exact"):
        train_flops_per_token(preset("hgrn2", "55k", input_gate="own", output_gate=False), "paper")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(configurations())
def test_parameters_of_random_configurations(cfg):
    assert count_params(cfg).total == instantiated(cfg)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("untied_layer_norm", [False, True])
def test_embedding_and_the_rest_by_name(arch, untied_layer_norm):
    changes = {"tie_embeddings": False, "norm": "layer"} if untied_layer_norm else {}
    cfg = preset(arch, "25k", **changes)
    shape, count = (cfg.vocab_size, cfg.d_model), count_params(cfg)
    tables = [p for p in build_model(cfg, seed=0).parameters() if tuple(p.shape) == shape]
    assert len(tables) == (2 if untied_layer_norm else 1)
    assert count.embedding == sum(p.numel() for p in tables) == count.total - count.non_embedding


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("sequences", "context"), [(1, 256), (3, 256), (2, 77), (1, 20), (2, 1)])
def test_forward_products_equal_torchs_counter(arch, sequences, context):
    """Whole chunks, a shorter last one, less than one chunk, a single token."""
    cfg = preset(arch, "55k")
    assert counted(cfg, sequences, context) == sum(forward_products(cfg, context, sequences).values())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(configurations())
def test_forward_products_of_random_configurations(cfg):
    assert counted(cfg, 1, cfg.context_length) == sum(forward_products(cfg).values())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("context", "kernel_rows"), [(256, 32), (77, 32 + 13), (20, 20)])
def test_exact_differs_from_the_counter_by_its_named_lines(arch, context, kernel_rows):
    """3 x forward, less half of the softmax square (causal) and the TPE kernel (once a pass, not per token), which has
    as many rows as the chunks of each length it is made for: whole ones, and the shorter last one."""
    cfg = preset(arch, "55k", context_length=context, tpe_dim=10)
    d, layers = cfg.d_model, cfg.n_layers
    not_counted = {"llama": 2 * context * context * d * layers, "cosformer2": 2 * d * 10 * kernel_rows}
    expected = 3 * (counted(cfg, 1, context) - not_counted.get(arch, 0)) / context
    assert train_flops_per_token(cfg, "exact") == pytest.approx(expected, rel=1e-14)
