"""A forecast from plan to report on a small study that is really trained: predicted first, and seen by no fit."""

import hashlib
import json
import shutil

import pytest

import scaling.cli.request
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import fits_of
from analysis.forecast.predict import NO_RATE, predict
from analysis.forecast.stored import Program, digests, read_rounds
from analysis.source.choose import source_of
from analysis.stage import read_tables
from data.corpus import open_corpus
from data.files import json_bytes, read_json, unsealed, write_json
from scaling.rundir.directory import RunDir
from scaling.rundir.prepare import record_prediction
from scaling.rundir.versions import program_digest
from scaling.study.spec import load_study
from tests.analysis.few_replicates import few_replicates
from tests.commands import invoke, printed, refusal_of

STUDY = """
name: tiny
corpus: {source: "synthetic:0:400000"}
grid: {archs: [llama], sizes: [6k, 10k, 14k, 25k, 38k], extra_seeds: {10k: [1]}}
model: {context_length: 64}
training: {n_tokens: 10240, batch_tokens: 256, warmup_tokens: 512, lr: 3e-3, n_checkpoints: 8, checkpoint_dtype: fp32}
forecast: {sizes: [55k], n_tokens: 15360, seeds: [5, 6], level: 0.8}
evaluation: {validation_tokens: 2048}
fit: {loss: validation, grid_points: 10}
jobs: {parallel: 1}
"""
TWO = STUDY.replace("level: 0.8}", "level: 0.8, then: {sizes: [98k], n_tokens: 15360, seeds: [7]}}")
IDS = ["llama-55k-c64-s5", "llama-55k-c64-s6"]
FITS, PREDICTIONS = "out/tiny/results/fits.json", "out/tiny/results/predictions.json"
SECOND, LATER = "out/tiny/results/predictions-2.json", "llama-98k-c64-s7"
WAIT = "forecast: 2 runs wait for `scaling predict"


@pytest.fixture(scope="module", autouse=True)
def few():
    with few_replicates():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, what commands printed, files as they were on the way) of a forecast from plan to report."""
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "tiny.yaml").write_text(STUDY)
    study, outputs, files = folder / "tiny.yaml", {}, {}
    out = ("--out", folder / "out")
    outputs["plan"] = printed("plan", study, *out)
    outputs["early"] = refusal_of("predict", study, *out)
    outputs["train"] = printed("train", study, *out)
    outputs["submit"] = printed("submit", study, *out, "--dry-run", "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}")
    outputs["runs"] = sorted(path.name for path in (folder / "out/tiny/runs").iterdir())
    outputs["eval"] = printed("eval", "study", study, *out)
    outputs["fit"] = printed("fit", "study", study, *out)
    files["fits"] = (folder / FITS).read_bytes()
    outputs["report before"] = printed("report", study, *out)
    outputs["predict"] = printed("predict", study, *out)
    files["predictions"] = (folder / PREDICTIONS).read_bytes()
    outputs["status"] = printed("status", study, *out)
    outputs["page before"] = page(printed("report", study, *out), folder)
    outputs["again"] = printed("predict", study, *out)
    printed("train", study, *out, "--only", "size=55k")
    printed("eval", "study", study, *out)
    outputs["measured"] = json.loads(invoke("predict", study, *out, "--json").stdout)
    printed("fit", "study", study, *out)
    printed("report", study, *out)
    return folder, outputs, files


def forged(first):
    """Predictions of the second round that nobody made, of those of the first."""
    run = first["runs"][0] | {"run_id": LATER, "size": "98k", "spec_hash": None}
    return first | {"round": 2, "runs": [run]}


def page(_, folder):
    return (folder / "out/tiny/report/index.html").read_text()


def test_forecasts_are_planned_and_wait_for_their_prediction(made):
    _, outputs, _ = made
    assert "llama-55k-c64-s5 (forecast)" in outputs["plan"] and "8 runs (2 forecast)" in outputs["plan"]
    assert WAIT in outputs["plan"] and "5 sizes" not in outputs["plan"]
    assert "train: 6 of 6 runs to do" in outputs["train"] and WAIT in outputs["train"]
    assert not set(IDS) & set(outputs["runs"]) and len(outputs["runs"]) == 6
    assert "2 forecast runs without a prediction" in outputs["submit"] and WAIT in outputs["submit"]
    assert "no run has trained" in outputs["early"]


def test_predictions_are_stored_once(made):
    folder, outputs, files = made
    stored = unsealed(files["predictions"])
    fits = fits_of(json.loads(files["fits"]))
    assert [row["run_id"] for row in stored["runs"]] == IDS and stored["level"] == 0.8
    study = load_study(folder / "tiny.yaml", out=folder / "out")
    assert [row["spec_hash"] for row in stored["runs"]] == [run.spec_hash for run in study.forecast_runs()]
    assert stored["inputs_hash"] == fits.inputs_hash and stored["settings"]["loss"] == "validation"
    grid = {run.run_id: run.spec_hash for run in study.runs()}
    assert stored["fitted"] == {"n_runs": 6, "of": 6, "spec_hashes": grid}
    for row in stored["runs"]:
        assert row["interval"][0] < row["loss"] < row["interval"][1] and row["reason"] is None
        assert "; rehearsed up to " in row["rests_on"] and row["rests_on"] in outputs["again"].replace("\n", " ")
    assert stored["groups"]["llama"]["largest"]["c"] < stored["runs"][0]["c"]
    corpus = folder / "out/tiny/corpus"
    held_out = [path.read_bytes() for path in sorted(corpus.glob("validation*.bin"))]
    assert stored["held_out"]["sha256"] == [hashlib.sha256(content).hexdigest() for content in held_out] != []
    assert stored["held_out"]["tokens"] == len(open_corpus(corpus).validation)
    assert [(row["seed"], row["lr"]) for row in stored["runs"]] == [(5, 3e-3), (6, 3e-3)]
    assert stored["program"]["code"] == program_digest() and len(stored["if_missed"]) == 3
    shown = " ".join(outputs["again"].split())
    assert "LLaMA 55k: learning rate 0.003" in shown and "Losses are read on 2,048 of" in shown
    assert "predict: 2 of 2 runs predicted" in outputs["predict"] and "predict: " not in outputs["again"]
    assert (folder / PREDICTIONS).read_bytes() == files["predictions"]
    assert WAIT not in outputs["status"] and "llama-55k-c64-s5 (forecast)" in outputs["status"]


def test_no_fit_sees_a_forecast_run(made):
    """fits.json is the same to the bit with forecast runs trained and evaluated, fitted anew, and without them."""
    folder, _, files = made
    study, home = folder / "tiny.yaml", folder / "out/tiny"
    assert all((home / "runs" / run / "evals").is_dir() for run in IDS)
    assert (folder / FITS).read_bytes() == files["fits"]
    output = printed("fit", "study", study, "--out", folder / "out", "--force")
    assert "fit: done" in output and (folder / FITS).read_bytes() == files["fits"]
    tables = source_of(loaded := load_study(study, out=folder / "out"), loaded.runs()).table(FitSettings(), 2048)
    assert not any(set(IDS) & set(table["run_id"]) for table in (tables.curves, tables.runs, tables.evals))
    from analysis.runs import load_tables

    assert not set(IDS) & set(load_tables(home).runs["run_id"]), "in a notebook neither"


def test_measured_losses_stand_beside_their_predictions(made):
    folder, outputs, _ = made
    measured = outputs["measured"]
    assert measured["n"]["trained"] == measured["n"]["runs"] == 2
    for row in measured["runs"]:
        step = read_json(folder / "out/tiny/runs" / row["run_id"] / "evals" / "00000060" / "validation.json")
        assert row["measured"] == step["values"]["loss"] and row["n_tokens"] == step["n_tokens"]
        assert row["error"] == pytest.approx(row["measured"] / row["loss"] - 1)
        assert row["held"] == (row["interval"][0] <= row["measured"] <= row["interval"][1])
    text = printed("predict", folder / "tiny.yaml", "--out", folder / "out")
    assert "llama-55k-c64-s5" in text and "The 80% intervals held " in text


def test_the_report_has_the_forecast_before_and_after(made):
    folder, outputs, _ = made
    assert ">Forecast</h2>" in outputs["page before"] and "none of them is trained yet" in outputs["page before"]
    now = page(None, folder)
    assert ">Forecast</h2>" in now and "none of them is trained yet" not in now
    assert "llama-55k-c64-s5" in (folder / "out/tiny/report/tables/forecast.csv").read_text()


def test_what_is_trained_is_not_predicted_anew(made):
    folder, _, files = made
    study, out = folder / "tiny.yaml", ("--out", folder / "out")
    assert "llama-55k-c64-s5 has begun" in refusal_of("predict", study, *out, "--force")
    (folder / PREDICTIONS).rename(folder / "kept.json")
    try:
        assert "llama-55k-c64-s5 has begun" in refusal_of("predict", study, *out)
    finally:
        (folder / "kept.json").rename(folder / PREDICTIONS)
    assert (folder / PREDICTIONS).read_bytes() == files["predictions"]


def test_what_begins_before_the_study_is_held_is_not_predicted_anew(made, tmp_path, monkeypatch):
    folder, _, files = made
    shutil.copytree(folder / "out", tmp_path / "out")
    first, begun = tmp_path / "out/tiny/runs" / IDS[0], tmp_path / "begun"
    first.rename(begun)
    shutil.rmtree(tmp_path / "out/tiny/runs" / IDS[1])
    held = scaling.cli.request.study_lock

    def after_another(directory):
        begun.rename(first)  # trained by a command that held the study until now
        return held(directory)

    monkeypatch.setattr(scaling.cli.request, "study_lock", after_another)
    assert f"{IDS[0]} has begun" in refusal_of("predict", folder / "tiny.yaml", "--out", tmp_path / "out", "--force")
    assert (tmp_path / PREDICTIONS).read_bytes() == files["predictions"]


def test_a_run_without_a_rate_is_not_predicted_beside_others(made, tmp_path):
    """Its row says so, and stays valid when it gets a rate."""
    folder, _, files = made
    shutil.copytree(folder / "out", tmp_path / "out")
    study = load_study(folder / "tiny.yaml", out=tmp_path / "out")
    first, second = study.forecast_runs()
    unrated = second.model_copy(update={"training": second.training.model_copy(update={"lr": "law"})})
    tables = read_tables(study.results)
    predict(study, [first, unrated], fits_of(json.loads(files["fits"])), tables, Program(commit=None))
    predicted, skipped = read_rounds(study)[0].runs
    assert predicted.loss and predicted.spec_hash == first.spec_hash
    assert skipped.loss is None and skipped.reason == NO_RATE and skipped.spec_hash is None


def test_one_command_predicts_nothing_that_has_begun_nor_from_changed_fits(made, tmp_path):
    folder, _, _ = made
    shutil.copytree(folder / "out", tmp_path / "out")
    shutil.rmtree(tmp_path / "out/tiny/runs" / IDS[1])
    (tmp_path / PREDICTIONS).unlink()
    study, out = folder / "tiny.yaml", ("--out", tmp_path / "out")
    assert f"forecast: not predicted, as {IDS[0]} has begun" in printed("run", study, *out)
    shutil.rmtree(tmp_path / "out/tiny/runs" / IDS[0])
    assert "not predicted, as --set changed the fits" in printed("run", study, *out, "--set", "fit.first_share=0.2")
    assert not (tmp_path / PREDICTIONS).exists() and not (tmp_path / "out/tiny/runs" / IDS[1]).exists()


def test_changes_of_the_command_line_leave_the_predictions_alone(made):
    folder, _, _ = made
    study, out = folder / "tiny.yaml", ("--out", folder / "out")
    for change in ("training.lr=0.01", "grid.sizes=[6k]"):
        assert "(forecast)" in printed("status", study, *out, "--set", change)


def test_evaluations_of_some_runs_leave_forecasts_out_of_what_fits_read(made):
    folder, _, _ = made
    home = folder / "out/tiny/results"
    before = [(home / f"{name}.parquet").read_bytes() for name in ("evals", "forecast-evals")]
    printed("eval", "study", folder / "tiny.yaml", "--out", folder / "out", "--only", "size=6k")
    assert [(home / f"{name}.parquet").read_bytes() for name in ("evals", "forecast-evals")] == before


def test_predictions_that_cannot_be_used_are_refused(made, tmp_path):
    folder, _, files = made
    study, out = folder / "tiny.yaml", ("--out", folder / "out")
    stored = unsealed(files["predictions"])
    try:
        for content, message in (
            (b"{", "is damaged"),
            (json_bytes(stored | {"schema": "other"}), "is damaged (it is no scaling.predictions of"),
            (json_bytes(stored | {"runs": [{}]}), "is damaged (runs.0."),
            (json_bytes(stored | {"runs": []}), "is damaged (runs: "),
            (json_bytes(stored | {"runs": stored["runs"][:1] * 2}), "is damaged (it has a run twice"),
            (json_bytes(stored | {"groups": stored["groups"] | {"llama": {"reason": None}}}), "its group no largest"),
            (json_bytes(stored | {"program": None}), "is damaged (program: "),
            (json_bytes(stored | {"settings": {"a": 1}}), "is damaged (settings"),
            (json_bytes(stored | {"groups": {}}), "is damaged (groups: lacks llama"),
            (json_bytes(stored | {"round": 2}), "is damaged (it is of round 2"),
            (json_bytes(stored | {"study": "other"}), "is of study other, not of tiny"),
            (json_bytes(stored | {"validation_tokens": 5}), "predicts losses over 5 held-out tokens"),
        ):
            (folder / PREDICTIONS).write_bytes(content)
            for name in ("predict", "train", "report"):
                assert message in refusal_of(name, study, *out)
    finally:
        (folder / PREDICTIONS).write_bytes(files["predictions"])
    changed = tmp_path / "tiny.yaml"
    changed.write_text(STUDY.replace("15360", "30720"))
    assert "predicts llama-55k-c64-s5 with spec_hash" in refusal_of("predict", changed, *out)
    changed.write_text(STUDY.replace("seeds: [5, 6]", "seeds: [6]"))
    assert "the study file has no such run" in refusal_of("report", changed, *out)
    changed.write_text("\n".join(line for line in STUDY.splitlines() if not line.startswith("forecast")))
    assert "has no section forecast" in refusal_of("predict", changed, *out)


def test_a_published_study_has_its_forecast(made, tmp_path):
    folder, outputs, files = made
    study, out = tmp_path / "tiny.yaml", ("--out", folder / "out")
    study.write_text(TWO)  # whose second round is not predicted
    (tmp_path / "other").mkdir()
    (tmp_path / "other/predictions-2.json").write_text("mine")
    assert "predictions-2.json: is there already" in refusal_of("publish", study, tmp_path / "other", *out)
    printed("publish", study, tmp_path / "public", *out)
    assert "differs" not in printed("publish", tmp_path / "public", "--check")
    elsewhere = ("--out", tmp_path / "out")
    shown = invoke("predict", tmp_path / "public", *elsewhere, "--json")
    assert json.loads(shown.stdout) == outputs["measured"] and "waits" not in shown.output
    write_json(tmp_path / "public/predictions-2.json", forged(unsealed(files["predictions"])))
    assert "predictions-2.json: was not published with this folder" in refusal_of(
        "predict", tmp_path / "public", *elsewhere
    )
    (tmp_path / "public/predictions-2.json").unlink()
    assert "is published and stays as it is" in refusal_of("predict", tmp_path / "public", *elsewhere, "--force")
    printed("report", tmp_path / "public", *elsewhere)
    rows = (tmp_path / "out/tiny-published/report/tables/forecast.csv").read_bytes()
    assert rows == (folder / "out/tiny/report/tables/forecast.csv").read_bytes()
    assert read_json(tmp_path / "out/tiny-published/results/fits.json") == read_json(folder / FITS)


def test_a_bundle_carries_forecast_runs_and_their_predictions(made, tmp_path):
    folder, outputs, files = made
    study, bundle = folder / "tiny.yaml", tmp_path / "tiny.tar.xz"
    assert "8 runs" in printed("bundle", "pack", study, "--out", folder / "out", "--to", bundle)
    there = ("--out", tmp_path / "out")
    printed("bundle", "unpack", bundle, *there)
    assert (tmp_path / PREDICTIONS).read_bytes() == files["predictions"]
    printed("fit", "study", study, *there)
    assert (tmp_path / FITS).read_bytes() == files["fits"]
    assert json.loads(invoke("predict", study, *there, "--json").stdout) == outputs["measured"]
    (tmp_path / PREDICTIONS).write_bytes(files["predictions"] + b" ")
    assert "predictions.json, the study's predictions, differs" in refusal_of("bundle", "unpack", bundle, *there)


def test_one_command_predicts_between_the_grid_and_its_forecast(made, tmp_path):
    folder, outputs, files = made
    shutil.copytree(folder / "out", tmp_path / "out")
    for run in IDS:
        shutil.rmtree(tmp_path / "out/tiny/runs" / run)
    (tmp_path / PREDICTIONS).unlink()
    text = printed("run", folder / "tiny.yaml", "--out", tmp_path / "out")
    order = [text.index(part) for part in ("train: 0 of 6", "predict: 2 of 2", "train: 2 of 8", "report: ")]
    assert order == sorted(order) and "Test on a run that no fit read: LLaMA, " in text
    assert " times its largest fitted run: predicted " in text
    assert "(nats/byte); text: " in text and text.splitlines()[-1].startswith("next: ")
    predicted = json.loads(invoke("predict", folder / "tiny.yaml", "--out", tmp_path / "out", "--json").stdout)
    assert predicted["runs"] == outputs["measured"]["runs"] and (tmp_path / FITS).read_bytes() == files["fits"]


def test_a_grid_that_is_not_trained_is_not_predicted_from_by_itself(made, tmp_path):
    """`scaling run` of a part of the runs trains no forecast; `scaling predict` may be asked to."""
    folder, _, _ = made
    shutil.copytree(folder / "out", tmp_path / "out")
    for run in (*IDS, "llama-6k-c64-s0"):
        shutil.rmtree(tmp_path / "out/tiny/runs" / run)
    (tmp_path / PREDICTIONS).unlink()
    text = printed("run", folder / "tiny.yaml", "--out", tmp_path / "out", "--only", "size=55k|10k")
    assert "forecast: not predicted, as 1 run of the grid is not trained (llama-6k-c64-s0)" in text
    assert not any((tmp_path / "out/tiny/runs" / run).exists() for run in IDS)
    assert "when 5 of the 6 runs of the grid were trained and none of these was." in printed(
        "predict", folder / "tiny.yaml", "--out", tmp_path / "out"
    )


@pytest.mark.slow  # it trains and fits three times
def test_a_second_round_is_predicted_from_the_grid_and_the_first(made, tmp_path):
    """It waits until the first is trained and evaluated, has a file of its own, and changes nothing of the first."""
    folder, outputs, files = made
    shutil.copytree(folder / "out", tmp_path / "out")
    for run in IDS:
        (tmp_path / run).parent.mkdir(exist_ok=True)
        (tmp_path / "out/tiny/runs" / run).rename(tmp_path / run)
    study, out = tmp_path / "tiny.yaml", ("--out", tmp_path / "out")
    study.write_text(TWO)
    second = tmp_path / SECOND
    text = printed("predict", study, *out)
    assert "predict: round 2 waits, as llama-55k-c64-s5 is not trained" in text and not second.exists()
    assert "1 run waits for `scaling predict" in (plan := printed("plan", study, *out)) and "once round 1 is" in plan
    for run in IDS:
        (tmp_path / run).rename(tmp_path / "out/tiny/runs" / run)
    text = printed("predict", study, *out)
    assert "predict: 1 of 1 run predicted" in text and "Forecast, round 2" in text
    stored = read_json(second)
    assert stored["round"] == 2 and stored["level"] == 0.9 and [row["run_id"] for row in stored["runs"]] == [LATER]
    loaded = load_study(study, out=tmp_path / "out")
    fitted = {run.run_id: run.spec_hash for run in (*loaded.runs(), *loaded.forecast_runs(0))}
    assert stored["fitted"] == {"n_runs": 8, "of": 8, "spec_hashes": fitted}
    grid = unsealed(files["predictions"])["groups"]["llama"]["largest"]["c"]
    assert stored["groups"]["llama"]["largest"]["c"] > 2 * grid, "the drop is from the first round's runs"
    assert (tmp_path / PREDICTIONS).read_bytes() == files["predictions"]
    assert (tmp_path / FITS).read_bytes() == files["fits"], "the study's own fits see neither round"
    text = printed("run", study, *out)
    assert "train: 1 of 9 runs to do" in text and second.read_bytes() == json_bytes(stored)
    predicted = json.loads(invoke("predict", study, *out, "--json").stdout)
    (later,) = predicted.pop("later")
    assert predicted["runs"] == outputs["measured"]["runs"] and later["round"] == 2 and later["n"]["trained"] == 1
    html = page(None, tmp_path)
    assert ">Forecast, round 2</h2>" in html and "Forecast, round 2: " in html
    assert "llama-98k-c64-s7" in (tmp_path / "out/tiny/report/tables/forecast-2.csv").read_text()
    assert "has begun" in refusal_of("predict", study, *out, "--force")
    printed("publish", study, tmp_path / "public", *out)
    assert "differs" not in printed("publish", tmp_path / "public", "--check")
    assert read_json(tmp_path / "public/predictions-2.json") == stored
    printed("bundle", "pack", study, *out, "--to", tmp_path / "b.tar.xz")
    printed("bundle", "unpack", tmp_path / "b.tar.xz", "--out", tmp_path / "there")
    assert (tmp_path / "there/tiny/results/predictions-2.json").read_bytes() == second.read_bytes()
    second.unlink()
    shutil.rmtree(tmp_path / "out/tiny/runs/llama-98k-c64-s7")
    text = printed("run", study, *out)
    assert "predict: 1 of 1 run predicted" in text and "train: 1 of 9 runs to do" in text


@pytest.fixture(scope="module")
def predicted_study(made, tmp_path_factory):
    """A folder in which the second round is predicted too, and none of it begun."""
    folder = tmp_path_factory.mktemp("rounds")
    (folder / "tiny.yaml").write_text(TWO)
    shutil.copytree(made[0] / "out", folder / "out")
    printed("predict", folder / "tiny.yaml", "--out", folder / "out")
    return folder


@pytest.fixture
def rounds(predicted_study, tmp_path):
    """(a copy of that folder, its study file, where it goes)."""
    shutil.copytree(predicted_study, tmp_path / "copy")
    return tmp_path / "copy", tmp_path / "copy/tiny.yaml", ("--out", tmp_path / "copy/out")


def test_a_round_is_predicted_anew_only_after_those_before_and_never_before_a_later_one(rounds):
    folder, study, out = rounds
    stored = (folder / SECOND).read_bytes()
    for run in IDS:
        shutil.rmtree(folder / "out/tiny/runs" / run)
    assert f"predictions-2.json: {IDS[0]} is not trained: the stored one stays" in refusal_of(
        "predict", study, *out, "--force"
    )
    (folder / PREDICTIONS).unlink()
    for name in ("predict", "train", "report"):
        assert "has predictions of round 2, and the study file has rounds 1 to 2" in refusal_of(name, study, *out)
    assert (folder / SECOND).read_bytes() == stored and not (folder / PREDICTIONS).exists()


def test_a_round_waits_for_every_evaluation_of_those_before(made, tmp_path):
    shutil.copytree(made[0] / "out", tmp_path / "out")
    (tmp_path / "tiny.yaml").write_text(TWO)
    first = min((tmp_path / "out/tiny/runs" / IDS[1] / "evals").iterdir())
    shutil.rmtree(first)
    text = printed("predict", tmp_path / "tiny.yaml", "--out", tmp_path / "out")
    assert f"round 2 waits, as {IDS[1]} is not evaluated at all of its checkpoints" in text
    assert not (tmp_path / SECOND).exists()


def test_a_round_without_rates_hides_none_before(made, tmp_path):
    unrated = "\noverrides: {by_run: {llama/98k: {lr: law}}}\nsweep: {rates: [1e-3, 2e-3, 4e-3], share: null}\n"
    (tmp_path / "tiny.yaml").write_text(TWO + unrated)
    text = printed("predict", tmp_path / "tiny.yaml", "--out", made[0] / "out")
    assert "round 2 waits, as none of its forecast runs has a learning rate: " in text and IDS[0] in text


def test_a_predicted_round_stays_where_the_study_file_changes(rounds):
    """It is refused, may be predicted anew as the message says, but not once a run of either file has begun."""
    folder, study, out = rounds
    stored = (folder / SECOND).read_bytes()
    study.write_text(STUDY)
    for name in ("predict", "report", "status"):
        assert "has predictions of round 1, 2, and the study file has rounds 1 to 1" in refusal_of(name, study, *out)
    study.write_text(TWO.replace("seeds: [7]", "seeds: [8]"))
    assert "the study file has no such run: undo the change" in refusal_of("predict", study, *out)
    begun = folder / "out/tiny/runs" / LATER
    begun.mkdir()
    write_json(begun / "status.json", {"state": "running"})
    assert f"{LATER} has begun" in refusal_of("predict", study, *out, "--force")
    assert (folder / SECOND).read_bytes() == stored
    shutil.rmtree(begun)
    printed("predict", study, *out, "--force")
    assert json.loads((folder / SECOND).read_text())["runs"][0]["run_id"].endswith("s8")


def test_prepared_runs_are_of_the_prediction_that_is_stored(rounds):
    """One that is made anew between the preparation and the first step is the one under which they are trained."""
    folder, study, out = rounds
    record = folder / "out/tiny/runs" / LATER / "run.json"
    printed("train", study, *out, "--prepare")
    before = read_json(record)
    assert before["prediction"] == digests(load_study(study, out=folder / "out"))[LATER]
    study.write_text(TWO.replace("seeds: [7]", "seeds: [7], level: 0.7"))
    printed("predict", study, *out, "--force")
    now = digests(load_study(study, out=folder / "out"))[LATER]
    assert read_json(record) == before | {"prediction": now} and now != before["prediction"]
    write_json(record.parent / "status.json", {"state": "running"})
    record_prediction(RunDir(record.parent), "another")
    assert read_json(record)["prediction"] == now, "what has begun keeps its own"


def test_tables_say_which_round_a_run_is_of(rounds):
    _, study, out = rounds
    for name in ("status", "plan"):
        text = printed(name, study, *out)
        assert f"{LATER} (forecast, round 2)" in text and f"{IDS[0]} (forecast) " in text
        rows = json.loads(printed(name, study, *out, "--json"))["runs"]
        assert {row["run_id"]: row["round"] for row in rows if row["round"]} == {**dict.fromkeys(IDS, 1), LATER: 2}
