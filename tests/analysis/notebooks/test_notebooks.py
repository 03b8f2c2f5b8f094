"""What holds for every notebook: it is short, reads top to bottom, and lies in git without outputs."""

import ast
import json

import pytest

from tests.analysis.notebooks.execute import NOTEBOOKS, ROOT

NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_and_without_outputs(name):
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert cells[0]["cell_type"] == "markdown" and 0 < len(code) <= 12
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        tree = ast.parse("".join(cell["source"]))
        made = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        assert not made, f"{made[0].name} belongs in a package"
        private = [part for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for part in node.names]
        assert not [part.name for part in private if part.name.startswith("_")]


def test_the_notebooks_are_listed_and_tested():
    page = (ROOT / "docs" / "reading-results.md").read_text()
    for name in NAMES:
        assert f"[{name}.ipynb](../analysis/notebooks/{name}.ipynb)" in page, name
        assert (ROOT / "tests" / "analysis" / "notebooks" / f"test_{name}.py").exists(), name
