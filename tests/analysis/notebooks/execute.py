"""A notebook of the package, executed as it stands in a kernel of its own."""

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = ROOT / "analysis" / "notebooks"
PLOT = "application/vnd.plotly.v1+json"


def execute(name: str, folder: Path, **environment: str) -> list[dict[str, Any]]:
    """The outputs of its cells, one behind the other; `folder`: where it runs; `environment`: of the kernel."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    jupyter_client, _ = pytest.importorskip("jupyter_client"), pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    manager = jupyter_client.AsyncKernelManager(kernel_name="python3", transport="ipc")  # no ports to be lost to others
    client = nbclient.NotebookClient(notebook, km=manager, timeout=600, startup_timeout=600)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where its sockets go
        for variable, value in ({"PYTHONPATH": path} | environment).items():
            patch.setenv(variable, value)
        client.execute(cwd=str(folder), cleanup_kc=True)  # a manager of our own is left running otherwise
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def text_of(outputs: list[dict[str, Any]]) -> str:
    return "\n".join(output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in outputs)


def plots_of(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures, as plotly's JSON."""
    return [output["data"][PLOT] for output in outputs if PLOT in output.get("data", {})]
