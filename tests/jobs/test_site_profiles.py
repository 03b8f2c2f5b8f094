"""The profiles of docs/profiles, by the rules of real sites, on a SLURM with their partitions and features."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.study.spec import load_study

from .cluster import Cluster, cluster, needs_slurm
from .studies import study_file
from .test_render import checked, linted

PROFILES = sorted((Path(__file__).parents[2] / "docs" / "profiles").glob("*.yaml"))
RUNS = pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
pytestmark = [needs_slurm, pytest.mark.skipif(os.getuid() != 0, reason="only root can make a test cluster's GPUs")]
# Of the sites: pyxis' options, which its plugin takes from srun, and the module command.
SRUN = """#!/bin/bash
for word in "$@"; do
    [[ $word == --container-* || $word == --no-container-* ]] && echo "$word" >>"$CONTAINERS" || words+=("$word")
done
exec {srun} "${words[@]}"
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    partitions = {"cpu", "gpu", "a100", "batch", "booster", "flix", "normal", "prepost"}
    nodes: dict[str, Any] = {"cpus": 288, "gpus": 8, "memory_mb": 2_000_000, "features": ("h100", "a100_80")}
    with cluster(2, partitions=sorted(partitions), **nodes) as started:
        yield started


def submit(site: Cluster, file: Path, profile: Path, *words: object, **environment: str) -> str:
    done = site.scaling("submit", file, "--cluster", profile, *words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def small(folder: Path, **more: Any) -> Path:
    settings = {"fit": {"smoothing_tokens": 1000}, "evaluation": {"validation_tokens": 1024}, "jobs": {}}
    return study_file(folder, ["6k"], **settings | more)


@RUNS
def test_sbatch_and_shellcheck_accept_every_script(site: Cluster, tmp_path: Path, profile: Path) -> None:
    keys, file = yaml.safe_load(profile.read_text()), small(tmp_path)
    limits = {"PATH": site.environment["PATH"]}
    shown = yaml.safe_load(submit(site, file, profile, "--dry-run", "--json", **limits))
    assert shown["validated"] and not shown["warnings"]
    for name, script in shown["scripts"].items():
        linted(checked(script))
        options = [line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH ")]
        kind = keys | keys.get("by_kind", {}).get(name.partition("-")[0], {})
        for key in ("account", "constraint", "qos"):
            assert [option for option in options if option.startswith(f"--{key}=")] == [
                f"--{key}={word}" for word in [kind.get(key)] if word
            ]
        assert set(kind.get("sbatch", ())) <= set(options)
        assert ("--no-requeue" in options) is not keys.get("requeue", True)
    first = profile.read_text().splitlines()
    assert any("http" in line for line in first if line.startswith("#")), "where the site says so"


@pytest.mark.slow
@RUNS
def test_a_study_by_every_profile(site: Cluster, tmp_path: Path, profile: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN.replace("{srun}", "/usr/bin/srun"))
    (programs / "srun").chmod(0o755)
    keys = yaml.safe_load(profile.read_text())
    for of in (keys, *keys.get("by_kind", {}).values()):
        of["setup"] = [f"export PATH={programs}:$PATH CONTAINERS={tmp_path / 'containers'}", "module() { :; }"]
    keys["environment"] = keys.get("environment", {}) | {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
    keys["environment"] |= {"HOME": "/nowhere", "NODE": str(tmp_path / "node's disk")}  # no node needs a home
    keys["stage"] = "$NODE/stage"
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(keys | {"python": sys.executable}))
    file = small(tmp_path)
    submit(site, file, tmp_path / "here.yaml")
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    site.wait_for_jobs(lambda jobs: all(job["job_state"] in ended for job in jobs), 500, "the end of the study")
    study = load_study(file)
    logs = [log.read_text() for log in sorted(study.directory.rglob("*.log"))]
    assert (study.directory / "report" / "index.html").is_file(), "\n".join(logs)
    ours = [job for job in site.jobs() if str(job["current_working_directory"]).startswith(str(tmp_path))]
    assert ours and {job["job_state"] for job in ours} == {"COMPLETED"}
    assert len(list((tmp_path / "node's disk" / "stage").glob("corpus-*/manifest.json"))) == 1
    assert (tmp_path / "containers").exists() is ("srun" in keys)
