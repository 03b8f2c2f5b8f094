"""Runs whose processes read parts of the sequences: those of one process, up to rounding."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaling.rundir.directory import RunDir

from ..small_runs import BATCH, CONTEXT, make_run, train

STEPS = 12
TOLERANCE = 1e-5  # of a loss, fp32
SETTINGS: dict[str, Any] = {"n_steps": STEPS, "state_every_tokens": STEPS // 2 * BATCH}


def losses(rundir: RunDir) -> list[float]:
    return [row["loss"] for row in rundir.checked_rows().rows]


@pytest.mark.parametrize(
    ("arch", "processes", "more"),
    [
        pytest.param("hgrn2", 2, {}, marks=pytest.mark.slow),  # fast: tests/arch/model/test_sequence.py
        ("llama", 4, {"zero_stage": 1, "micro_batch_tokens": 2 * CONTEXT, "reset_at_documents": True}),
    ],
)
def test_a_run_in_parts_is_that_of_one_process_and_goes_on_there(
    arch: str, processes: int, more: dict[str, Any], tmp_path: Path
) -> None:
    whole = make_run(tmp_path / "whole", arch, **SETTINGS | more)
    parts = make_run(tmp_path / "parts", arch, sequence_processes=2, **SETTINGS | more)
    for rundir, n in ((whole, 1), (parts, processes)):
        code, out, err = train(rundir, processes=n)
        assert code == 0, out + err
    expected = losses(whole)
    assert len(expected) == STEPS and expected[-1] < 0.9 * expected[0]
    np.testing.assert_allclose(losses(parts), expected, rtol=TOLERANCE)

    shutil.rmtree(parts.state(STEPS))
    parts.write_status("running", STEPS // 2, STEPS // 2 * BATCH, "stopped", None)
    code, out, err = train(make_run(tmp_path / "parts", arch, **SETTINGS | more))
    assert code == 0 and f"step {STEPS // 2} of {STEPS}, 1 process" in out, out + err
    np.testing.assert_allclose(losses(parts), expected, rtol=TOLERANCE)
