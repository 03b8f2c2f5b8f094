"""Replayed steps: the parts that are the same on every device, with a recorder that does the work again.

Real graphs run on GPUs alone: tests/scaling/trainer/test_graphs_gpu.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from arch.config import ARCHS
from arch.model.lm import build_model
from arch.presets import preset
from arch.recorder import Recorder, Work
from scaling.rundir.saved import stored_numbers
from scaling.study.training import Training
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.graphs import digest, spread
from scaling.trainer.stepper import Stepper

from .test_engine_parity import CONTEXT, CPU, ROWS, batches, training

STEPS = 6
RATE = 2.0**-9  # the same in fp32 and fp64


def again(work: Work) -> Work:
    """A recorder for CPUs: like a CUDA graph's, it does nothing yet, and what it returns does the work."""
    return work


def make_engine(arch: str, settings: Training) -> Engine:
    model = build_model(preset(arch, "14k", context_length=CONTEXT, chunk_size=16), seed=0)
    return Engine(model, settings, ROWS, CPU, start_distributed("cpu"))


def run(stepper: Engine | Stepper, steps: int = STEPS) -> list[tuple[float, float]]:
    return [tuple(float(x) for x in stepper.step(tokens, RATE)) for tokens in batches()[:steps]]  # type: ignore[misc]


@pytest.mark.parametrize("micro", [None, CONTEXT])
@pytest.mark.parametrize(
    ("arch", "optimizer"), [*((arch, "adamw") for arch in ARCHS), ("llama", "muon"), ("tnl", "muon")]
)
def test_replayed_steps_are_the_engines_own(arch: str, optimizer: str, micro: int | None) -> None:
    settings = training(micro_batch_tokens=micro, optimizer=optimizer)
    eager, replayed = make_engine(arch, settings), make_engine(arch, settings)
    messages: list[str] = []
    stepper = Stepper(replayed, messages.append, again)
    assert run(stepper) == run(eager) and messages == [] and stepper.replays
    assert digest(list(replayed.model.parameters())) == digest(list(eager.model.parameters()))
    groups = replayed.deepspeed_engine.optimizer.param_groups
    assert all(group["lr"] == RATE and not group["capturable"] for group in groups), "what a state saves"


def fails(work: Work) -> Work:
    raise torch.OutOfMemoryError("CUDA out of memory\nand more")


def wrong(work: Work) -> Work:
    """Graphs that compute something else: one gradient is off by a bit."""

    def replay() -> None:
        work()
        for parameter in engines[-1].model.parameters():
            if parameter.grad is not None:
                parameter.grad.view(-1)[0] *= 1 + 2.0**-20
                return

    return replay


engines: list[Engine] = []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (fails, "no CUDA graphs: OutOfMemoryError: CUDA out of memory"),
        (wrong, "no CUDA graphs: they differ from eager steps by"),
    ],
)
def test_what_cannot_be_replayed_is_named_and_trained_without(record, reason) -> None:
    settings = training(micro_batch_tokens=2 * CONTEXT)
    eager, replayed = make_engine("hgrn2", settings), make_engine("hgrn2", settings)
    engines.append(replayed)
    messages: list[str] = []
    stepper = Stepper(replayed, messages.append, record)
    assert run(stepper) == run(eager) and not stepper.replays
    assert len(messages) == 1 and messages[0].startswith(reason) and "\n" not in messages[0]


def test_an_update_that_cannot_be_recorded_leaves_eager_steps() -> None:
    eager, replayed = make_engine("tnl", training()), make_engine("tnl", training())
    messages: list[str] = []

    def record(work: Work) -> Work:
        return fails(work) if work.__name__ == "_clip_and_update" else again(work)

    stepper = Stepper(replayed, messages.append, record)
    assert run(stepper) == run(eager) and len(messages) == 1 and not stepper.replays


def test_a_batch_of_another_shape_ends_the_replay() -> None:
    eager, replayed = make_engine("llama", training()), make_engine("llama", training())
    messages: list[str] = []
    stepper = Stepper(replayed, messages.append, again)
    assert run(stepper, 2) == run(eager, 2)
    short = batches()[2][:, :33]
    assert stepper.step(short, RATE) == eager.step(short, RATE)
    assert messages == ["no CUDA graphs: a batch has the shape [4, 33]"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_state_loaded_under_replay_is_gone_on_from(tmp_path: Path, optimizer: str) -> None:
    """Twice: graphs of before have other moments, and the gradients that they left do not count."""
    eager, replayed = (make_engine("hgrn2", training(optimizer=optimizer)) for _ in range(2))
    messages: list[str] = []
    stepper = Stepper(replayed, messages.append, again)
    assert run(stepper, 3) == run(eager, 3)
    pieces = replayed.save(tmp_path)
    expected = [tuple(float(x) for x in eager.step(tokens, RATE)) for tokens in batches()[3:5]]
    for _ in range(2):
        assert [tuple(float(x) for x in stepper.step(tokens, RATE)) for tokens in batches()[3:5]] == expected
        replayed.load(stored_numbers(tmp_path, pieces))
        stepper.forget()
    assert stepper.replays and messages == []


def test_a_digest_sees_every_bit_and_every_place() -> None:
    x = torch.randn(1000)
    flipped, swapped = x.clone(), x.clone()
    flipped.view(torch.int32)[999] ^= 1
    swapped[[3, 4]] = swapped[[4, 3]]
    assert len({tuple(digest([tensor])) for tensor in (x, flipped, swapped)}) == 3
    assert digest([x]) == digest([x.clone()]) and digest([x.view(10, 100)]) == digest([x])


def test_spread_is_relative() -> None:
    assert spread([torch.full((4,), 2.0)], [torch.full((4,), 2.0)]) == 0
    assert spread([torch.ones(1), torch.ones(3)], [torch.ones(1), torch.ones(3) * 1.5]) == pytest.approx(np.sqrt(3) / 4)


def flickers(size: float) -> Recorder:
    """Graphs of kernels that add in any order: at every second pass a number is off by `size` of itself."""

    def record(work: Work) -> Work:
        passes = iter(range(1000))

        def replay() -> None:
            work()
            if work.__name__ == "_first_pass" and next(passes) % 2 == 0:
                parameter = engines[-1]._parameters[0]
                assert parameter.grad is not None
                parameter.grad.view(-1)[0] *= 1 + size

        return replay

    return record


@pytest.mark.parametrize(
    ("drift", "size", "kept"), [(0.0, 2.0**-22, True), (0.0, 1e3, False), (1e3, 1e3, True), (1e3, 1e5, False)]
)
def test_passes_that_do_not_repeat_are_named(
    drift: float, size: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the engine's own are off by `drift` at every second pass, graphs may be so too."""
    engine = make_engine("llama", training())
    engines.append(engine)
    messages, passes, numbers = list[str](), engine.passes, iter(range(1000))

    def flickering(tokens: torch.Tensor, average: bool = True) -> torch.Tensor:
        loss = passes(tokens, average)
        if next(numbers) % 2 == 1:
            engine.gradients()[0].view(-1)[0] *= 1 + drift
        return loss

    monkeypatch.setattr(engine, "passes", flickering)
    stepper = Stepper(engine, messages.append, flickers(size))
    run(stepper, 2)
    assert len(messages) == 1 and stepper.replays is kept
    assert messages[0].startswith(
        "this model's passes do not repeat to the bit" if kept else "no CUDA graphs: they differ"
    )


def test_the_optimizer_is_pytorchs_without_its_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from scaling.trainer.optimizers import AdamW\n"
        "def made(kind):\n"
        "    p = [torch.nn.Parameter(torch.arange(5.0) / 7), torch.nn.Parameter(torch.ones(3, 2))]\n"
        "    o = kind([{'params': p[:1], 'weight_decay': 0.0}, {'params': p[1:]}], lr=1e-2, fused=True)\n"
        "    for i in range(5):\n"
        "        for x in p: x.grad = torch.sin(x.detach() * 3 + i)\n"
        "        o.step(); state = o.state_dict(); o.load_state_dict(state)\n"
        "    return p, state\n"
        "ours, state = made(AdamW)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "theirs, other = made(torch.optim.AdamW)\n"
        "assert all(torch.equal(a, b) for a, b in zip(ours, theirs)) and not ours[0].grad_fn\n"
        "assert state['param_groups'] == other['param_groups'] and state['state'].keys() == other['state'].keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kernels_and_the_count_of_flop_run_without_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from arch.no_compiler import keep_from_the_compiler\n"
        "keep_from_the_compiler()\n"
        "@torch.library.custom_op('tests::doubled', mutates_args=())\n"
        "def doubled(x: torch.Tensor) -> torch.Tensor:\n"
        "    return 2 * x\n"
        "assert doubled(torch.ones(2)).sum() == 4\n"
        "from scaling.check import check_flop_at, small\n"
        "check_flop_at(small('hgrn2'), 1, 2)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
