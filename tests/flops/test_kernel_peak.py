"""Peak memory where a GPU's kernels run: measured ones, and those of whole steps whose tensors have no numbers."""

import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from arch.config import ARCHS
from arch.model.lm import LanguageModel
from arch.presets import preset
from flops import training_memory
from flops.params import layer_matrices
from flops.registry import entry_of
from tests.flops.unlaunched import unlaunched

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

# Peak of torch.cuda.max_memory_allocated in GiB, measured on one H200 (Mamba: H100): torch 2.11, AdamW (fused) on fp32
# parameters as at ZeRO stage 0, bf16 autocast, 4 x 8,192 tokens, vocabulary 100,280 (arch/bench/whole_model.py). Then
# bf16 copies of all layers' weights lived from the forward to the backward pass.
MEASURED = {
    "llama": 35.9,
    "tnl": 41.5,
    "hgrn2": 45.0,
    "cosformer2": 47.6,
    "mamba2": 51.9,
    "mamba1": 74.9,
    "transformer": 38.2,
}


def as_measured(arch):
    """Bytes as measured, with those copies."""
    cfg = preset(arch, "410m")
    matrices, kept = layer_matrices(cfg), entry_of(arch).memory.autocast_copies(cfg)
    more = 2.0 * cfg.n_layers * sum(size for name, size in matrices.items() if name not in kept)
    return training_memory(cfg, micro_batch_tokens=4 * 8192, zero_stage=0)["total"] + more


@pytest.mark.parametrize("arch", MEASURED)
def test_peak_is_the_one_measured_on_a_gpu(arch):
    """The model is 0.1 to 0.6 % low: the temporary results of single operations are not in it."""
    assert as_measured(arch) / 2**30 == pytest.approx(MEASURED[arch], rel=0.01)


class Allocated(TorchDispatchMode):
    """Bytes of all storages that live, and the most there ever were: each tensor in blocks of 512 bytes, as CUDA's."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor.untyped_storage())
        return out

    def see(self, storage):
        key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
        if key not in self.known:
            self.known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key, size):
        self.known.discard(key)
        self.live -= size


def peak_of_a_step(cfg, sequences, precision, recompute):
    """Of forward and backward pass beside parameters and Adam's moments; the kernels' own temporaries are not seen."""
    cast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    # of cosFormer2 Hopper's own kernels keep less
    with FakeTensorMode(), Allocated() as allocated, unlaunched(cfg.arch != "cosformer2"):
        model = LanguageModel(cfg).train()
        model.decoder.gradient_checkpointing = recompute
        moments = [torch.empty_like(p) for p in model.parameters() for _ in range(2)]
        tokens = torch.zeros(sequences, cfg.context_length + 1, dtype=torch.int64)
        with cast:
            loss = model(tokens[:, :-1], tokens[:, 1:], loss_only=True, backend="triton").loss
        loss.backward()
        del moments
    return allocated.peak


STEPS = [
    *((arch, 4, 2048, "bf16", True) for arch in ARCHS),
    *((arch, 1, 2048, "fp32", False) for arch in ARCHS),
    ("hgrn2", 4, 2048, "bf16", False),
    *(("tnl", 1, 256, "bf16", recompute) for recompute in (False, True)),
    *((arch, 32, 2048, "bf16", True) for arch in ("llama", "hgrn1")),
    *((arch, 16, 512, "bf16", True) for arch in ("gated_deltanet", "kimi_delta")),
    ("llama", 4, 2048, "bf16", 0.8),
    ("hgrn2", 4, 2048, "bf16", 0.5),
    ("mamba2", 4, 2048, "bf16", 0.8),
    ("tnl", 1, 256, "bf16", 0.5),
    ("hgrn1", 1, 2048, "fp32", 0.5),
]


@needs_triton
@pytest.mark.parametrize("arch, sequences, context, precision, recompute", STEPS)
def test_peak_is_that_of_a_step(arch, sequences, context, precision, recompute):
    """Tied gradients are added up in place but where tensors have no numbers, so that the head is apart here."""
    n_layers = 4 if 0 < recompute < 1 else 3
    cfg = preset(arch, "160m", n_layers=n_layers, context_length=context, vocab_size=50_000, tie_embeddings=False)
    lines = training_memory(
        cfg, micro_batch_tokens=sequences * context, zero_stage=0, precision=precision, recompute=recompute
    )
    peak = peak_of_a_step(cfg, sequences, precision, recompute)
    print(arch, sequences, context, precision, recompute, peak / 2**30, lines["total"] / peak)
    assert lines["total"] == pytest.approx(peak, rel=0.02)


@needs_triton
@pytest.mark.parametrize("arch", ["gated_deltanet", "kimi_delta"])
def test_peak_with_many_states(arch):
    """Where a layer's backward pass holds most at the states of short chunks, not at the MLP."""
    cfg = preset(arch, "160m", context_length=2048, vocab_size=2000, n_layers=2, chunk_size=16, tie_embeddings=False)
    lines = training_memory(cfg, micro_batch_tokens=4 * 2048, zero_stage=0, recompute=True)
    peak = peak_of_a_step(cfg, 4, "bf16", True)
    print(arch, peak / 2**30, lines["total"] / peak)
    assert lines["total"] == pytest.approx(peak, rel=0.02)


SHARDED = """
import json
import sys
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from arch.model.lm import build_model
from arch.no_compiler import keep_from_the_compiler
from arch.presets import preset
from scaling.rundir.launcher import Ranks
from scaling.study.training import Training
from scaling.trainer.engine import Engine
from tests.flops.test_kernel_peak import SHAPE, Allocated
from tests.flops.unlaunched import unlaunched

keep_from_the_compiler()
WORLD, TIES, SHARES = map(json.loads, sys.argv[1:])
dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
torch.cuda.get_device_capability = lambda device: (8, 0)
peaks = []
for tie, recompute in ((tie, share) for tie in TIES for share in SHARES):
    with Allocated() as allocated:
        model = build_model(preset("llama", "160m", tie_embeddings=tie, **SHAPE), 0)
        model.decoder.gradient_checkpointing = recompute
        training = Training(batch_tokens=WORLD * 512, zero_stage=3, precision="bf16")
        engine = Engine(model, training, WORLD, torch.device("cpu"), Ranks(0, WORLD))
        moments = torch.empty(2, sum(p.ds_tensor.numel() for p in model.parameters()))
        for _ in range(2):  # DeepSpeed first records the order of the modules
            allocated.peak = allocated.live
            with unlaunched():
                engine.passes(torch.zeros(1, 513, dtype=torch.int64))
        peaks.append(allocated.peak)
        del engine, model, moments
print(json.dumps(peaks))
"""
SHAPE = {"n_layers": 4, "d_model": 256, "n_heads": 2, "d_ffn": 688, "context_length": 512, "vocab_size": 8000}


@needs_triton
@pytest.mark.parametrize(
    ("world", "ties", "shares"),
    [(4, (True, False), (False, True)), pytest.param(1, (False,), (False, 0.5, True), marks=pytest.mark.slow)],
)
def test_peak_at_stage_3(world, ties, shares):
    """As one of so many processes, whose collectives move nothing. The embedding is larger than two layers, as in
    every preset."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "LOCAL_RANK": "0"}
    command = [sys.executable, "-c", SHARDED, *map(json.dumps, (world, ties, shares))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = itertools.product(ties, shares)
    for (tie, recompute), peak in zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True):
        how = {"micro_batch_tokens": 512, "zero_stage": 3, "world_size": world, "recompute": recompute}
        lines = training_memory(preset("llama", "160m", tie_embeddings=tie, **SHAPE), **how)
        print(tie, recompute, peak / 2**20, lines["total"] / peak)
        assert lines["total"] == pytest.approx(peak, rel=1e-3)
