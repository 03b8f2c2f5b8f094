"""The page of a study's evaluations: every task has its table, extrapolation its figures; nothing is drawn twice."""

from pathlib import Path
from typing import Any

from analysis.evals.extrapolate_plot import figures, table
from analysis.evals.page import write_page
from analysis.evals.results import Result
from analysis.figures.png import NO_BROWSER

from .small_study import stored_result


def result(task: str, run_id: str, step: int, **values: Any) -> Result:
    return stored_result(run_id, step, task, values)


def extrapolated(run_id: str, step: int, *perplexities: float | None) -> Result:
    lengths = [64 * 2**i for i in range(len(perplexities))]
    by_length = [
        {"length": n, "perplexity": p, "loss": p, "n_tokens_scored": 4096, "extrapolated": n > 128}
        for n, p in zip(lengths, perplexities, strict=True)
    ]
    by_position = [{"first": 1, "last": 128, "loss": 2.0, "extrapolated": False}]
    return result(
        "extrapolate",
        run_id,
        step,
        context_length=128,
        perplexity_avg=7.0,
        by_length=by_length,
        by_position=by_position,
    )


RESULTS = [
    extrapolated("tnl-14k-c128-s0", 5, 99.0, 99.0, 99.0),
    extrapolated("tnl-14k-c128-s0", 10, 9.0, 8.0, 7.0),
    extrapolated("llama-14k-c128-s0", 10, 9.5, 8.5, 1.2e16, None),
    result("validation", "tnl-14k-c128-s0", 10, loss=1.5, n_windows=2048, note="text", reason=None, whole=True),
    result("mine", "tnl-14k-c128-s0", 10, score=0.25),
]


def test_the_table_has_a_row_for_each_length_and_the_mean() -> None:
    rows = table(RESULTS[:3])
    assert rows[0] == {"context length": "64", "tnl-14k-c128-s0": "9.00", "llama-14k-c128-s0": "9.50"}
    assert rows[2] == {"context length": "256", "tnl-14k-c128-s0": "7.00*", "llama-14k-c128-s0": "1.20e+16*"}
    assert rows[3] == {"context length": "512", "tnl-14k-c128-s0": "-", "llama-14k-c128-s0": "not finite*"}
    assert rows[4]["context length"] == "avg" and rows[4]["tnl-14k-c128-s0"] == "7.00"


def test_the_figures_hatch_what_is_longer_than_the_training() -> None:
    drawn = figures(RESULTS[:3], "nats/byte")
    assert set(drawn) == {"extrapolate", "extrapolate_positions"}
    assert drawn["extrapolate_positions"].layout.yaxis.title.text == "loss (nats/byte)"
    traces = drawn["extrapolate"].data
    lines = {trace.name: trace for trace in traces if trace.mode == "lines+markers"}
    assert list(lines["tnl-14k-c128-s0"].y) == [9.0, 8.0, 7.0], "the newest checkpoint's"
    assert list(lines["llama-14k-c128-s0"].x) == [64, 128, 256], "without what is not finite"
    hatched = [trace for trace in traces if trace.fillpattern.shape]
    assert len(hatched) == 2 and {min(trace.x) for trace in hatched} == {128}
    assert {trace.xaxis for trace in hatched} == {trace.xaxis for trace in lines.values()}


def test_a_size_has_one_colour_in_all_panels() -> None:
    runs = ("llama-25k-c128-s0", "tnl-14k-c128-s0", "tnl-25k-c128-s0", "tnl-25k-c128-s1", "llama-llama-7b-c128-s0")
    drawn = figures([extrapolated(run, 10, 9.0, 8.0) for run in runs], "nats/token")["extrapolate"].data
    lines = {trace.name: trace for trace in drawn if trace.mode == "lines+markers"}
    colors = [lines[run].line.color for run in runs]
    assert colors[0] == colors[2] == colors[3] and len(set(colors)) == 3
    opacities = [lines[run].opacity for run in runs]
    assert opacities[3] < 0.5 and set(opacities[:3] + opacities[4:]) == {1.0}, "a second seed is fainter"
    assert len({trace.xaxis for trace in drawn}) == 2, "a published size is one of its architecture's"


def test_a_point_of_the_axes_has_a_panel() -> None:
    """Each type of decay has a panel; lengths of a point have dashes, further seeds are fainter."""
    kinds = ("independent", "dependent", "none")
    runs = [f"tnl-14k-c128-s{seed}-decay{kind}{end}" for kind in kinds for seed in (0, 1) for end in ("-d5m", "-d10m")]
    drawn = figures([extrapolated(run, 10, 9.0, 8.0) for run in runs], "nats/token")["extrapolate"]
    assert [annotation.text for annotation in drawn.layout.annotations][:3] == [
        f"<b>TNL, decay={kind}</b>" for kind in kinds
    ]
    lines = {trace.name: trace for trace in drawn.data if trace.mode == "lines+markers"}
    looks = {(line.xaxis, line.line.color, line.line.dash, line.opacity) for line in lines.values()}
    assert len(looks) == len(runs) and len({line.xaxis for line in lines.values()}) == 3


def test_the_page_is_drawn_once(tmp_path: Path) -> None:
    page = write_page(tmp_path / "evals", "a <study>", RESULTS, "nats/byte")
    assert page.fresh and page.no_pictures == NO_BROWSER
    html = page.path.read_text()
    for text in ("a &lt;study&gt;: evaluations", "2,048", "0.25", "1.20e+16*", "longer than the training", "plotly"):
        assert text in html, text
    assert "text</td>" not in html and "True" not in html
    assert not write_page(tmp_path / "evals", "a <study>", RESULTS, "nats/byte").fresh
    assert write_page(tmp_path / "evals", "a <study>", RESULTS[1:], "nats/byte").fresh
    (tmp_path / "evals" / "index.html").write_text("damaged")
    assert write_page(tmp_path / "evals", "a <study>", RESULTS[1:], "nats/byte").fresh
