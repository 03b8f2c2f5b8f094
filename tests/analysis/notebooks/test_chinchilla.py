"""chinchilla.ipynb, on the points beside a checkout."""

import pytest

from tests.analysis.notebooks.execute import ROOT, execute, plots_of, text_of

POINTS = ROOT.parent / "shared" / "data" / "chinchilla" / "svg_extracted_data.csv"


def test_the_notebook(tmp_path):
    if not POINTS.is_file():
        pytest.skip("no shared/data/chinchilla beside the repository")
    outputs = execute("chinchilla", tmp_path, POINTS=str(POINTS), REPLICATES="60")
    text = text_of(outputs)
    for part in ("'read': 245", "'kept': 240", "1.8172", "0.3672", "isoflop", "bootstrap over 240 runs"):
        assert part in text, part
    assert len(plots_of(outputs)) == 2
