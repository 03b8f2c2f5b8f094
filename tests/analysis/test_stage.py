"""Fit and report of a study on disk: files, what the page holds, and that nothing is done twice."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis.figures.png
from analysis import stage
from analysis.contamination import FILE, ensure
from analysis.fits.fit import L_OPT
from analysis.fits.study_fits import read_fits
from analysis.report.figures import laws_figure, tokens_figure, validation_figure
from analysis.report.laws import law_notes
from analysis.report.runs import unused_lines
from analysis.runs import load_tables
from arch.errors import InputError
from data.corpus import open_corpus, prepare
from data.files import read_json, write_json
from data.settings import CorpusSettings
from scaling.rundir.directory import RunDir
from scaling.study.spec import StudySpec, load_study

from .few_replicates import few_replicates
from .fits.built import envelopes_of, study_of
from .fits.synthetic import BATCH, SIZES, power_world, write_evals, write_run

BUDGETS = {size: int(min(6e6, 7e12 / 6 / n)) for size, n in SIZES.items()}


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_replicates():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    """Two architectures: TNL whole, HGRN2 with three sizes (a, b not identified) and a failed one; fitted once."""
    folder = tmp_path_factory.mktemp("made")
    text = folder / "text"
    text.mkdir()
    for i in range(12):
        (text / f"{i:02d}.txt").write_text(random.Random(i).randbytes(720_000).hex())  # one epoch is enough
    (folder / "s.yaml").write_text(
        "name: demo\n"
        f"corpus: {{source: '{text}', validation_fraction: 0.5}}\n"
        "grid: {archs: [tnl, hgrn2], sizes: [14k, 25k, 55k, 98k, 221k, 393k], extra_seeds: {55k: [1, 2]}}\n"
        "training: {n_tokens: 1000000, warmup_tokens: 20480}\n"
        "fit: {range: [5.0e+10, 5.0e+12], smoothing_tokens: 20000}\n"
    )
    spec = load_study(folder / "s.yaml", out=folder / "out")
    prepare(CorpusSettings(source=str(text), validation_fraction=0.5), spec.directory / "corpus")
    for run in spec.runs():
        if run.arch == "hgrn2" and run.size in ("98k", "221k"):
            continue
        failed = run.arch == "hgrn2" and run.size == "393k"
        state = {"state": "failed", "reason": "loss is nan at step 12"} if failed else {}
        shift = 0.002 * run.seed
        write_run(spec.directory, run.arch, run.size, BUDGETS[run.size], seed=run.seed, shift=shift, **state)
        steps = [10, BUDGETS[run.size] // BATCH]
        losses = [float(power_world(SIZES[run.size], pd.Series([step * BATCH]).to_numpy())[0]) for step in steps]
        write_evals(spec.directory, run.run_id, steps, losses)
    assert stage.fit(spec, spec.runs()).fresh
    return spec


@pytest.fixture(scope="module")
def made_small(made: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    """TNL alone at four sizes, one seed each: a fit of these takes a fifth of the time."""
    folder = tmp_path_factory.mktemp("small")
    grid = "grid: {archs: [tnl], sizes: [14k, 25k, 55k, 98k]}"
    (folder / "s.yaml").write_text(re.sub(r"(?m)^grid: .*", grid, Path(made.path).read_text()))
    spec = load_study(folder / "s.yaml", out=folder / "out")
    shutil.copytree(made.directory / "corpus", spec.directory / "corpus")
    for run in spec.runs():
        shutil.copytree(made.run_directory(run), spec.run_directory(run))
    assert stage.fit(spec, spec.runs()).fresh
    return spec


@pytest.fixture
def study(made: StudySpec, tmp_path: Path) -> StudySpec:
    """A copy of the fitted study, for a test to change."""
    shutil.copytree(made.directory, tmp_path / "out" / "demo")
    return load_study(made.path, out=tmp_path / "out")


@pytest.fixture
def small(made_small: StudySpec, tmp_path: Path) -> StudySpec:
    """A copy of the small fitted study, for tests that fit and draw again and again."""
    shutil.copytree(made_small.directory, tmp_path / "out" / "demo")
    return load_study(made_small.path, out=tmp_path / "out")


@pytest.fixture
def empty(tmp_path: Path) -> StudySpec:
    """A study of which nothing was trained."""
    (tmp_path / "s.yaml").write_text(
        f"name: demo\nout: {tmp_path}/out\ncorpus: {{source: 'stdlib:'}}\n"
        "grid: {archs: [tnl], sizes: [14k]}\ntraining: {n_tokens: 100000}\n"
    )
    return load_study(tmp_path / "s.yaml")


def test_fit_writes_tables_and_laws_once(study: StudySpec) -> None:
    runs, results = study.runs(), study.directory / "results"
    fits = read_fits(results / "fits.json")
    stored = stage.read_tables(results)
    assert len(stored.runs) == len(runs) == 16
    assert set(stored.curves["run_id"]) == set(fits.inputs)
    assert len(stored.evals) == 28

    before = {path: path.stat().st_mtime_ns for path in results.iterdir()}
    again = stage.fit(study, runs)
    assert (again.fits.to_dict(), again.fresh, again.damaged) == (fits.to_dict(), False, None)
    assert {path: path.stat().st_mtime_ns for path in results.iterdir()} == before


def test_fit_is_made_anew_when_its_runs_change(small: StudySpec) -> None:
    runs, results = small.runs(), small.results
    fits = read_fits(results / "fits.json")
    metrics = small.directory / "runs" / runs[0].run_id / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-100]))
    with pytest.raises(InputError, match=r"metrics\.jsonl holds 2,829 of 2,929 rows: .*--repair"):
        stage.fit(small, runs)
    RunDir(metrics.parent).write_status("done", 2829, 2829 * BATCH, None, None)
    # what --set made of the study's runs is in the tables and in no fit, what the grid no longer has is counted
    variant, other = (write_run(small.directory, "tnl", "14k", BUDGETS["14k"], seed=seed) for seed in (8, 9))
    path = small.directory / "runs" / variant / "run.json"
    record = read_json(path)
    record["spec"]["sets"] = ["training.lr=1e-3"]
    write_json(path, record)
    again = stage.fit(small, runs)
    assert again.fresh and again.fits.left_out == (
        {"run_id": variant, "why": "changed by --set training.lr=1e-3"},
        {"run_id": other, "why": "not of the study file's grid"},
    )
    result = stage.read_tables(results).runs.set_index("run_id")
    assert (
        result.loc[variant, ["point", "variant"]].tolist() == ["lr=0.001", "training.lr=1e-3"]
        and other not in result.index
    )
    assert again.fits.group("tnl").n_runs == fits.group("tnl").n_runs
    (results / "runs.parquet").unlink()
    assert stage.fit(small, runs).fresh
    (results / "runs.parquet").write_bytes(b"x")
    with pytest.raises(InputError, match=r"runs\.parquet: cannot be read .*; `scaling fit study` makes it again"):
        stage.read_tables(results)
    assert "runs.parquet: cannot be read" in str(stage.fit(small, runs).damaged)


def test_scores_of_tasks_enter_fits_and_report(small: StudySpec) -> None:
    """As `scaling eval` leaves them; a study without them has no such part."""
    runs = small.runs()
    assert stage.fit(small, runs).fits.downstream is None
    rows = [
        (run.run_id, step, step * BATCH, task, "acc", value)
        for run in runs
        for step in (200, 400)
        for task, value in (("validation", 2.0), ("piqa", 0.5 + 1e-5 * step + 1e-4 * len(run.run_id)))
    ]
    evals = pd.DataFrame(rows, columns=["run_id", "step", "n_tokens", "task", "metric", "value"])
    evals.to_parquet(small.directory / "results" / "evals.parquet")
    fitted = stage.fit(small, runs)
    assert fitted.fresh and [task.task for task in fitted.fits.downstream.tasks] == ["piqa"]
    assert not stage.fit(small, runs).fresh
    html = stage.report(small, runs).path.read_text()
    assert "Scores of the tasks" in html and "piqa (acc)" in html
    tables = [small.directory / "results" / f"{name}.parquet" for name in ("evals", "runs", "curves")]
    tables[2].write_bytes(tables[1].read_bytes())
    assert stage.fit(small, runs).damaged == f"{tables[2]}: is another table: it has no column 'grad_norm'; " + (
        "`scaling fit study` makes it again"
    )
    tables[0].write_bytes(tables[1].read_bytes())
    with pytest.raises(
        InputError, match=r"evals\.parquet: is another table: it has no column 'task'; `scaling eval study`"
    ):
        stage.fit(small, runs)
    tables[0].write_bytes(b"x")
    with pytest.raises(InputError, match=r"evals\.parquet: cannot be read .*; `scaling eval study` writes it again"):
        stage.fit(small, runs)


def test_report_is_drawn_again_when_its_inputs_change(small: StudySpec) -> None:
    runs = small.runs()
    stage.report(small, runs)
    status = small.directory / "runs" / runs[0].run_id / "status.json"
    write_json(status, read_json(status) | {"state": "running"})
    assert stage.report(small, runs).fresh
    assert "The other evaluations" not in (small.directory / "report" / "index.html").read_text()
    (small.directory / "evals").mkdir()
    (small.directory / "evals" / "index.html").write_text("a page")
    assert '<a href="../evals/index.html">' in stage.report(small, runs).path.read_text()
    (small.directory / "own.txt").write_text("a " * 12 + "\n\n" + "none of this is there " * 5)
    record = ensure(open_corpus(small.directory / "corpus"), small.results / FILE, {"own": small.directory / "own.txt"})
    assert record["sets"]["own"]["overlapping"] == 0
    tested = small.model_copy(
        update={"evaluation": small.evaluation.model_copy(update={"tasks": ["piqa", "validation"]})}
    )
    html = stage.report(tested, runs).path.read_text()
    assert "Evaluation sets in the training text" in html and "0 (0.00%)" in html
    assert "Not held against the training text: piqa." in html
    (small.directory / "report" / "index.html").write_text("damaged")
    assert stage.report(small, runs).fresh


def test_a_study_without_runs_has_a_report(empty: StudySpec, tmp_path: Path) -> None:
    runs = empty.runs()
    assert stage.fit(empty, runs).fresh and not stage.fit(empty, runs).fresh
    assert stage.fit(empty, runs, force=True).fresh
    page, fresh, _ = stage.report(empty, runs)
    assert fresh and not stage.report(empty, runs).fresh and stage.report(empty, runs, force=True).fresh
    text = page.read_text()
    assert "tnl-14k-c256-s0" in text and "waiting" in text and "no usable run" in text
    assert not stage.report(empty, runs, paper=tmp_path / "paper").fresh
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"one-column", "two-columns", "tables"}


def test_laws_figure_marks_what_is_left_out(study: StudySpec) -> None:
    runs = [run.run_id for run in study.runs()]
    fits = stage.fit(study, study.runs()).fits
    tables = load_tables(study.directory, runs)
    without_verdicts = tuple(replace(fit, verdict=None) for fit in fits.fits)
    figure = laws_figure(replace(fits, fits=without_verdicts), tables, 2.5)  # the envelope leads
    axes = [figure.layout[key] for key in figure.layout if str(key).startswith("xaxis")]
    assert len(axes) == 9
    assert {axis.title.text for axis in axes} == {"training compute C (FLOP, exact)"}
    points = [trace for trace in figure.data if trace.mode == "markers" and trace.text is not None]
    envelope = fits.envelope("hgrn2").envelope.points
    hollow = [trace for trace in points if trace.text[0].startswith(envelope.size[0])][-1]
    assert [color == "white" for color in hollow.marker.color] == [why is not None for why in envelope.censored]
    assert any(color == "white" for color in hollow.marker.color)
    assert max(len(trace.x) for trace in figure.data) <= 300
    texts = [note.text for note in figure.layout.annotations]
    assert [shape.y0 for shape in figure.layout.shapes if shape.type == "line"] == [2.5] * 3
    assert any(text == "not identified: HGRN2" for text in texts)
    named = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert len(named) == len(set(named)) and "bigram, held-out 2.50" in named
    low, high = figure.layout.yaxis.range
    assert 10**low < min(envelope.loss) and 10**high == pytest.approx(
        max(
            2.75,
            np.percentile(
                [loss for group in fits.groups for loss in fits.envelope(group.name).envelope.points.loss], 90
            ),
        )
    )


def test_losses_over_tokens_are_the_curves_of_laws_figure(study: StudySpec) -> None:
    fits = stage.fit(study, study.runs()).fits
    tables = load_tables(study.directory, [run.run_id for run in study.runs()])
    figure, by_compute = tokens_figure(fits, tables, 2.5), laws_figure(fits, tables, 2.5)
    assert figure is not None and tokens_figure(fits, replace(tables, curves=tables.curves[:0])) is None
    costs = tables.runs.set_index("run_id")["flops_per_token_exact"]
    drawn, expected = (
        {run: trace for trace in chart.data if (run := (trace.hovertemplate or "").partition("<br>")[0]) in costs.index}
        for chart in (figure, by_compute)
    )
    assert len(drawn) > 4 and set(drawn) == set(expected)
    for run, trace in drawn.items():
        np.testing.assert_allclose(np.array(trace.x) * costs[run], expected[run].x)
        assert list(trace.y) == list(expected[run].y) and trace.line == expected[run].line
    assert [note.text for note in figure.layout.annotations] == ["<b>TNL</b>", "<b>HGRN2</b>"]
    low, high = (10**end for end in figure.layout.xaxis.range)
    assert low < min(max(trace.x) for trace in drawn.values()) and high > tables.curves["n_tokens"].max()


def test_held_out_panels_of_many_architectures_stand_in_rows(study: StudySpec) -> None:
    tables = load_tables(study.directory, [run.run_id for run in study.runs()])
    archs = ["llama", "tnl", "hgrn2", "cosformer2", "hgrn1", "mamba2", "mamba1"]
    row = {"size": "25k", "seed": 0, "flops_exact": 1e9, "loss": 2.0}
    evals = pd.DataFrame([row | {"run_id": arch} for arch in archs])
    runs = tables.runs.iloc[[0] * len(archs)].assign(run_id=archs, arch=archs, size="25k")
    figure = validation_figure(study_of(), replace(tables, runs=runs, evals=evals), 2.5)
    assert figure is not None
    shown = {trace.xaxis: trace for trace in figure.data if trace.mode == "lines+markers"}
    assert len(shown) == 7
    domains = [figure.layout[name.replace("x", "xaxis")].domain for name in shown]
    assert len(set(domains)) == 4  # as wide as their axis titles
    assert min(high - low for low, high in domains) * 1060 > 200


def test_pictures_are_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.graph_objects as go
    from choreographer.browsers.chromium import ChromeNotFoundError

    def without(*args: object, **kwargs: object) -> None:
        raise ChromeNotFoundError("none here")

    monkeypatch.setattr("kaleido.write_fig_from_object_sync", without)
    figure = go.Figure(layout={"width": 300, "height": 200})
    assert analysis.figures.png.write_pictures({"a": figure}, tmp_path / "figures") == "no Chrome or Chromium found"
    assert not (tmp_path / "figures").exists()
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "gone"))
    assert not analysis.figures.png.has_browser()
    monkeypatch.setattr(analysis.figures.png, "find_spec", lambda name: None)
    reason = analysis.figures.png.write_pictures({"a": figure}, tmp_path / "figures")
    assert reason is not None and "kaleido is not installed" in reason
    assert not analysis.figures.png.has_browser()


def test_pictures_are_written_where_a_browser_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: None
) -> None:
    import plotly.graph_objects as go

    monkeypatch.setattr(analysis.figures.png, "TIMEOUT_S", 600)  # a busy machine takes its time to start one
    figures = {name: go.Figure(go.Scatter(x=[1, 2], y=[1, 2]), {"width": 300, "height": 200}) for name in ("a", "b")}
    reason = analysis.figures.png.write_pictures(figures, tmp_path / "figures")
    if reason == "no Chrome or Chromium found":
        pytest.skip(reason)
    assert reason is None
    for name in figures:
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_decays_that_drift_over_sizes_are_told_with_the_laws(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        f"name: demo\nout: {tmp_path}/out\ncorpus: {{source: 'stdlib:'}}\n"
        "grid: {archs: [tnl], sizes: [70m, 7b]}\ntraining: {n_tokens: 100000000, batch_tokens: 8192}\n"
    )
    study = load_study(tmp_path / "s.yaml")
    fits = stage.fit(study, study.runs()).fits
    assert "the fastest half-life is 2.8 tokens at 70m and 0.8 at 7b" in fits.warnings[0]
    assert fits.warnings[0] in law_notes(fits)


def test_rows_that_cannot_be_change_no_law_and_are_told(small: StudySpec) -> None:
    runs = small.runs()
    before = stage.fit(small, runs).fits
    metrics = small.directory / "runs" / runs[1].run_id / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    wrong = json.dumps(json.loads(lines[500]) | {"n_tokens": 777, "loss": 0.3}) + "\n"
    metrics.write_text("".join([*lines[:300], "garbage\n", wrong, *lines[300:]]))
    RunDir(metrics.parent).write_status("done", len(lines), len(lines) * BATCH, None, None)
    fits, fresh, _ = stage.fit(small, runs)
    assert fresh and (fits.groups, fits.fits) == (before.groups, before.fits)
    why = "1 no JSON object, 1 whose n_tokens is not its step x batch_tokens"
    assert fits.skipped == ({"run_id": runs[1].run_id, "n": 2, "why": why},)
    assert any(runs[1].run_id in line and why in line for line in unused_lines(fits))
    assert why in stage.report(small, runs).path.read_text()


def test_a_range_belongs_to_its_convention_and_a_changed_fit_lies_beside(small: StudySpec) -> None:
    for run in small.runs():  # costs that grow otherwise than 6 N
        path = small.directory / "runs" / run.run_id / "run.json"
        if path.exists():
            record = read_json(path)
            record["cost"]["flops_per_token_train"]["exact"] *= 3 * (1e4 / SIZES[run.size]) ** 0.1
            write_json(path, record)
    own = stage.fit(small, small.runs()).fits
    stage.report(small, small.runs())
    before = {path: path.read_bytes() for path in small.directory.rglob("*") if path.is_file()}
    changed = load_study(small.path, ["fit.flops=6nd"], out=small.out)
    fits = stage.fit(changed, changed.runs()).fits
    page = stage.report(changed, changed.runs()).path
    of_table = envelopes_of(replace(stage.read_tables(small.results), settings=own.settings).under("6nd"))
    assert fits.envelope("tnl").laws == of_table.envelope("tnl").laws
    assert fits.envelope("tnl").law(L_OPT).exponent != own.envelope("tnl").law(L_OPT).exponent
    assert changed.results.name == "results-flops6nd" and page.parent.name == "report-flops6nd"
    assert {path: path.read_bytes() for path in before} == before
    assert stage.read_tables(changed.results).runs.equals(stage.read_tables(small.results).runs)


def test_pictures_are_drawn_once_there_is_a_browser(empty: StudySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    study, runs, there = empty, empty.runs(), list[str]()
    monkeypatch.setattr(analysis.figures.png, "has_browser", lambda: bool(there))
    monkeypatch.setattr(
        analysis.figures.png,
        "write_pictures",
        lambda figures, directory: None if there else analysis.figures.png.NO_BROWSER,
    )
    assert stage.report(study, runs).no_pictures == "no Chrome or Chromium found"
    assert not stage.report(study, runs).fresh
    there.append("chromium")
    assert stage.report(study, runs) == (study.report / "index.html", True, None)
    assert not stage.report(study, runs).fresh
