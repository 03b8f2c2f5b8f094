"""Memory where a GPU's kernels run: against what autograd keeps of the real host code."""

import importlib.util
import warnings

import pytest
import torch

from arch.architectures.hgrn1.shape import forget_gates
from arch.config import ARCHS
from arch.model.lm import build_model
from arch.model.mixer import Stream, mixer_of
from arch.presets import preset
from flops import by_kernels
from flops.memory import layer_activations, matrix_weights, outer_activations
from flops.params import layer_matrices
from tests.flops.kept import kept_bytes
from tests.flops.test_against_torch import ABLATED, name_of
from tests.flops.unlaunched import unlaunched

CASES = [
    *((arch, {}) for arch in ARCHS),
    *((arch, {"norm": "layer", "tie_embeddings": False}) for arch in ARCHS),
    *((arch, {"norm": "rms", "residual_dtype": "fp32"}) for arch in ARCHS),
    ("mamba2", {"norm": "srms", "expand": 3, "conv_width": 1}),
    ("mamba2", {"conv_width": 5}),
    *ABLATED,
]
WIDE = {"d_model": 1024, "n_heads": 2, "n_layers": 1}
LONG = [
    *((arch, (1500, {})) for arch in ARCHS),
    *((arch, (300, WIDE)) for arch in ("tnl", "hgrn2", "cosformer2", "mamba2")),
    ("cosformer2", (300, WIDE | {"n_heads": 4})),
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
    if plain and cfg.options.lower_bound != "only":
        gates = forget_gates(cfg) if cfg.arch == "hgrn1" else cfg.d_model
        layer += 4 * sequences * context * gates  # of logsigmoid, on a CPU alone
    weights = matrix_weights(cfg) - cfg.vocab_size * cfg.d_model if precision == "bf16" else 0
    loss = by_kernels.loss(cfg, sequences * context, a)["loss_gradients"]
    return cfg.n_layers * layer + outside + loss + 2 * weights


def small(arch, changes):
    width = {"d_model": 60} if changes.get("expand_ratio") == 5 else {}
    return preset(arch, "55k", **{"vocab_size": 301} | width | changes)


@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("arch, changes", CASES, ids=name_of)
def test_activations_are_those_that_autograd_keeps(arch, changes, precision):
    """To one percent, and to the byte in what a sequence's tokens add: left out are vectors, and a token id a row."""
    cfg = small(arch, changes)
    short, long = ((kept(cfg, 3, context, precision), modelled(cfg, 3, context, precision)) for context in (77, 300))
    for n_bytes, expected in (short, long):
        assert n_bytes == pytest.approx(expected, rel=0.01)
    if not cfg.to_dict().get("tpe_learned_decay"):  # a plain form, whose own lines leave more out
        assert long[0] - short[0] == long[1] - short[1]


@needs_triton
@pytest.mark.parametrize("arch", ARCHS)
def test_each_module_keeps_what_its_lines_say(arch):
    """Norms, mixer, MLP and Tpe alone, each with the copies of its weights."""
    cfg, n = preset(arch, "410m", n_layers=2, vocab_size=301, context_length=256), 2 * 256
    lines = layer_activations(cfg, 256, 2, 2, kernels=True)
    model = build_model(cfg, seed=0).decoder
    layer, x = model.layers[0], torch.zeros(2, 256, cfg.d_model, dtype=torch.bfloat16)
    bounds = None if model.gamma is None else torch.zeros(2, cfg.d_model)
    rotary = mixer_of(arch).rotary(cfg, torch.arange(256), x)
    stream = Stream(torch.arange(256), backend="triton", bounds=bounds, rotary=rotary)
    matrices = layer_matrices(cfg)
    cases = {"mixer.": (layer.mixer, lambda: layer.mixer(x, stream, {})[0])}
    if layer.mixer.has_mlp:
        cases["ffn"] = (layer.channel, lambda: layer.channel(x))
    with unlaunched(own_instructions=arch != "cosformer2"):  # whose own keep less
        for name, (module, run) in cases.items():
            expected = sum(size for line, size in lines.items() if line.startswith(name))
            expected += 2 * sum(size for matrix, size in matrices.items() if matrix.startswith(name))
            assert kept_bytes(module, run, "bf16") == pytest.approx(expected, rel=0.01), name
        branch = x.clone().requires_grad_()
        norms = kept_bytes(layer.mixer_norm, lambda: layer.mixer_norm.add(x, branch), "bf16")
        assert norms * (1 + layer.mixer.has_mlp) == lines["norms"]
        if model.tpe is not None:
            n_bytes = kept_bytes(model.tpe, lambda: model.tpe(x, stream, {})[0], "bf16")
            assert n_bytes == pytest.approx(2 * n * cfg.d_model, rel=0.002)


@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("arch, shape", LONG, ids=str)
def test_long_sequences_and_wide_heads(arch, shape, precision):
    """Sequences cut into segments, and heads that no kernel takes; with and without Hopper's own instructions."""
    context, changes = shape
    cfg = small(arch, changes)
    for own_instructions in (True, False):
        n_bytes = kept(cfg, 1, context, precision, own_instructions)
        assert n_bytes == pytest.approx(modelled(cfg, 1, context, precision), rel=0.01)


@needs_triton
def test_rows_of_chunks_are_those_of_the_kernels():
    """Segments, stored states and rows of the loss come from arch/kernel_config.py on both sides."""
    from arch.kernel_config import decay_config, rotary_config

    for a, exact in ((2, False), (4, True)):
        for hopper in (False, True):
            assert rotary_config(128, 128, exact, hopper, hopper).chunk == by_kernels.chunks_of(64, a)[0]
        for keys, values in ((16, 16), (64, 128), (128, 64), (128, 128), (256, 128), (256, 256)):
            assert decay_config(keys, values, exact).chunk == by_kernels.chunks_of(64, a)[0]
