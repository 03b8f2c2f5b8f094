"""Whole models against other people's: transformers' own classes, in fp32, with our weights copied into theirs."""

import pytest
import torch

from arch.lm import LanguageModel, build_model
from arch.presets import preset

COMMON = {
    "decoder.embedding.weight": "backbone.embeddings.weight",
    "decoder.norm.weight": "backbone.norm_f.weight",
    "decoder.layers.": "backbone.layers.",
    ".mixer_norm.": ".norm.",
    ".project.input.": ".in_proj.",
    ".conv.": ".conv1d.",
    ".out.": ".out_proj.",
}


def translated(model: LanguageModel, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """The model's weights under the library's names."""
    found = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        found[name] = weight[:, None] if name.endswith("conv1d.weight") else weight
    return found


def scattered(arch: str) -> LanguageModel:
    """A model away from values that hide a mistake: weights of one, equal skips."""
    model = build_model(preset(arch, "25k", init_std=0.1), seed=3)
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            if name in model.no_weight_decay():
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    return model


def same_logits(model: LanguageModel, theirs: torch.nn.Module, length: int) -> None:
    """fp32, to 1e-5, on random tokens."""
    vocab_size = model.model_config.vocab_size
    ids = torch.randint(0, vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 50, 64])
def test_mamba2_equals_mamba2_for_causal_lm(length):
    import transformers

    model = scattered("mamba2")
    config = model.model_config
    theirs = transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            num_hidden_layers=config.n_layers,
            num_heads=config.n_heads,
            head_dim=config.inner_dim // config.n_heads,
            state_size=config.ssm_state,
            n_groups=1,
            chunk_size=16,
            layer_norm_epsilon=config.norm_eps,
            tie_word_embeddings=True,
        )
    ).eval()
    theirs.load_state_dict(translated(model, COMMON))
    same_logits(model, theirs, length)


@pytest.mark.parametrize("length", [1, 50])
def test_mamba1_equals_mamba_for_causal_lm(length):
    import transformers

    model = scattered("mamba1")
    config = model.model_config
    theirs = transformers.MambaForCausalLM(
        transformers.MambaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            num_hidden_layers=config.n_layers,
            state_size=config.ssm_state,
            time_step_rank=config.dt_rank,
            layer_norm_epsilon=config.norm_eps,
            tie_word_embeddings=True,
        )
    ).eval()
    names = {".dt_bias": ".dt_proj.bias", ".select.": ".x_proj.", ".step.": ".dt_proj."}
    theirs.load_state_dict(translated(model, COMMON | names))
    same_logits(model, theirs, length)
