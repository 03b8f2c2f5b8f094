"""Memory where a GPU's kernels run: against what autograd keeps of the real host code, and against measured peaks."""

import contextlib
import importlib.util
import warnings
import weakref

import pytest
import torch

from arch.config import ARCHS
from arch.lm import build_model
from arch.presets import preset
from flops import by_kernels, training_memory
from flops.memory import layer_activations, matrix_weights, outer_activations
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
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def kept_bytes(cfg, sequences, context, precision, own_instructions=True):
    """Bytes that autograd keeps after a forward pass, each storage once and parameters not at all."""
    alive = []

    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor

    def pack(tensor):
        kept = Kept(tensor)
        alive.append(weakref.ref(kept))
        return kept

    model, tokens = build_model(cfg, seed=0), torch.zeros(sequences, context + 1, dtype=torch.int64)
    cast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    with unlaunched(own_instructions), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plain form runs where no kernel is
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor), cast:
            loss = model(tokens[:, :-1], tokens[:, 1:], loss_only=True, form="triton").loss
        found = [kept.tensor.untyped_storage() for kept in (reference() for reference in alive) if kept is not None]
    storages = {storage.data_ptr(): storage.nbytes() for storage in found}
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    del loss
    return sum(storages.values())


def modelled(cfg, sequences, context, precision):
    a = 2 if precision == "bf16" else 4
    layer = layer_activations(cfg, context, sequences, a)
    expected = cfg.n_layers * sum(layer.values()) + sum(outer_activations(cfg, context, sequences, a).values())
    expected += by_kernels.loss(cfg, sequences * context, a)["loss_gradients"]
    return expected + (2 * (matrix_weights(cfg) - cfg.vocab_size * cfg.d_model) if precision == "bf16" else 0)


@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("arch, changes", CASES, ids=name_of)
def test_activations_are_those_that_autograd_keeps(arch, changes, precision):
    """To one percent: what is left out does not grow with the tokens, of which a real batch has thousands more."""
    width = {"d_model": 60} if changes.get("expand_ratio") == 5 else {}
    cfg = preset(arch, "55k", **{"vocab_size": 301} | width | changes)
    for sequences, context in ((3, 77), (1, 300)):
        expected = modelled(cfg, sequences, context, precision)
        if arch == "hgrn1" and cfg.input_gate != "tied" and cfg.lower_bound != "only":
            # a second tensor of logsigmoid, which CUDA has not
            expected += 4 * sequences * context * cfg.n_layers * cfg.d_model * cfg.expand_ratio
        kept = kept_bytes(cfg, sequences, context, precision)
        print(arch, changes, precision, kept, expected, kept / expected)
        assert kept == pytest.approx(expected, rel=0.01)
