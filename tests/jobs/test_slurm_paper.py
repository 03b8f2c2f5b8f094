"""The plan of the paper's 24 models is what a real SLURM of 64 nodes with 8 GPUs each would take."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from .cluster import cluster, needs_slurm
from .studies import GPUS

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="the fake GPUs' files are made by mknod, as root")
pytestmark = [needs_slurm, needs_root]


@pytest.mark.parametrize("nodes", [pytest.param(8, marks=pytest.mark.slow), 64])
def test_every_script_passes_test_only(tmp_path, nodes, ranks):
    profile = tmp_path / "big.yaml"
    profile.write_text(yaml.safe_dump(GPUS | {"nodes": nodes, "gpu": "h200"}))
    command = [
        sys.executable,
        "-m",
        "scaling",
        "submit",
        "paper",
        "--cluster",
        str(profile),
        "--dry-run",
        "--json",
    ]
    command += ["--set", "evaluation.tasks=null", "--set", "evaluation.data=null"]  # their data are not here
    command += ["--set", "corpus.source=synthetic:0:100000000000000"]  # nor is its text
    with cluster(nodes=64, gpus=8) as held:
        done = subprocess.run(
            [*command, "--out", str(tmp_path)],
            env=held.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print({name: value for name, value in result.items() if name not in ("plan", "scripts")})
    assert result["validated"] and len(result["plan"]["jobs"]) > 4 and not list(tmp_path.glob("paper*"))
