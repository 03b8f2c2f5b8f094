"""Counts against the real thing: the instantiated model's parameters, torch's FLOP counter over its forward pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arch.config import ARCHS, NORMS, ModelConfig
from arch.lm import LanguageModel, build_model
from arch.presets import PAPER, TINY, preset
from flops import count_params, train_flops_per_token
from flops.forward import forward_products


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


@st.composite
def configurations(draw):
    heads = draw(st.integers(1, 4))
    return ModelConfig(
        arch=draw(st.sampled_from(ARCHS)),
        d_model=heads * 2 * draw(st.integers(1, 12)),
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
        hgrn1_complex=draw(st.booleans()),
        tpe_residual=draw(st.booleans()),
        expand=draw(st.integers(1, 3)),
        conv_width=draw(st.integers(1, 5)),
        ssm_state=draw(st.one_of(st.none(), st.integers(1, 40))),
        dt_rank=draw(st.one_of(st.none(), st.integers(1, 20))),
    )


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


@settings(max_examples=25, deadline=None, derandomize=True)
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
