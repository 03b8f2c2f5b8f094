"""The packaged study on text of known entropy, whole: what its fits say of the irreducible loss (docs/corpus.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow  # a quarter of an hour of a core of its own
def test_the_entropy_rate_lies_inside_the_interval_of_the_fitted_floor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scaling", "run", "truth-tiny", "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    fits = json.loads((tmp_path / "out" / "truth-tiny" / "results" / "fits.json").read_text())
    rate = fits["entropy_rate"]["nats_per_token"]
    laws = {fit["group"]: fit for fit in fits["fits"] if fit["approach"] == "parametric"}
    assert sorted(laws) == ["hgrn2", "llama"]
    floors = {group: law["parametric"]["parameters"]["E"] for group, law in laws.items()}
    for group, floor in floors.items():
        assert floor["low"] <= rate <= floor["high"], (group, floor)
    assert (
        floors["hgrn2"]["high"] - floors["hgrn2"]["low"] < 0.5 * rate
    )  # an interval that says something; LLaMA's seeds differ by too much for one
    assert " ".join(done.stdout.split()).count("inside E's interval") == 2
