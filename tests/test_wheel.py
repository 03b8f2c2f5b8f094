"""The wheel holds everything: built, installed elsewhere, it plans the packaged quickstart study."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ("pyproject.toml", "README.md", "LICENSE", "arch", "data", "flops", "scaling", "jobs", "analysis")


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Standard output of a command; its error output is shown when it fails."""
    result = subprocess.run(
        [sys.executable, *command], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_installed_wheel_plans_a_packaged_study(tmp_path):
    tree, installed, elsewhere = tmp_path / "tree", tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    tree.mkdir()
    for name in FILES:  # built from a copy: setuptools would pick up leftovers of an earlier build/
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), cwd=tree)
    (wheel,) = tmp_path.glob("linear_scaling-*.whl")
    options = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--target", str(installed))
    run("-m", "pip", "install", *options, str(wheel), cwd=elsewhere)

    data = [*ROOT.glob("analysis/notebooks/*.ipynb"), *ROOT.glob("jobs/templates/*.j2")]
    for source in [*data, *(file for name in FILES for file in (ROOT / name).glob("**/*.py"))]:
        assert (installed / source.relative_to(ROOT)).is_file(), f"not in the wheel: {source.relative_to(ROOT)}"
    where = "import arch, data, flops, scaling, jobs, analysis.fits as a; print(scaling.__file__); print(a.__file__)"
    for file in run("-c", where, cwd=elsewhere, PYTHONPATH=str(installed)).split():
        assert Path(file).is_relative_to(installed)

    plan = run("-m", "scaling", "plan", "four-architectures", "--json", cwd=elsewhere, PYTHONPATH=str(installed))
    run_ids = [item["run_id"] for item in json.loads(plan)["runs"]]
    assert len(run_ids) == len(set(run_ids)) >= 22  # four architectures, at least five sizes, two more seeds
    for arch in ("llama", "tnl", "hgrn2", "cosformer2"):
        assert sum(run_id.startswith(f"{arch}-") for run_id in run_ids) >= 5
    assert any(run_id.endswith("-s2") for run_id in run_ids)
    assert not list(elsewhere.iterdir()), "planning writes nothing"
