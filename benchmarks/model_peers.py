"""Whole models of other packages, as `python -m benchmarks.models` times them beside ours: same layers, width, heads,
FFN, vocabulary and batch, random weights, fp32 parameters under bf16 autocast, each package's defaults otherwise.

    hf-llama            transformers' LLaMA with PyTorch's attention; -compile: under torch.compile; -liger: with
                        Liger's rotation, norm, gated MLP and loss
    fla-hgrn2, fla-gla  flash-linear-attention's models, with its fused norms, MLP and loss of the hidden states
    fla-gdn             its Gated DeltaNet, with heads as in that paper: keys 3/4 of the width, values twice as wide
    fla-transformer     its softmax attention, with half as many heads of keys as of queries and a norm of both; by
                        PyTorch's attention where flash-attn is not installed
    fla-hgrn2-3to1      its HGRN2 with softmax attention after every three layers, without that norm
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from arch.architectures.transformer import kv_heads
from arch.bench.steps import LossOf
from arch.config import ModelConfig

PEERS = (
    "hf-llama",
    "hf-llama-compile",
    "hf-llama-liger",
    "fla-hgrn2",
    "fla-gla",
    "fla-gdn",
    "fla-transformer",
    "fla-hgrn2-3to1",
)


def make_peer(name: str, config: ModelConfig, device: str = "cuda") -> tuple[nn.Module, LossOf]:
    """The model on `device`, and its loss of ids [rows, context + 1]. Raises ImportError where its package is not
    installed."""
    with torch.device(device):
        model: Any = _llama(name, config) if name.startswith("hf-") else _fla(name, config)
    model.train()
    call = torch.compile(model) if name.endswith("-compile") else model

    def loss_of(ids: Tensor) -> Tensor:
        # these models shift the targets themselves
        loss: Tensor = call(input_ids=ids[:, :-1], labels=ids[:, :-1], use_cache=False).loss
        return loss

    return model, loss_of


def _shape_of(config: ModelConfig) -> dict[str, Any]:
    """As transformers' configurations name it."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ffn,
        "num_hidden_layers": config.n_layers,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _llama(name: str, config: ModelConfig) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    _restore(modeling_llama)
    model = LlamaForCausalLM(
        LlamaConfig(**_shape_of(config), num_attention_heads=config.n_heads, attn_implementation="sdpa")
    )
    if name.endswith("-liger"):
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama(model=model)
    return model


def _restore(module: Any) -> None:
    """Take away what Liger put into transformers' module for an earlier model: it replaces classes and functions for
    the whole process, also where it is given a model."""
    vars(module).update(_ORIGINAL)
    _ORIGINAL.update(vars(module))


_ORIGINAL: dict[str, Any] = {}


def _fla(name: str, config: ModelConfig) -> Any:
    from fla import models

    heads, head = config.n_heads, config.d_model // config.n_heads
    softmax = {"num_heads": heads, "num_kv_heads": kv_heads(heads)}
    fourth = list(range(3, config.n_layers, 4))
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "fla-hgrn2": ("HGRN2", {"num_heads": heads, "expand_ratio": None}),
        "fla-gla": ("GLA", {"num_heads": heads}),
        "fla-gdn": ("GatedDeltaNet", {"num_heads": max(1, 3 * heads // 4), "head_dim": head, "expand_v": 2}),
        "fla-transformer": ("Transformer", softmax | {"qk_norm": True}),
        "fla-hgrn2-3to1": ("HGRN2", {"num_heads": heads, "expand_ratio": None, "attn": softmax | {"layers": fourth}}),
    }
    _give_attention()
    kind, own = kinds[name]
    settings = getattr(models, f"{kind}Config")(
        **_shape_of(config), fuse_cross_entropy=False, fuse_linear_cross_entropy=True, **own
    )
    return getattr(models, f"{kind}ForCausalLM")(settings)


def _give_attention() -> None:
    """Causal attention by PyTorch to flash-linear-attention's layer, which refuses to be made without flash-attn."""
    from fla.layers import attn

    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int]) -> Tensor:
        """[B, T, H, D], whole sequences."""
        assert causal and window_size == (-1, -1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    if attn.flash_attn_func is None:
        attn.flash_attn_func = attention
