"""Memory where a GPU's kernels run: against what autograd keeps of the real host code."""

import importlib.util
import warnings

import pytest
import torch

from arch.architectures.hgrn1.shape import forget_gates
from arch.config import ARCHS
from arch.model.lm import build_model
from flops import by_kernels
from flops.memory import layer_activations, outer_activations
from tests.flops.kept import kept_bytes
from tests.flops.test_against_torch import ABLATED, ablated, name_of
from tests.flops.unlaunched import unlaunched

CASES = [
    *((arch, {}) for arch in ARCHS),
    *((arch, {"norm": "layer", "tie_embeddings": False}) for arch in ARCHS),
    *((arch, {"norm": "rms", "residual_dtype": "fp32"}) for arch in ARCHS),
    ("mamba2", {"norm": "srms", "expand": 3, "conv_width": 1}),
    ("mamba2", {"conv_width": 5}),
    ("gated_deltanet", {"expand_v": 1, "n_heads": 4, "conv_width": 5}),
    ("gla", {"gate_rank": 5, "n_heads": 4}),
    ("retnet", {"expand_v": 1, "n_heads": 4}),
    ("deltanet", {"expand_v": 2, "n_heads": 4, "conv_width": 5, "key_dim": 10}),
    ("kimi_delta", {"expand_v": 3, "n_heads": 4, "gate_rank": 5, "key_dim": 20}),
    *ABLATED,
]
# a norm's rule is the same for all
IN_FP32 = [case for case in CASES if case not in ABLATED and ("norm" not in case[1] or case[0] in ("llama", "mamba2"))]
WIDE = {"d_model": 512, "n_heads": 1, "n_layers": 1}
LONG = [
    *((arch, (1500, {})) for arch in ARCHS),
    *((arch, (300, WIDE)) for arch in ("tnl", "hgrn2", "cosformer2", "mamba2", "gla", "retnet")),
    *((arch, (300, WIDE)) for arch in ("gated_deltanet", "kimi_delta", "deltanet")),
    *((arch, (300, {"n_heads": 3})) for arch in ("gated_deltanet", "kimi_delta", "deltanet")),
    ("cosformer2", (300, WIDE | {"n_heads": 2})),
    ("cosformer2", (300, WIDE | {"lrpe": "half"})),
    ("cosformer2", (1500, {"lrpe": "half"})),
    ("mamba2", (300, {"ssm_state": 512})),
]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def kept(cfg, sequences, context, precision, own_instructions=True):
    """Bytes that autograd keeps of the model with its loss."""
    model, tokens = build_model(cfg, seed=0), torch.zeros(sequences, context + 1, dtype=torch.int64)
    with unlaunched(own_instructions), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plain form runs where no kernel is
        return kept_bytes(
            model, lambda: model(tokens[:, :-1], tokens[:, 1:], loss_only=True, backend="triton").loss, precision
        )


def modelled(cfg, sequences, context, precision):
    a = 2 if precision == "bf16" else 4
    layer = sum(layer_activations(cfg, context, sequences, a, kernels=True).values())
    outside = sum(outer_activations(cfg, context, sequences, a, kernels=True).values())
    plain = (cfg.arch == "hgrn1" and cfg.options.input_gate != "tied") or (cfg.arch == "hgrn2" and cfg.head_dim > 256)
    if plain and cfg.options.gates_forget:
        gates = forget_gates(cfg) if cfg.arch == "hgrn1" else cfg.d_model
        layer += 4 * sequences * context * gates  # of logsigmoid, on a CPU alone
    loss = by_kernels.loss(cfg, sequences * context, a)["loss_gradients"]
    return cfg.n_layers * layer + outside + loss + (copies(cfg) if precision == "bf16" else 0)


def copies(cfg):
    """Bytes of the bf16 copies of weights that autograd keeps: of HGRN1's expansions, whose products are plain ones."""
    if cfg.arch != "hgrn1" or cfg.options.expansion in ("none", "naive"):
        return 0
    named = build_model(cfg, seed=0).named_parameters()
    return 2 * sum(weight.numel() for name, weight in named if ".mixer.project." in name)


@needs_triton
@pytest.mark.parametrize(
    "arch, changes, precision",
    [*((*case, "bf16") for case in CASES), *((*case, "fp32") for case in IN_FP32)],
    ids=name_of,
)
def test_activations_are_those_that_autograd_keeps(arch, changes, precision):
    """To one percent, and to the byte in what a sequence's tokens add: left out are vectors, and a token id a row."""
    cfg = ablated(arch, "55k", changes, vocab_size=301)
    short, long = ((kept(cfg, 3, context, precision), modelled(cfg, 3, context, precision)) for context in (77, 300))
    for n_bytes, expected in (short, long):
        assert n_bytes == pytest.approx(expected, rel=0.01)
    if not cfg.to_dict().get("tpe_learned_decay"):  # a plain form, whose own lines leave more out
        assert long[0] - short[0] == long[1] - short[1]


@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("arch, shape", LONG, ids=str)
def test_long_sequences_and_wide_heads(arch, shape, precision):
    """Sequences cut into segments, and heads that no kernel takes; with and without Hopper's own instructions."""
    context, changes = shape
    cfg = ablated(arch, "55k", changes, vocab_size=301)
    for own_instructions in (True, False) if precision == "bf16" else (False,):  # fp32 has none of them
        n_bytes = kept(cfg, 1, context, precision, own_instructions)
        assert n_bytes == pytest.approx(modelled(cfg, 1, context, precision), rel=0.01)
