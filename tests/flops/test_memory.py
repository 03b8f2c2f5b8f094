"""Memory of plain forms against what autograd keeps; DeepSpeed's residency and files against the real ones."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arch.architectures.hgrn1.shape import forget_gates
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from flops import checkpoint_bytes, count_params, state_bytes, training_memory
from flops.memory import layer_activations, matrix_weights, outer_activations
from tests.commands import refused
from tests.flops.kept import kept_bytes
from tests.flops.test_against_torch import ABLATED, ablated, name_of

CASES = [
    *((arch, {}) for arch in ARCHS),
    *((arch, {"norm": "layer", "tie_embeddings": False}) for arch in ARCHS),
    ("mamba2", {"norm": "srms", "expand": 3, "conv_width": 1}),
    ("transformer", {"n_heads": 4, "n_kv_heads": 1, "qk_norm": False, "position": "none"}),
    ("transformer", {"window": 8, "attention_gate": True}),
    ("gated_deltanet", {"expand_v": 1, "n_heads": 4, "conv_width": 2}),
    ("gla", {"gate_rank": 5, "n_heads": 4}),
    ("retnet", {"expand_v": 1, "n_heads": 4}),
    ("deltanet", {"expand_v": 2, "n_heads": 4, "conv_width": 5, "key_dim": 10}),
    ("kimi_delta", {"expand_v": 3, "n_heads": 4, "gate_rank": 5, "key_dim": 20}),
    *ABLATED,
]
ROWS, CONTEXT = 3, 77  # a shorter last chunk


@pytest.mark.parametrize(
    "arch, changes, precision",
    [*((*case, "bf16") for case in CASES), *((*case, "fp32") for case in CASES if case not in ABLATED)],
    ids=name_of,
)
def test_activations_are_those_that_autograd_keeps(arch, changes, precision):
    """To one percent: what is left out does not grow with the tokens, of which a real batch has thousands more."""
    cfg = ablated(arch, "55k", changes, chunk_size=16, vocab_size=301)
    a = 2 if precision == "bf16" else 4
    layer = sum(layer_activations(cfg, CONTEXT, ROWS, a, kernels=False).values())
    expected = cfg.n_layers * layer + sum(outer_activations(cfg, CONTEXT, ROWS, a, kernels=False).values())
    expected += 4 * ROWS * CONTEXT * cfg.vocab_size  # log-probabilities
    expected += 2 * matrix_weights(cfg) if precision == "bf16" else 0
    if arch in ("hgrn1", "hgrn2") and cfg.options.gates_forget:  # a second tensor of logsigmoid, which CUDA has not
        expected += 4 * ROWS * CONTEXT * cfg.n_layers * (forget_gates(cfg) if arch == "hgrn1" else cfg.d_model)
    tokens = torch.randint(0, cfg.vocab_size, (ROWS, CONTEXT + 1))
    model = build_model(cfg, seed=0)
    kept = kept_bytes(model, lambda: model(input_ids=tokens[:, :-1], targets=tokens[:, 1:]).loss, precision)
    assert kept == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "length, vocabulary, fields",
    [
        (77, 301, {}),
        (154, 301, {"documents": 2}),
        (28 * 28 * 3, 256, {"image": (28, 28, 3), "patch": 4, "positions": "learned"}),
    ],
)
def test_activations_of_an_encoder_are_those_of_its_positions_and_outputs(length, vocabulary, fields, precision):
    """Pixels are held by their batch: autograd keeps what the embedding reads of them alone."""
    encoder = {"n_classes": 10} | fields
    cfg = preset("llama", "55k", vocab_size=vocabulary, context_length=length, encoder=encoder)
    a, (documents, positions, _) = 2 if precision == "bf16" else 4, cfg.read_as(length)
    shape = positions, ROWS * documents, a
    outer = outer_activations(cfg, *shape, kernels=False, outputs=ROWS)
    expected = cfg.n_layers * sum(layer_activations(cfg, *shape, kernels=False).values()) + sum(outer.values())
    expected += 4 * ROWS * cfg.n_outputs  # log-probabilities
    expected += 2 * matrix_weights(cfg) if precision == "bf16" else 0
    expected -= 8 * ROWS * length if "patch" in fields else 0
    rows, classes = torch.randint(vocabulary, (ROWS, length)), torch.randint(10, (ROWS, 1))
    model = build_model(cfg, seed=0)
    kept = kept_bytes(model, lambda: model(input_ids=rows, targets=classes).loss, precision)
    assert kept == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize("scan, scans", [("line", 2), ("axes", 4)])
@pytest.mark.parametrize("arch", ["tnl", "cosformer2"])
def test_activations_of_scans_are_those_of_their_lines(arch, scan, scans):
    """But for the output projection's input, which is there once, and the scans' own places."""
    encoder, T = {"n_classes": 10, "image": (32, 32, 1), "patch": 1, "scan": scan}, 1024
    cfg = preset(arch, "55k", vocab_size=256, context_length=T, chunk_size=16, encoder=encoder)
    layer, outer = layer_activations(cfg, T, ROWS, 4, False), outer_activations(cfg, T, ROWS, 4, False, outputs=ROWS)
    expected = cfg.n_layers * (sum(layer.values()) - (scans - 1) * 4 * ROWS * T * cfg.d_model) + sum(outer.values())
    expected += 8 * scans * ROWS * T
    rows, classes = torch.randint(256, (ROWS, T)), torch.randint(10, (ROWS, 1))
    model = build_model(cfg, seed=0)
    kept = kept_bytes(model, lambda: model(input_ids=rows, targets=classes).loss, "fp32")
    assert kept == pytest.approx(expected, rel=0.005)


def test_recomputation_keeps_the_layers_inputs_and_one_layer():
    cfg, n, d = preset("hgrn2", "410m"), 4 * 8192, 1024
    for kernels in (False, True):
        plain, again = (
            training_memory(cfg, micro_batch_tokens=n, recompute=flag, kernels=kernels) for flag in (False, True)
        )
        layer = sum(layer_activations(cfg, 8192, 4, 2, kernels).values())
        outside = sum(outer_activations(cfg, 8192, 4, 2, kernels).values())
        assert plain["activations"] == pytest.approx(26 * layer + outside, rel=1e-12)
        assert again["activations"] == pytest.approx(26 * 2 * n * d + outside, rel=1e-12)
        assert again["recomputed_layer"] == layer and again["total"] < plain["total"] / 2


# Peak of torch.cuda.max_memory_allocated over three steps in GiB, measured on one H200: torch 2.11, AdamW (fused) as at
# ZeRO stage 0, sequences x context, plain forms of all operations. Arch, size, sequences, context, precision,
# recompute.
MEASURED = [
    ("llama", "410m", 4, 2048, "bf16", False, 25.37),
    ("llama", "410m", 4, 2048, "bf16", True, 14.89),
    ("tnl", "410m", 4, 2048, "bf16", False, 29.25),
    ("tnl", "410m", 4, 2048, "bf16", True, 14.76),
    ("hgrn2", "410m", 4, 2048, "bf16", False, 45.97),
    ("hgrn2", "410m", 4, 2048, "bf16", True, 14.87),
    ("cosformer2", "410m", 4, 2048, "bf16", False, 36.50),
    ("cosformer2", "410m", 4, 2048, "bf16", True, 14.94),
    ("hgrn1", "410m", 4, 2048, "bf16", False, 34.15),
    ("hgrn1", "410m", 4, 2048, "bf16", True, 15.00),
    ("mamba2", "410m", 4, 2048, "bf16", False, 95.11),
    ("mamba2", "410m", 4, 2048, "bf16", True, 15.36),
    ("mamba1", "410m", 4, 2048, "bf16", False, 48.66),
    ("mamba1", "410m", 4, 2048, "bf16", True, 15.35),
    ("llama", "160m", 4, 2048, "fp32", False, 16.96),
    ("tnl", "160m", 4, 2048, "fp32", False, 18.36),
    ("hgrn2", "160m", 4, 2048, "fp32", False, 23.42),
    ("tnl", "1b", 2, 8192, "bf16", False, 86.69),
    ("llama", "70m", 16, 2048, "bf16", False, 42.77),
    ("tnl", "3b", 1, 2048, "bf16", True, 47.17),
]


@pytest.mark.parametrize("arch, size, rows, context, precision, recompute, peak_gib", MEASURED)
def test_peak_is_the_one_measured_on_a_gpu(arch, size, rows, context, precision, recompute, peak_gib):
    cfg = preset(arch, size, context_length=context)
    lines = training_memory(
        cfg,
        micro_batch_tokens=rows * context,
        zero_stage=0,
        precision=precision,
        recompute=recompute,
        kernels=False,
    )
    assert lines["total"] / 2**30 == pytest.approx(peak_gib, rel=0.015)
    assert lines["total"] == pytest.approx(sum(v for name, v in lines.items() if name != "total"), rel=1e-12)


DEEPSPEED = """
import gc, json, sys, tempfile
from pathlib import Path
import torch
from arch.model.lm import build_model
from arch.no_compiler import keep_from_the_compiler
from arch.presets import preset
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.sharded import saved_model
from scaling.study.training import Training

torch.set_num_threads(1)
keep_from_the_compiler()
ranks = start_distributed("cpu")

def resident():
    storages = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor):
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is not None:
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())

out, engine, model = {}, None, None
for stage in (0, 1, 2, 3):
    del engine, model
    gc.collect()
    cfg = preset("tnl", "98k", context_length=8, vocab_size=4001)
    model = build_model(cfg, 0)
    before = resident() - sum(p.nbytes for p in model.parameters())  # what earlier stages left
    engine = Engine(model, Training(batch_tokens=8, zero_stage=stage), 1, torch.device("cpu"), ranks)
    tokens = torch.zeros(1, 9, dtype=torch.int64)
    engine.step(tokens, 1e-3)
    held, end = resident() - before, []
    model.decoder.embedding.weight.register_post_accumulate_grad_hook(lambda p: end.append(resident() - before))
    engine.step(tokens, 1e-3)
    folder = Path(tempfile.mkdtemp())
    state = sum(piece["bytes"] for piece in engine.save(folder).values())
    checkpoint = {}
    for dtype in ("bfloat16", "float32"):
        saved_model(engine).save_pretrained(folder / dtype, getattr(torch, dtype))
        checkpoint[dtype] = (folder / dtype / "model.safetensors").stat().st_size
    out[stage] = {"held": held, "end": end[-1], "state": state, "checkpoint": checkpoint}
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def deepspeed():
    """Bytes of all tensors of a process that trains by DeepSpeed, one alone, and of the files it writes, by stage."""
    root = Path(__file__).resolve().parents[2]
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"PYTHONPATH": str(root)}
    result = subprocess.run([sys.executable, "-c", DEEPSPEED], cwd=root, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return {int(stage): sizes for stage, sizes in json.loads(result.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_deepspeed_holds_the_counted_bytes(deepspeed, stage):
    """After a step, and at the end of a backward pass, when all gradients are there and none is averaged yet."""
    cfg = preset("tnl", "98k", context_length=8, vocab_size=4001)
    lines = training_memory(cfg, micro_batch_tokens=8, zero_stage=stage, precision="fp32", kernels=False)
    held = lines["parameters"] + lines["optimizer"]
    assert deepspeed[stage]["held"] == pytest.approx(held, rel=0.01)
    end = held + (lines["reduce_bucket"] if stage == 2 else lines["gradients"] + lines.get("reduce_bucket", 0.0))
    assert deepspeed[stage]["end"] == pytest.approx(end, rel=0.02)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_files_are_as_large_as_counted(deepspeed, stage):
    """Safetensors add about a hundred bytes a tensor, of which a state has four for each of 19 parameters."""
    cfg = preset("tnl", "98k", context_length=8, vocab_size=4001)
    assert 0 < deepspeed[stage]["state"] - state_bytes(cfg) < 19 * 4 * 150
    for dtype, name in (("bf16", "bfloat16"), ("fp32", "float32")):
        assert 0 < deepspeed[stage]["checkpoint"][name] - checkpoint_bytes(cfg, dtype) < 19 * 150


@pytest.mark.parametrize("arch, changes", CASES, ids=name_of)
def test_checkpoint_bytes_are_those_of_the_tensors_in_the_file(arch, changes, tmp_path):
    from safetensors.torch import load_file

    cfg = ablated(arch, "14k", changes)
    model = build_model(cfg, seed=0)
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        model.save_pretrained(tmp_path, dtype)
        weights = load_file(tmp_path / "model.safetensors")
        assert sum(w.nbytes for w in weights.values()) == checkpoint_bytes(cfg, name)


def test_zero_stages_and_processes():
    """The paper's 7B on 4 GPUs at stage 1: 4 + 4 + 16 / 4 + 2 bytes a parameter before activations, about 97 GB."""
    cfg = preset("llama", "7b")
    lines = training_memory(cfg, micro_batch_tokens=8192, zero_stage=1, world_size=4, kernels=False)
    held = ("parameters", "gradients", "gradient_partition", "optimizer", "autocast_cache")
    assert sum(lines[name] for name in held) == pytest.approx(97e9, rel=0.01)
    n = count_params(cfg).total
    for world in (1, 8, 10**6):
        first, second = (training_memory(cfg, micro_batch_tokens=8192, zero_stage=z, world_size=world) for z in (1, 2))
        assert first["optimizer"] == second["optimizer"] == pytest.approx(12 * n / world)
        assert (first["gradients"], second["gradients"]) == (4 * n, pytest.approx(4 * n / world))
        assert first["reduce_bucket"] == 4 * 200_000_000
        third = training_memory(cfg, micro_batch_tokens=8192, zero_stage=3, world_size=world)
        assert ("gathered" in third) is (world > 1)
    waits = training_memory(cfg, micro_batch_tokens=8192, accumulate=True)["total"]
    assert waits > training_memory(cfg, micro_batch_tokens=8192)["total"]


@pytest.mark.parametrize("kernels", [False, True])
def test_processes_share_a_sequences_activations(kernels):
    cfg = preset("hgrn2", "410m")
    how = {"world_size": 8, "kernels": kernels}
    whole = training_memory(cfg, micro_batch_tokens=2 * 8192, **how)
    parts = training_memory(cfg, micro_batch_tokens=2 * 8192, sequence_processes=4, **how)
    assert parts == training_memory(cfg, micro_batch_tokens=2 * 2048, context_length=2048, **how)
    assert parts["activations"] == pytest.approx(whole["activations"] / 4, rel=0.01)
    assert all(parts[name] == whole[name] for name in ("parameters", "gradients", "optimizer"))
    softmax = preset("llama", "410m")
    whole, parts = (training_memory(softmax, micro_batch_tokens=8192, sequence_processes=n, **how) for n in (1, 4))
    again = 2 * 2048 * softmax.d_model * softmax.n_layers  # outputs by heads, and by tokens
    assert parts["activations"] == pytest.approx(whole["activations"] / 4 + again, rel=0.01)


def test_bad_input_is_one_line():
    cfg = preset("tnl", "55k")
    cases = [
        ({"micro_batch_tokens": 0}, "micro_batch_tokens must be a positive integer, not 0"),
        ({"micro_batch_tokens": math.nan}, "micro_batch_tokens must be a positive integer"),
        ({"micro_batch_tokens": 100}, "micro_batch_tokens=100 is less than one sequence of 256 tokens"),
        ({"micro_batch_tokens": 512, "world_size": -1}, "world_size must be a positive integer, not -1"),
        ({"micro_batch_tokens": 512, "sequence_processes": 0}, "sequence_processes must be a positive integer, not 0"),
        (
            {"micro_batch_tokens": 512, "sequence_processes": 2},
            "sequence_processes=2 must divide the 256 tokens of a sequence and world_size=1",
        ),
        ({"micro_batch_tokens": 512, "zero_stage": 4}, "zero_stage must be 0, 1, 2 or 3, not 4"),
        ({"micro_batch_tokens": 512, "precision": "fp16"}, "unknown precision 'fp16'"),
    ]
    for arguments, message in cases:
        with refused(message):
            training_memory(cfg, **arguments)
    with pytest.raises(InputError, match="unknown dtype 'bf17'"):
        checkpoint_bytes(cfg, "bf17")
