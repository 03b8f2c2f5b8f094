"""Steps whose gradients are not finite change nothing, on all processes alike, are counted, and end a run where they do
not end. As a program: the checks of the engine by several processes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scaling.rundir.directory import RunDir
from scaling.trainer.engine import Engine, start_distributed
from scaling.trainer.graphs import digest
from scaling.trainer.loop import MOST_SKIPPED, Trainer
from scaling.trainer.pieces import Part
from scaling.trainer.stepper import Stepper

from .. import forks
from ..small_runs import BATCH, make_run, status
from .step_loops import CPU, ROWS, batches, small_model, training

RATE, BAD = 2.0**-9, (1, 3, 4)


def poison(engine: Engine) -> torch.Tensor:
    """The number by which the loss's gradient is multiplied on the last process."""
    factor = torch.ones((), device=engine.device)

    def multiply(_: Any, __: Any, output: Any) -> None:
        if engine.ranks.rank == engine.ranks.world - 1:
            output.loss.register_hook(lambda gradient: gradient * factor)

    engine.model.register_forward_hook(multiply)
    return factor


def held(engine: Engine) -> list[int]:
    """Digests of weights, moments and steps that this process has."""
    state = engine.optimizer.state
    parts: list[Part] = list(engine._parts())
    return digest([x for part in parts for x in (part.flat, *state.get(part.flat, {}).values())])


def check_skips(
    arch: str, stage: int, optimizer: str, replayed: bool, bad: float = math.nan, device: torch.device = CPU
) -> None:
    """Six steps, of which three are bad, end in the bits of the three others alone."""
    ends = []
    for is_disturbed in (True, False):
        settings = training(zero_stage=stage, optimizer=optimizer)
        engine = Engine(small_model(arch), settings, ROWS, device, start_distributed(device.type))
        stepper = Stepper(engine, print if replayed else None, None if device.type == "cuda" else lambda work: work)
        factor, numbers = poison(engine), []
        for number, tokens in enumerate(batches()[:6]):
            if is_disturbed or number not in BAD:
                factor.fill_(bad if number in BAD else 1.0)
                loss, norm = stepper.step(tokens[engine.rows], RATE)
                assert math.isfinite(float(loss)) and math.isfinite(float(norm)) == (number not in BAD)
                numbers += [] if number in BAD else [(float(loss), float(norm))]
        assert stepper.replays == replayed
        assert engine.skipped.tolist() == ([3, 0] if is_disturbed else [0, 0])
        ends.append((numbers, held(engine)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("arch", "optimizer"), [("llama", "adamw"), ("hgrn2", "adam"), ("llama", "muon")])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_skipped_step_changes_no_bit(arch: str, optimizer: str, replayed: bool) -> None:
    check_skips(arch, 0, optimizer, replayed, math.inf if replayed else math.nan)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_skipped_step_changes_no_bit_under_zero(stage: int) -> None:
    check_skips("llama", stage, "adamw", False)


def test_two_processes_skip_what_is_bad_on_one() -> None:
    code, _, err = forks.run(__name__, processes=2)
    assert code == 0, err[-3000:]


def trainer(rundir: RunDir, bad: range | tuple[int, ...], killed_at: int = 0) -> Trainer:
    """Of a run whose gradients at these steps are not finite, nor the losses at even ones of them."""
    torch.set_num_threads(1)
    made = Trainer(rundir, CPU, time.perf_counter())
    factor, step = poison(made.engine), made.stepper.step

    def disturbed(tokens: torch.Tensor, lr: float) -> tuple[torch.Tensor, torch.Tensor]:
        number = made.watch._now[0]
        assert number != killed_at, "killed"
        factor.fill_(math.nan if number in bad else 1.0)
        loss, norm = step(tokens, lr)
        return (loss * math.nan if number in bad and number % 2 == 0 else loss), norm

    made.stepper.step = disturbed  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("log_every", [1, 3])
def test_a_run_skips_counts_and_goes_on_to_the_same_numbers(
    tmp_path: Path, log_every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = (5, 6, 9)
    runs = [
        make_run(tmp_path / name, n_steps=15, log_every=log_every, state_every_tokens=6 * BATCH)
        for name in ("through", "resumed")
    ]
    assert trainer(runs[0], bad).train() == 0
    rows = runs[0].checked_rows().rows
    logged = [step for step in range(1, 16) if step % log_every == 0 or step in (6, 7, 12, 15)]
    assert [row["step"] for row in rows] == [step for step in logged if step != 6]
    without_norm = [row["step"] for row in rows if "grad_norm" not in row]
    assert without_norm == [step for step in logged if step in (5, 9)]
    counts = {row["step"]: row.get("skipped_steps") for row in rows}
    assert (counts[3], counts[7], counts[15]) == (None, 2, 3)
    assert status(runs[0])["state"] == "done"
    assert status(runs[0])["reason"] == "3 steps were skipped, the gradient not finite"
    assert "llama-14k: step 9: 3 steps were skipped" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="killed"):
        trainer(runs[1], bad, killed_at=10).train()
    assert trainer(runs[1], bad).train() == 0

    times = {"time_s", "tokens_per_s"}
    without_times = [[{k: row[k] for k in row.keys() - times} for row in run.checked_rows().rows] for run in runs]
    assert without_times[0] == without_times[1]


def test_a_run_whose_gradients_stay_bad_fails(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, n_steps=20)
    assert trainer(rundir, range(4, 21)).train() == 3
    step = 3 + MOST_SKIPPED
    why = f"grad_norm is nan at step {step} ({MOST_SKIPPED} steps were skipped, the gradient not finite)"
    assert status(rundir)["reason"] == why and status(rundir)["state"] == "failed"


if __name__ == "__main__":
    for of_stage in range(4):
        check_skips("llama", of_stage, "adamw", of_stage == 0)
