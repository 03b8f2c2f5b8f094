"""The page of a study's evaluations: every task has its table; nothing is drawn twice."""

from pathlib import Path

from analysis.evals.page import write_page

from .small_study import stored_result

RUN = "tnl-14k-c128-s0"
RESULTS = [
    stored_result(RUN, 5, "extrapolate", {"perplexity@64": 9.0}),
    stored_result(RUN, 10, "extrapolate", {"perplexity@64": 8.25, "perplexity_avg": None, "lengths_left_out": []}),
    stored_result(RUN, 10, "validation", {"loss": 1.5, "n_windows": 2048, "note": "text", "whole": True}),
    stored_result(RUN, 10, "mine", {"score": 0.25, "score_stderr": 0.01}),
]


def test_the_page_is_drawn_once(tmp_path: Path) -> None:
    page = write_page(tmp_path / "evals", "a <study>", RESULTS, ["left out: <2>"])
    assert page.fresh and page.no_pictures is None  # there is nothing to draw
    html = page.path.read_text()
    for text in ("a &lt;study&gt;: evaluations", "left out: &lt;2&gt;", "8.25", "0.25 ± 0.01", "1.5"):
        assert text in html, text
    assert "text</td>" not in html and "True" not in html and "9</td>" not in html
    assert html.index("<h2>validation") < html.index("<h2>extrapolate") < html.index("<h2>mine")
    assert not write_page(tmp_path / "evals", "a <study>", RESULTS, ["left out: <2>"]).fresh
    assert write_page(tmp_path / "evals", "a <study>", RESULTS[1:]).fresh
    (tmp_path / "evals" / "index.html").write_text("damaged")
    assert write_page(tmp_path / "evals", "a <study>", RESULTS[1:]).fresh
