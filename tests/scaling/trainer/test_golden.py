"""Losses at fixed steps of a 40-step run on seeded synthetic text, one committed file per architecture.

They change only with the model, the data order or the optimizer. After an intended change write them again with
`python -m tests.scaling.trainer.test_golden`, and say why in CHANGELOG.md.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest
import torch

from arch.config import ARCHS
from scaling.trainer.loop import Trainer

from ..small_runs import make_run

GOLDEN = Path(__file__).parent / "golden"
STEPS = (1, 2, 5, 10, 20, 40)


def losses(arch: str, folder: Path) -> dict[str, float]:
    """{step: loss in nats per token} of size 14k, one thread, fp32.

    init_std 0.08 lets every part of the model matter within 40 steps, and keeps rounding from growing
    (docs/research/numerics.md).
    """
    torch.set_num_threads(1)
    rundir = make_run(folder, arch, n_steps=40, lr=2e-3, init_std=0.08)
    assert Trainer(rundir, torch.device("cpu"), time.perf_counter()).train() == 0
    return {str(row["step"]): row["loss"] for row in rundir.checked_rows().rows if row["step"] in STEPS}


@pytest.mark.parametrize("arch", ARCHS)
def test_losses_are_the_committed_ones(arch: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{arch}.json").read_text())
    assert list(expected) == [str(step) for step in STEPS]
    assert losses(arch, tmp_path) == pytest.approx(expected, rel=1e-4)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in ARCHS:
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / f"{name}.json").write_text(json.dumps(losses(name, Path(folder)), indent=1) + "\n")
