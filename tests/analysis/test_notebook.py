"""The notebook runs on any study's directory, and is committed without outputs."""

import os
from pathlib import Path

import pytest

from .synthetic import SIZES, write_evals, write_study

NOTEBOOK = Path(__file__).parents[2] / "analysis" / "notebooks" / "study.ipynb"


def test_notebook_runs_on_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    jupyter_client, _ = pytest.importorskip("jupyter_client"), pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)

    runs = write_study(tmp_path, tokens={size: int(min(4e6, 4e12 / 6 / n)) for size, n in SIZES.items()})
    write_evals(tmp_path, runs[0], [10, 100], [3.0, 2.0])
    root = str(NOTEBOOK.parents[2])
    monkeypatch.setenv("STUDY_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    manager = jupyter_client.AsyncKernelManager(kernel_name="python3", transport="ipc")  # no ports to be lost to others
    client = nbclient.NotebookClient(notebook, km=manager, timeout=600, startup_timeout=600)
    monkeypatch.chdir(tmp_path)  # where its sockets go
    client.execute(cwd=str(tmp_path))

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in outputs)
    assert "seed-noise parametric bootstrap" in text
    assert "llama" in text and "tnl" in text and "-0.15" in text
    assert sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs) == 2
