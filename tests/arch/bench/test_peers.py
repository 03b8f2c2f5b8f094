"""Whole models against other people's: transformers' own classes, in fp32, with our weights copied into theirs."""

import pytest
import torch

from arch.hf.convert import from_hf, to_hf
from arch.model.lm import LanguageModel, build_model
from arch.presets import preset

ARCHS = ("llama", "mamba2", "mamba1")


def scattered(arch: str, size: str = "25k", **changes: object) -> LanguageModel:
    """A model away from values that hide a mistake: weights of one, equal skips."""
    model = build_model(preset(arch, size, **{"init_std": 0.1, **changes}), seed=3)
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            if name in model.no_weight_decay():
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    return model


def same_logits(ours: LanguageModel, theirs: torch.nn.Module, length: int) -> None:
    """fp32, to 1e-5, on random tokens."""
    vocab_size = ours.model_config.vocab_size
    ids = torch.randint(0, vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(input_ids=ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 50, 64])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_library_computes_the_same_logits(arch, length):
    model = scattered(arch)
    same_logits(model, to_hf(model), length)


@pytest.mark.parametrize(
    "arch, changes",
    [
        ("llama", {"rope_base": 500.0}),
        ("llama", {"norm_eps": 1e-2, "tie_embeddings": False}),
        ("mamba2", {"norm_eps": 1e-2, "conv_width": 3, "expand": 3, "ssm_state": 5}),
        ("mamba2", {"tie_embeddings": False, "n_heads": 4, "residual_dtype": "fp32"}),
        ("mamba1", {"norm_eps": 1e-2, "conv_width": 3, "expand": 3, "ssm_state": 5, "dt_rank": 3}),
        ("mamba1", {"tie_embeddings": False}),
    ],
)
def test_every_field_that_changes_the_function_is_carried_over(arch, changes):
    model = scattered(arch, **changes)
    same_logits(model, to_hf(model), 33)


@pytest.mark.parametrize("tied", [True, False])
def test_grouped_query_attention_is_repeated(tied):
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = from_hf(theirs)
    same_logits(ours, theirs, 40)
    same_logits(ours, to_hf(ours), 40)
    extra = 2 * 2 * (6 - 2) * 8 * 48  # keys and values, two layers, four heads more
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) + extra
