"""table3.ipynb: what it prints is what the checks say."""

import pytest

from flops.laws import paper_laws
from flops.spent import spent
from tests.analysis.notebooks.execute import execute, text_of


def test_the_notebook(tmp_path):
    outputs = execute("table3", tmp_path, BUDGET="1e22")
    text = text_of(outputs)
    for part in ("PF-days", "1.2220", "1.1154", "the exponents of the law break the compute identity"):
        assert part in text, part
    for row in spent(paper_laws(), 1e22):
        assert all(f"{row[name]:.3f}" in text for name in ("paper", "exact", "6nd"))


def test_what_the_laws_cost_is_what_they_say_by_6nd():
    """The grid's shapes are within a percent of N_opt, so by 6 N they cost what the law itself says."""
    laws = paper_laws()
    for row in spent(laws, 1e22):
        law = laws.archs[row["arch"]]
        assert row["n_params"] == pytest.approx(law.n_opt(1e22), rel=0.01)
        assert row["6nd"] == pytest.approx(6 * law.n_opt(1e22) * law.d_opt(1e22) / 1e22, rel=0.01)
        assert row["exact"] > row["6nd"] and row["appendix"] > row["paper"]
