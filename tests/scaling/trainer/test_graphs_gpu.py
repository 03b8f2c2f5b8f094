"""CUDA graphs of training steps on a GPU: the bits of eager steps, kills, and what falls back."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from arch.config import ARCHS
from arch.model.lm import build_model
from arch.ops.fused import layer_end
from arch.presets import preset
from arch.recorder import CudaRecorder, Work
from arch.registry import register_pattern
from scaling.rundir.directory import RunDir
from scaling.rundir.owner import last_attempt
from scaling.study.training import Training
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.graphs import digest
from scaling.trainer.state import load_state, save_state
from scaling.trainer.stepper import Stepper
from scaling.trainer.turns import Lane
from tests.registries import as_registered

from ..small_runs import exact_rows, make_run, start_fresh, train
from . import branch_runs
from .test_skipped import check_skips

pytestmark = pytest.mark.gpu

ROWS, CONTEXT, STEPS = 8, 512, 200
SHAPE = {"n_layers": 4, "d_model": 128, "n_heads": 1, "d_ffn": 344, "context_length": CONTEXT, "chunk_size": 64}
CUDA = torch.device("cuda", 0)
HYBRIDS = ("four-kinds", "hgrn2-3to1", "gated_deltanet-3to1")
SOFTMAX = ("llama", "transformer", "vanilla", *HYBRIDS[1:])  # whose attention by cuDNN adds in any order


@pytest.fixture(scope="module", autouse=True)
def hybrids() -> Iterator[None]:
    with as_registered():
        register_pattern("four-kinds", ["hgrn2", "tnl", "mamba2", "hgrn1"])
        register_pattern("hgrn2-3to1", ["hgrn2"] * 3 + ["softmax"], {"softmax": {"window": 128, "position": "none"}})
        register_pattern("gated_deltanet-3to1", ["gated_deltanet"] * 3 + ["softmax"], {"softmax": {"position": "none"}})
        yield


def settings(**changes: object) -> Training:
    values = {"lr": 2e-3, "batch_tokens": ROWS * CONTEXT, "precision": "bf16", "grad_clip": 0.5}
    return Training(**(values | changes))


def make_stepper(
    arch: str,
    training: Training,
    say: Callable[[str], None] | None = None,
    record: Callable[[Work], Work] | None = None,
    **shape: int,
) -> Stepper:
    model = build_model(preset(arch, "6k", **(SHAPE | shape)), seed=0)
    return Stepper(Engine(model, training, ROWS, CUDA, start_distributed("cuda")), say, record)


def batch(step: int) -> torch.Tensor:
    """Tokens with some structure, so that the loss falls."""
    generator = torch.Generator().manual_seed(step)
    start, stride = (torch.randint(1, n, (ROWS, 1), generator=generator) for n in (257, 4))
    return ((start + torch.arange(CONTEXT + 1) * stride) % 257).pin_memory()


def run(stepper: Stepper, steps: int = STEPS, first: int = 0) -> list[list[float]]:
    numbers = []
    for step in range(first, first + steps):
        loss, norm = stepper.step(batch(step), 2e-3 * min(1.0, (step + 1) / 20))
        numbers.append(torch.stack([loss, norm]))
    return [row.tolist() for row in numbers]


def bits(stepper: Stepper) -> list[int]:
    """Of weights, moments and steps."""
    engine = stepper.engine
    state = engine.optimizer.state_dict()["state"]  # a loaded one has another order
    kept = [x for _, values in sorted(state.items()) for _, x in sorted(values.items())]
    return digest([*engine.model.parameters(), *kept])


def differing(first: list[list[float]], other: list[list[float]]) -> int | None:
    """The first step at which they do."""
    return next((i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b), None)


@pytest.fixture
def norms_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with a norm run in passes as small as these."""
    monkeypatch.setattr(layer_end, "SUM_NORM_ROWS", 1)


@pytest.mark.usefixtures("norms_inside")
@pytest.mark.parametrize("arch", [*ARCHS, *HYBRIDS])
def test_200_replayed_steps_have_the_bits_of_eager_ones(arch: str) -> None:
    messages: list[str] = []
    runs = [
        make_stepper(arch, settings()),
        make_stepper(arch, settings()),
        make_stepper(arch, settings(), messages.append),
    ]
    numbers = [run(stepper) for stepper in runs]
    assert numbers[0][-1][0] < numbers[0][0][0] - 0.5
    assert runs[2].replays, messages
    repeats = numbers[0] == numbers[1] and bits(runs[0]) == bits(runs[1])
    print(
        arch, "eager repeats" if repeats else f"eager differs from step {differing(numbers[0], numbers[1])}", messages
    )
    if repeats:
        assert messages == [] and differing(numbers[0], numbers[2]) is None and bits(runs[0]) == bits(runs[2])
    else:  # cuDNN's attention adds in any order: no step differs by much more than eager ones do among themselves
        assert arch in SOFTMAX
        first, second, graph = (torch.tensor(x)[:, 0] for x in numbers)
        assert (graph - first).abs().max() <= max(1e-3, 3 * (second - first).abs().max())


@pytest.fixture
def repeatable_attention() -> Iterator[None]:
    """Attention by products and a softmax, which add in one order."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.mark.usefixtures("repeatable_attention")
@pytest.mark.parametrize("changes", [{}, {"micro_batch_tokens": 2 * CONTEXT}], ids=["whole", "micro"])
@pytest.mark.parametrize("arch", SOFTMAX)
def test_softmax_layers_have_the_bits_of_eager_ones_where_attention_repeats(
    arch: str, changes: dict[str, object]
) -> None:
    messages: list[str] = []
    runs = [make_stepper(arch, settings(**changes)), make_stepper(arch, settings(**changes), messages.append)]
    numbers = [run(stepper, 40) for stepper in runs]
    assert messages == [] and runs[1].replays
    assert differing(*numbers) is None and bits(runs[0]) == bits(runs[1])


def test_garbage_collected_while_a_graph_is_recorded_is_no_earlier_graph() -> None:
    """CUDA would end the recording: "operation failed due to a previous error during capture"."""

    def work() -> None:
        nonlocal x
        x = x + 1
        kept.clear()
        fresh.extend([index] for index in range(100_000))  # more new containers than start a collection

    kept, fresh, x = list[list[object]](), list[list[int]](), torch.zeros(10, device=CUDA)
    earlier = CudaRecorder(CUDA)(work)
    gc.collect()
    young: list[object] = [earlier]  # so that the first collection finds it
    young.append(young)
    kept.append(young)
    del earlier, young
    replay = CudaRecorder(CUDA)(work)
    replay()
    torch.cuda.synchronize()
    assert gc.isenabled()


@pytest.mark.parametrize("n_runs", [4, 8])
def test_runs_that_take_turns_have_the_bits_of_each_alone(n_runs: int) -> None:
    """On streams of their own, at the same time: no workspace, no memory of one is another's."""
    archs = [arch for arch in ARCHS if arch not in SOFTMAX]  # whose passes do not repeat
    chosen, messages = [archs[i % len(archs)] for i in range(n_runs)], list[str]()
    alone = [
        (run(stepper), bits(stepper))
        for stepper in (make_stepper(arch, settings(), messages.append) for arch in chosen)
    ]
    lanes, steppers = [Lane() for _ in chosen], list[Stepper]()
    for lane, arch in zip(lanes, chosen, strict=True):
        with lane.entered():
            steppers.append(make_stepper(arch, settings(), messages.append))
    numbers: list[list[torch.Tensor]] = [[] for _ in chosen]
    for step in range(STEPS):
        for lane, stepper, rows in zip(lanes, steppers, numbers, strict=True):
            with lane.entered():
                rows.append(torch.stack(stepper.step(batch(step), 2e-3 * min(1.0, (step + 1) / 20))))
    torch.cuda.synchronize()
    assert messages == [] and all(stepper.replays for stepper in steppers)
    for stepper, rows, (wanted, state) in zip(steppers, numbers, alone, strict=True):
        assert differing([row.tolist() for row in rows], wanted) is None and bits(stepper) == state


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_tokens": 2 * CONTEXT},
        {"precision": "fp32"},
        {"grad_clip": 0.0},
        {"optimizer": "muon"},
        {"recompute": True},
        {"documents": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.parametrize("arch", ["hgrn2", "tnl", "mamba2", "four-kinds"])
def test_replayed_steps_have_the_bits_of_eager_ones_under(arch: str, changes: dict[str, object]) -> None:
    messages: list[str] = []
    changes = dict(changes)
    recompute, documents = (bool(changes.pop(name, False)) for name in ("recompute", "documents"))
    runs = [make_stepper(arch, settings(**changes)), make_stepper(arch, settings(**changes), messages.append)]
    for stepper in runs:
        stepper.engine.model.decoder.gradient_checkpointing = recompute
        stepper.engine.model.decoder.document_start_id = 32 if documents else None
    numbers = [run(stepper, 40) for stepper in runs]
    assert messages == [] and runs[1].replays
    assert differing(*numbers) is None and bits(runs[0]) == bits(runs[1])


@pytest.mark.usefixtures("norms_inside")
@pytest.mark.parametrize(
    ("heads", "arch"), [(n, a) for n in (2, 4, 8) for a in ("llama", "tnl", "hgrn2", "cosformer2")]
)
def test_heads_of_64_32_and_16_channels(arch: str, heads: int) -> None:
    messages: list[str] = []
    training = settings(lr=1e-3)
    runs = [
        make_stepper(arch, training, None, n_heads=heads),
        make_stepper(arch, training, messages.append, n_heads=heads),
    ]
    numbers = [run(stepper, 30) for stepper in runs]
    assert runs[1].replays, messages
    assert arch == "llama" or (messages == [] and differing(*numbers) is None)


def host_reads(work: Work) -> Work:
    def broken() -> None:
        work()
        torch.zeros((), device=CUDA).item()

    return CudaRecorder(CUDA)(broken)


def waits(work: Work) -> Work:
    def broken() -> None:
        torch.cuda.synchronize()
        work()

    return CudaRecorder(CUDA)(broken)


def without_memory(work: Work) -> Work:
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / total)
    try:
        return CudaRecorder(CUDA)(work)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def update_waits(work: Work) -> Work:
    return waits(work) if work.__name__ == "_clip_and_update" else CudaRecorder(CUDA)(work)


@pytest.mark.parametrize("record", [host_reads, waits, without_memory, update_waits])
def test_what_cannot_be_recorded_is_named_and_trained_without(record: Callable[[Work], Work]) -> None:
    messages: list[str] = []
    eager, replayed = make_stepper("hgrn2", settings()), make_stepper("hgrn2", settings(), messages.append, record)
    assert differing(run(eager, 20), run(replayed, 20)) is None
    assert bits(eager) == bits(replayed) and not replayed.replays
    print(messages)
    assert len(messages) == 1 and messages[0].startswith("no CUDA graphs: ") and "\n" not in messages[0]
    again: list[str] = []  # and the device is none the worse for it
    third = make_stepper("hgrn2", settings(), again.append)
    assert differing(run(third, 20), run(make_stepper("hgrn2", settings()), 20)) is None
    assert third.replays and again == []


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_skipped_step_changes_no_bit(optimizer: str, replayed: bool) -> None:
    check_skips("hgrn2", 0, optimizer, replayed, device=CUDA)


def test_a_batch_of_another_shape_ends_the_replay() -> None:
    messages: list[str] = []
    eager, replayed = make_stepper("tnl", settings()), make_stepper("tnl", settings(), messages.append)
    assert differing(run(eager, 3), run(replayed, 3)) is None
    short = batch(3)[:, :257]
    assert [float(x) for x in replayed.step(short, 1e-3)] == [float(x) for x in eager.step(short, 1e-3)]
    assert len(messages) == 1 and differing(run(eager, 3, 4), run(replayed, 3, 4)) is None


@pytest.mark.usefixtures("repeatable_attention")
@pytest.mark.parametrize("arch", ["hgrn2", "transformer", *HYBRIDS])
def test_a_state_taken_under_graphs_goes_on_without_and_back(arch: str, tmp_path: Path) -> None:
    undisturbed = make_stepper(arch, settings(), print)
    whole = run(undisturbed, 30)
    numbers, stepper = [], make_stepper(arch, settings(), print)
    for begin, say in ((0, print), (10, None), (20, print)):
        if begin:
            stepper = make_stepper(arch, settings(), say)
            load_state(stepper.engine, tmp_path, begin)
        numbers += run(stepper, 10, begin)
        save_state(stepper.engine, tmp_path, begin + 10, {}, keep=3)
    assert numbers == whole and bits(stepper) == bits(undisturbed)
    load_state(stepper.engine, tmp_path, 20)  # and once more, under graphs of other moments
    stepper.forget()
    assert run(stepper, 10, 20) == whole[20:] and bits(stepper) == bits(undisturbed)


LONG = {"n_steps": 400, "source": "synthetic:0:4000000", "precision": "bf16", "batch_tokens": ROWS * CONTEXT}
LONG |= {"n_tokens": 400 * ROWS * CONTEXT, "warmup_tokens": 4096, "state_every_tokens": 50 * ROWS * CONTEXT}
LONG |= {"checkpoint_tokens": [100 * ROWS * CONTEXT, 400 * ROWS * CONTEXT]}


@pytest.mark.parametrize("arch", ["hgrn2", "four-kinds"])
def test_kill_9_twice_and_a_signal_under_graphs(arch: str, tmp_path: Path) -> None:
    undisturbed = make_run(tmp_path / "one", arch, "6k", shape=SHAPE, **LONG)
    code, out, err = train(undisturbed, "--device", "cuda", fresh=True)
    assert code == 0 and "no CUDA graphs" not in out, out + err
    print(out)
    assert 0 < (last_attempt(undisturbed.path) or {})["peak_memory_gb"] < 4
    rundir = make_run(tmp_path / "two", arch, "6k", shape=SHAPE, **LONG)
    for number, after in ((signal.SIGKILL, 60), (signal.SIGKILL, 170), (signal.SIGTERM, 260)):
        process = start_fresh(rundir, "--device", "cuda")
        wait_for_step(process, rundir, after + random.Random(after).randrange(30))
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == (75 if number == signal.SIGTERM else -number), out + err
    code, out, err = train(rundir, "--device", "cuda", fresh=True)
    assert code == 0, out + err
    print(out)
    assert exact_rows(rundir) == exact_rows(undisturbed)
    for name in ("00000100", "00000400"):
        files = [run.path / "checkpoints" / name / "model.safetensors" for run in (rundir, undisturbed)]
        assert files[0].read_bytes() == files[1].read_bytes()


def wait_for_step(process: subprocess.Popen[str], rundir: RunDir, step: int) -> None:
    until = time.monotonic() + 200
    while (row := rundir.last_row()) is None or row["step"] < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("arch", ["hgrn2", "tnl"])
def test_a_branch_under_graphs_is_the_run_from_the_start(arch: str, tmp_path: Path) -> None:
    """The trunk's state is loaded before anything is recorded, and the rate falls by a tensor of the graphs."""
    tokens = ROWS * CONTEXT
    length = {"branches": [60 * tokens, 120 * tokens], "batch_tokens": tokens, "warmup_tokens": 10 * tokens}
    runs = branch_runs.study(tmp_path, [arch], SHAPE, source="synthetic:0:4000000", precision="bf16", **length)
    order = ["d491.52k-whole", "trunk", "d245.76k", "d491.52k", "d245.76k-whole"]
    code, output = branch_runs.train([runs[name] for name in order], device="cuda")
    assert code == 0 and "no CUDA graphs" not in output, output
    assert branch_runs.equal(runs["d491.52k"], runs["d491.52k-whole"]) == 36
    assert branch_runs.equal(runs["d245.76k"], runs["d245.76k-whole"]) == 18


def test_zero_1_says_why_it_is_not_replayed() -> None:
    messages: list[str] = []
    stepper = make_stepper("tnl", settings(zero_stage=1), messages.append)
    assert not stepper.replays and len(messages) == 1 and "zero_stage" in messages[0]
    run(stepper, 2)


def test_no_process_imports_the_compiler(tmp_path: Path) -> None:
    rundir = make_run(
        tmp_path, "tnl", "6k", shape=SHAPE, **(LONG | {"n_tokens": 4096 * 4, "checkpoint_tokens": [16384]})
    )
    code = (
        "import sys; from scaling.trainer import process; "
        "assert process.main([sys.argv[1]]) == 0 and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(rundir.path)], check=True)
