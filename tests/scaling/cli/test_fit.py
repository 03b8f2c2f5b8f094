"""`scaling fit table`, and the other fits: what is printed, and mistakes in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.figures.paper import WIDTHS
from analysis.fits.fit import Fit
from analysis.fits.parametric import fit_parametric, parametric_result
from analysis.fits.points import Points
from analysis.report.summary import reasons_of
from arch.amounts import count
from arch.errors import InputError
from scaling.cli.fit_details import result_text
from scaling.cli.fit_laws import Progress
from scaling.cli.main import app, main
from scaling.cli.passing import Passing
from tests.commands import in_this_process

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = 'n_params="Model Size",flops="Training FLOP",loss=loss'


def fit(*arguments, of="table"):
    """stdout of `scaling fit table`, or of another fit, that works; raises what a command raises."""
    result = CliRunner().invoke(app, ["fit", of, *map(str, arguments)])
    if result.exit_code == 2:
        raise InputError(result.stderr.splitlines()[-1])  # run_app prints this line alone
    if result.exception is not None:
        raise result.exception
    return result.stdout


def refused(message, *arguments, of="table"):
    with pytest.raises(InputError, match=message) as computed:
        fit(*arguments, of=of)
    assert "\n" not in str(computed.value)


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """Curves of six sizes, one with three seeds, of two architectures, on a known surface."""
    rng, lines = np.random.default_rng(0), ["name,架构,Model Size,tokens,loss"]
    for arch, factor in (("tnl", 1.0), ("hgrn2", 0.98)):
        for n in np.geomspace(1e6, 1e8, 6):
            for seed in range(3 if n > 9e7 else 1):
                shift = np.exp(0.002 * rng.standard_normal())
                for d in np.geomspace(1e7, 2e10, 60):
                    loss = factor * shift * ((n / 1e8) ** -0.1 + (d / 1e10) ** -0.1)
                    lines.append(f"{arch}-{n:.0f}-{seed},{arch},{n:.0f},{d:.0f},{float(loss)!r}")
    path = tmp_path_factory.mktemp("table") / "curves.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


QUICK = ("--approach", "envelope", "--columns", "run=name", "--replicates", "40")
CHINCHILLA = ROOT.parent / "shared" / "data" / "chinchilla" / "svg_extracted_data.csv"


def test_the_chinchilla_points():
    """Besiroglu et al. 2024, refitted to full precision: 245 rows, D = C / 6 N, the five highest losses dropped."""
    if not CHINCHILLA.is_file():
        pytest.skip("no shared/data/chinchilla beside the repository")
    arguments = [CHINCHILLA, "--approach", "parametric", "--columns", COLUMNS, "--drop-highest-loss", "5", "--json"]
    computed = json.loads(fit(*arguments, "--at", "1e22", "--predict", "7e9,1.4e12"))
    (stored,) = computed["results"]
    result = Fit.from_dict(stored)
    assert result.approach == "parametric" and result.n_points == 240
    expected = {"E": 1.817218, "A": 477.83, "B": 2143.4, "alpha": 0.347311, "beta": 0.367172, "a": 0.51390}
    assert {name: result.parameters[name].value for name in expected} == pytest.approx(expected, rel=1e-4)
    assert result.objective.value == pytest.approx(0.00101827, rel=1e-5)
    assert result.objective.worst == pytest.approx(result.objective.value, rel=1e-6)
    assert result.a.interval == pytest.approx([0.480, 0.557], abs=0.01)
    assert computed["input"]["derived"] == {"n_tokens": "C / (6 N) (6nd)"}
    assert computed["input"]["rows"] == {"read": 245, "dropped": {"the highest losses": 5}, "kept": 240}
    optimum, predicted = result.optima[0], result.predictions[0].loss
    assert 6 * optimum.n_params.value * optimum.n_tokens.value == pytest.approx(1e22)
    assert predicted.value == pytest.approx(1.817218 + 477.83 / 7e9**0.347311 + 2143.4 / 1.4e12**0.367172, rel=1e-4)
    assert predicted.low < predicted.value < predicted.high


def test_the_page_shows_what_the_command_prints():
    """docs/fits.md: the output for these points, but for line breaks."""
    if not CHINCHILLA.is_file():
        pytest.skip("no shared/data/chinchilla beside the repository")
    page = (ROOT / "docs" / "fits.md").read_text(encoding="utf-8")
    shown = page.split("```\n")[1]
    text = fit(CHINCHILLA, "--columns", COLUMNS, "--drop-highest-loss", "5").replace(str(CHINCHILLA), CHINCHILLA.name)
    assert text.split() == shown.split()


def test_a_table_of_curves(curves, tmp_path):
    arguments = [curves, "--approach", "envelope", "--columns", "run=name", "--group", "架构", "--replicates", "50"]
    saved = tmp_path / "fit.json"
    computed = json.loads(fit(*arguments, "--at", "1e18,1e20", "--save", saved, "--json"))
    assert computed == json.loads(saved.read_text())
    assert [result["group"] for result in computed["results"]] == ["tnl", "hgrn2"] and computed["not_fitted"] == []
    for result in map(Fit.from_dict, computed["results"]):
        assert result.approach == "envelope" and len(result.input_hash) == 64
        assert result.a.value == pytest.approx(0.5, abs=0.02) and result.n_runs == 8 and result.n_points == 480
        assert [at.flops for at in result.optima] == [1e18, 1e20]
        assert result.conventions == {"C": "6nd", "L": "the table's unit"}
    assert computed["input"]["rows"] == {"read": 960, "dropped": {}, "kept": 960}
    text = fit(*arguments, "--details")
    for outcome in (
        "curves.csv: 960 rows read, none left out, 960 kept (whole curves)",
        "columns: n_params = Model Size, n_tokens = tokens, loss = loss, run = name, arch = 架构",
        "flops derived: 6 N D (6nd)",
        "groups: tnl (480 points of 8 runs), hgrn2 (480 points of 8 runs)",
        "tnl: envelope, 480 points of 8 runs, C 6e13 to 1.2e19 FLOP (C: 6nd, L: the table's unit)",
        "N_opt ~ C^a",
        "intervals: nominal level 0.95",
    ):
        assert outcome in text, outcome


def test_architectures_are_told_apart_unasked_and_compared(tmp_path):
    """B has 0.95 of A's loss. All rows as one give one law, and nothing to compare."""
    rng, rows = np.random.default_rng(0), ["N,D,loss,arch"]
    for arch, factor in (("A", 1.0), ("B", 0.95)):
        for n in np.geomspace(1e6, 1e8, 3):
            for d in np.geomspace(1e8, 1e10, 4):
                loss = factor * np.exp(1e-3 * rng.standard_normal()) * (1 + (n / 1e7) ** -0.3 + (d / 1e9) ** -0.3)
                rows.append(f"{float(n)!r},{float(d)!r},{float(loss)!r},{arch}")
    path, saved = tmp_path / "runs.csv", tmp_path / "fit.json"
    path.write_text("\n".join(rows))
    arguments = [path, "--approach", "parametric", "--replicates", "40", "--save", saved]
    text = fit(*arguments)
    grouped = json.loads(saved.read_text())
    assert "grouped by 'arch'; --columns arch= fits all of its values as one" in text
    assert "compute for the same loss" in text
    assert [result["group"] for result in grouped["results"]] == ["A", "B"]
    assert grouped["comparisons"]
    text = fit(*arguments, "--columns", "arch=")
    whole = json.loads(saved.read_text())
    assert "grouped" not in text and "compute for the same loss" not in text
    assert [(result["group"], result["n_runs"]) for result in whole["results"]] == [("", 24)]
    assert whole["comparisons"] is None


def test_losses_of_other_texts_are_not_compared(tmp_path):
    """HGRN2 on one corpus and tokenizer beside LLaMA on another: each has its law, and none is ahead. Two of one kind
    are compared, and so are all where the columns are left out."""
    table = pd.DataFrame(
        [
            (arch, *text, n, d, factor * np.exp(0.002 * rng.standard_normal()) * (1.7 + 400 / n**0.34 + 410 / d**0.28))
            for rng in (np.random.default_rng(0),)
            for arch, factor, text in (
                ("hgrn2", 0.9, ("pile", "gpt2")),
                ("llama", 1.3, ("c4", "llama3")),
                ("tnl", 1.25, ("c4", "llama3")),
            )
            for n in np.geomspace(1e7, 1e9, 4)
            for d in np.geomspace(1e9, 1e11, 4)
        ],
        columns=["arch", "dataset", "tokenizer", "N", "D", "loss"],
    )
    why = (
        "losses of 2 kinds, which are not compared with each other: hgrn2 (corpus pile and tokenizer gpt2); "
        "llama, tnl (corpus c4 and tokenizer llama3)"
    )
    path, saved = tmp_path / "runs.csv", tmp_path / "fit.json"
    table.to_csv(path, index=False)
    arguments = [path, "--approach", "parametric", "--replicates", "40", "--save", saved]
    assert why in " ".join(fit(*arguments).split())
    computed = json.loads(saved.read_text())
    assert len(computed["results"]) == 3
    alike, apart = computed["comparisons"]
    assert alike["at"] == "corpus c4 and tokenizer llama3" and alike["reason"] == ""
    (view,) = alike["views"].values()
    assert {(comparison["reference"], comparison["other"]) for comparison in view["compute"]} == {("tnl", "llama")}
    assert apart["reason"] == why and apart["views"] == {}
    table[table["arch"] != "tnl"].to_csv(path, index=False)
    text = fit(*arguments)
    assert "not compared with each other" in text and "compute for the same loss" not in text and "ahead" not in text
    assert "compute for the same loss" in fit(*arguments, "--columns", "corpus=,tokenizer=")


def test_points_ends_are_what_every_approach_takes(curves):
    """IsoFLOP read curves all the same, and the envelope too."""
    arguments = [curves, "--columns", "run=name,arch=", "--where", "架构=tnl", "--replicates", "40"]
    refused("isoflop: .* budgets have a minimum", *arguments, "--points", "ends", "--approach", "isoflop")
    refused("envelope: needs curves, .*; --points ends leaves one row a run", *arguments, "--points", "ends")
    refused(
        "--points ends: the approach envelope needs curves", *arguments, "--points", "ends", *("--approach", "envelope")
    )
    computed = json.loads(fit(*arguments, "--json"))
    assert {result["approach"] for result in computed["results"]} == {"envelope", "isoflop"}


@pytest.mark.parametrize(
    ("of", "option"),
    [
        *(("study", option) for option in ("--replicates", "--level", "--at", "--approach", "--unit", "--columns")),
        *(("runs", option) for option in ("--force", "--columns", "--group", "--unit")),
        *(("table", option) for option in ("--set", "--out", "--force", "--plugin", "--unit")),
    ],
)
def test_an_option_that_means_nothing_is_none(of, option):
    refused(f"No such option: {option}", "x", option, of=of)


def test_points_of_a_study_are_one_of_two():
    refused("--points: 'end' .*did you mean 'ends'", "four-architectures", "--points", "end", of="runs")


def test_a_name_outside_of_utf_8_is_read_drawn_and_refused(tmp_path):
    name = os.fsencode(profiles(tmp_path / "profiles.csv")).replace(b"profiles.csv", b"\xff\xfe.csv")
    os.rename(tmp_path / "profiles.csv", name)
    command = [sys.executable, "-m", "scaling", "fit", "table", name, "--approach", "isoflop", "--replicates", "40"]
    result = subprocess.run([*command, "--plot", tmp_path / "a.html"], capture_output=True, check=False)
    assert result.returncode == 0 and b"\\udcff\\udcfe.csv" in result.stdout and (tmp_path / "a.html").exists()
    result = subprocess.run([*command, "--where", "损失<0"], capture_output=True, check=False)
    assert result.returncode == 2 and result.stdout == b"" and result.stderr.count(b"\n") == 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_healthy_tables_warn_of_nothing(curves, tmp_path):
    fit(curves, "--columns", "run=name,arch=架构", "--replicates", "40")
    for noise in (0.0, 0.002):
        fit(profiles(tmp_path / "profiles.csv", noise), "--replicates", "40", "--plot", tmp_path / "a.html")


def profiles(path, noise=0.002):
    """Seven sizes at each of five computes on a known surface, beside an index and Chinese names."""
    rng, rows = np.random.default_rng(1), [",参数量,计算量,损失"]
    for c in np.geomspace(1e18, 1e22, 5):
        centre = (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62) * (c / 6) ** (0.28 / 0.62)
        for n in centre * np.geomspace(1 / 4, 4, 7):
            loss = (1.69 + 406.4 / n**0.34 + 410.7 / (c / 6 / n) ** 0.28) * np.exp(noise * rng.standard_normal())
            rows.append(f"{len(rows)},{float(n)!r},{float(c)!r},{float(loss)!r}")
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_all_approaches_on_profiles_of_equal_compute(tmp_path):
    """Hoffmann et al.'s surface: a = 0.28 / 0.62."""
    path = profiles(tmp_path / "profiles.csv")
    computed = json.loads(fit(path, "--at", "1e20", "--replicates", "100", "--json"))
    assert [result["approach"] for result in computed["results"]] == ["isoflop", "parametric"]
    assert computed["input"]["columns"] == {"n_params": "参数量", "flops": "计算量", "loss": "损失"}
    for result in computed["results"]:
        a = Fit.from_dict(result).a
        assert a.value == pytest.approx(0.28 / 0.62, abs=0.03) and a.low < 0.28 / 0.62 < a.high
    akima = json.loads(fit(path, "--approach", "isoflop", "--minimum", "akima", "--replicates", "40", "--json"))
    assert akima["results"][0]["isoflop"]["minimum"] == "akima"
    assert all(result["verdict"]["claims"][0]["reach"] == 1 for result in computed["results"])
    assert [failure["approach"] for failure in computed["not_fitted"]] == ["envelope"]
    assert computed["not_fitted"][0]["reason"].startswith("needs curves")
    text = fit(path, "--replicates", "40", "--details")
    assert "random effects" in text and "x 10" in text  # ten times the largest compute
    assert text.count("verdict: believe up to") == 2


def cells(text, approach):
    """The two rows of an approach in the first table."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(approach + " "))
    return lines[at], lines[at + 1]


def test_the_first_screen_has_a_table_of_all_approaches_and_why_they_are_believed(tmp_path):
    path, saved = profiles(tmp_path / "profiles.csv"), tmp_path / "fit.json"
    text = fit(path, "--replicates", "40", "--save", saved)
    isoflop, parametric = map(Fit.from_dict, json.loads(saved.read_text())["results"])
    heads = next(line for line in text.splitlines() if line.startswith("approach"))
    assert heads.split() == ["approach", "a", "N_opt", "D_opt", "L_opt", "verdict"]
    assert "optimum at C = 1e22 FLOP (6nd), the largest of the points" in text
    assert "optimum at C = 1e23" not in text
    for result in (isoflop, parametric):
        value, under = cells(text, result.approach)
        (low, high), optimum = result.a.interval, result.optima[0]
        assert f"{result.a.value:.3f}" in value and f"{low:.3f}–{high:.3f}" in under
        assert count(optimum.n_params.value) in value and count(optimum.n_tokens.value) in value
        assert "–".join(map(count, optimum.n_params.interval)) in under and result.verdict.believe in value
        assert f"{result.approach}: {result.verdict.believe}: at 1e22 FLOP: rehearsed at " in text
        assert all(why in text for why in reasons_of(result.verdict)) and "; at 1e23 FLOP: " in text
    assert "envelope: not fitted: needs curves" in text
    assert len(text[text.index("optimum at") :].splitlines()) <= 15
    whole = fit(path, "--replicates", "40", "--details")
    assert "isoflop 35 of 35 points of 35 runs (5 budgets with a minimum)" in whole and "L in the table's unit" in whole


def test_a_budget_far_beyond_the_range_is_flagged_in_the_table_and_in_the_verdict(tmp_path):
    path = profiles(tmp_path / "profiles.csv")
    text = fit(path, "--replicates", "40", "--at", "1e23,1e26", "--details")
    near, far = text.split("optimum at C = 1e26 FLOP (6nd), 10k times the largest of the points")
    for approach in ("isoflop", "parametric"):
        assert "beyond range" in cells(near, approach)[1] and "(" not in cells(near, approach)[0]
        value, under = cells(far, approach)
        assert value.count("(") >= 2 and "too far: C x 10k beyond" in under and under.count("–") == 1  # that of a
    assert "nothing rehearses a reach of 10,000" in far and "(in brackets)" in far


def test_groups_that_no_approach_can_fit_are_named(tmp_path):
    rows = ["arch,N,D,loss"]
    for name in ("whole", *(f"one-{i}" for i in range(12))):
        for n in np.geomspace(1e7, 1e9, 3 if name == "whole" else 1):
            rows += [f"{name},{n:.0f},{d:.0f},{1.7 + 400 / n**0.34 + 410 / d**0.28:.6f}" for d in (1e9, 4e9, 2e10)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows))
    text = fit(path, "--replicates", "40")
    lines = text.splitlines()
    assert "optimum at C = " in text and "one-0: not fitted: parametric: L = " in text
    assert "9 more groups are not fitted (--json has them all)" in lines and "one-3:" not in text
    assert next(line for line in lines if line.startswith("groups: ")).endswith(" and 3 more")


def test_groups_that_are_not_fitted_do_not_say_where_the_others_are_shown(tmp_path):
    rows = ["arch,N,D,loss"]
    for name, scale in (("far", 2.0), ("near", 1.0)):
        for n in np.geomspace(1e7, scale * 1e9, 4):
            rows += [f"{name},{n:.0f},{d:.0f},{1.7 + 400 / n**0.34 + 410 / d**0.28:.6f}" for d in (1e9, 4e9, 2e10)]
    rows += [f"{few},1e6,{d},{loss}" for few in ("few", "less") for d, loss in ((1e9, 4.5), (4e9, 4.3))]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows))
    quick = ("--approach", "parametric", "--replicates", "40")
    text = fit(path, *quick)
    assert "optimum at C = 1.2e20 FLOP (6nd), the largest that all fitted groups reached\n" in text
    assert "few: not fitted" in text and "less: not fitted" in text
    results = json.loads(fit(path, *quick, "--json"))
    assert [law["group"] for law in results["results"]] == ["far", "near"], "in the table's order"
    assert [failure["group"] for failure in results["not_fitted"]] == ["few", "less"]
    assert [[round(at["flops"] / 1e18) for at in law["optima"]] for law in results["results"]] == [[120, 1200]] * 2
    alone = fit(path, *quick, "--where", "arch!=near")
    assert "far: optimum at C = 2.4e20 FLOP (6nd), the largest of the points\n" in alone


def table_of(tmp_path, loss, name="runs.csv"):
    """Six sizes to four amounts of tokens each, with `loss` of N, D and the number of the row."""
    places = [(n, k * n) for n in np.geomspace(1e7, 1e9, 6) for k in np.geomspace(5, 200, 4)]
    path = tmp_path / name
    rows = [f"{n:.8g},{d:.8g},{float(loss(n, d, i))!r}" for i, (n, d) in enumerate(places)]
    path.write_text("\n".join(["params,tokens,loss", *rows]) + "\n")
    return path


def chinchilla(n, d):
    return 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28


def larger_is_worse(n, d, i):
    return 1.7 + 20 * d**-0.1 + (n / 1e9) ** 0.3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("objective", "loss"),
    [
        ("huber", larger_is_worse),
        ("least_squares", larger_is_worse),
        ("least_squares", lambda n, d, i: 1.7 + 20 * n**-0.1 + (d / 1e10) ** 0.3),  # longer is worse
        ("least_squares", lambda n, d, i: chinchilla(n, d) / (100 if i == 3 else 1)),  # one loss was written wrongly
    ],
)
def test_where_one_term_is_missing_no_size_is_optimal_and_the_fit_says_so(tmp_path, loss, objective):
    """The best size is then 0, infinite or nan; 0 ended the command by an error."""
    path = table_of(tmp_path, loss)
    computed = json.loads(
        fit(path, "--approach", "parametric", "--objective", objective, "--replicates", "40", "--json")
    )
    (stored,) = computed["results"]
    assert stored["verdict"]["believe"] == "do not believe"
    result = Fit.from_dict(stored)
    for size in (size for at in result.optima for size in (at.n_params.value, at.n_tokens.value)):
        assert size is None or size > 0
    if loss is larger_is_worse:
        assert result.optima[0].n_params.value is None and "N_opt" not in result.parameters
        assert "not known" in fit(path, "--approach", "parametric", "--objective", objective, "--replicates", "40")


def test_losses_that_no_surface_describes_are_one_line(tmp_path):
    for times, message in (
        (1e12, r"losses run from 2.\d+ \(row 24\) to .*e\+12 \(row 4\), which no surface describes: leave out what"),
        (1e-9, r"losses run from .*e-09 \(row 4\) to 6.\d+ \(row 1\)"),
        (1e250, r"runs.csv: loss lies outside of 1e-100 to 1e\+100 in row 4"),
        (-1.0, r"runs.csv: loss is not a positive, finite number in row 4"),
    ):
        path = table_of(tmp_path, lambda n, d, i, times=times: chinchilla(n, d) * (times if i == 3 else 1))
        refused(message, path)
    refused(r"all \d+ losses are 3: is this the column of losses\?", table_of(tmp_path, lambda n, d, i: 3.0))


def test_the_time_left_weighs_steps_by_what_they_cost(monkeypatch, capsys):
    """Parametric fits count for 1, checks for 0.7, all others for 0.15; what comes before the first replicate for none:
    it would make the time left too long at first."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("scaling.cli.passing.PLAIN_EVERY_S", 5.0)
    with Passing(sys.stderr) as passing:
        progress = Progress(["parametric", "isoflop", "checks"], passing)
        for clock[0], step, share in (
            (1.0, "parametric", 0.0),
            (6.0, "parametric", 0.31),
            (7.0, "parametric", 0.5),
            (20.0, "isoflop", 0.0),
            (21.0, "checks", 0.0),
            (26.2, "checks", 0.225),
        ):
            progress("tnl", step, share)
    assert capsys.readouterr().err.splitlines() == [
        "fit: tnl: parametric (step 1 of 3)",
        "fit: tnl: isoflop (step 2 of 3), about 17 s left",
        "fit: tnl: checks (step 3 of 3), about 11 s left",
    ]


def test_a_page_is_drawn_and_changes_nothing_else(tmp_path):
    path, page = profiles(tmp_path / "profiles.csv"), tmp_path / "page.html"
    arguments, folder = [path, "--replicates", "40", "--json"], tmp_path / "a paper 图"
    plain, drawn = json.loads(fit(*arguments)), json.loads(fit(*arguments, "--plot", page, "--figures", folder))
    for result, other in zip(plain["results"], drawn["results"], strict=True):
        curve = other["curve"]
        assert result == other | {"curve": []} and len(curve) == 33 and curve[0]["flops"] == pytest.approx(1e18)
    html = page.read_text(encoding="utf-8")
    for computed in ("isoflop", "the largest of the points", "35 of 35 rows", "believe"):
        assert computed in html, computed
    written = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    names = [f"{width}/{name}.{form}" for width in WIDTHS for name in ("optima", "profiles") for form in ("pdf", "svg")]
    assert written == {"tables/optima.tex", *names}
    assert "1e22 & isoflop & " in (folder / "tables" / "optima.tex").read_text()


def test_figures_of_groups_have_names_of_files(tmp_path):
    rows = ["arch,N,D,loss"]
    for arch in ("a/b", "我的 模型", "a b"):
        for n in np.geomspace(1e7, 1e9, 4):
            rows += [f"{arch},{n:.0f},{d:.0f},{1.7 + 400 / n**0.34 + 410 / d**0.28:.6f}" for d in (1e9, 4e9, 2e10)]
    path, folder = tmp_path / "runs.csv", tmp_path / "figures"
    path.write_text("\n".join(rows), encoding="utf-8")
    arguments = [path, "--replicates", "40", "--approach", "parametric", "--figures", folder]
    fit(*arguments, "--dry-run")
    assert not folder.exists()
    fit(*arguments)
    names = [f"optima-{end}.tex" for end in ("1-a_b", "2-我的_模型", "3-a_b")]
    assert sorted(file.name for file in (folder / "tables").iterdir()) == names
    path.with_name("file").write_text("")
    refused("--figures .*file: cannot be written", *arguments[:-1], path.with_name("file"))


def test_what_a_form_takes_for_granted_is_shown():
    n, d = np.repeat(np.geomspace(1e7, 1e9, 5), 3), np.tile(np.geomspace(2e8, 2e10, 3), 5)
    loss = (1.7 + 400 / n**0.3 + 400 / d**0.3) * np.exp(0.003 * np.random.default_rng(0).standard_normal(15))
    points = Points(n, d, 6 * n * d, loss, unique_tokens=np.minimum(d, 1e9))
    tied, repeated = (
        result_text(parametric_result(fit_parametric(points, form=form, objective="least_squares", n_replicates=40)))
        for form in ("over_training", "data_constrained")
    )
    assert "a is not identified: assumed: alpha = beta" in tied and "alpha = beta: p = " in tied
    assert "assumes: N_opt, D_opt and L_opt are of text that is read once" in repeated


def test_a_loss_that_is_likely_a_mistake_is_named_on_the_first_screen(tmp_path):
    n, d = np.repeat(np.geomspace(3e7, 3e9, 5), 5), np.tile(np.geomspace(1e9, 6e10, 5), 5)
    loss = (1.8 + 406 / n**0.34 + 411 / d**0.28) * np.exp(0.003 * np.random.default_rng(0).standard_normal(25))
    texts = []
    for times in (1, 3):
        path = tmp_path / f"{times}.csv"
        loss[7] *= times
        path.write_text("\n".join(["N,D,loss", *(f"{a},{b},{c}" for a, b, c in zip(n, d, loss, strict=True))]))
        texts.append(" ".join(fit(path, "--approach", "parametric", "--replicates", "40").split()))
    assert "far off the surface" not in texts[0]
    assert f"far off the surface: 1 point, as row 8 of loss {loss[7]:.4g}, +" in texts[1]


def test_a_dry_run_tells_what_would_be_fitted(curves):
    text = fit(curves, "--columns", "run=name", "--points", "ends", "--where", "tokens>1e8", "--dry-run")
    computed = (
        "960 rows read, 288 not tokens>1e8, 656 earlier rows of their run left out, 16 kept (last row of each run)"
    )
    assert "would fit: isoflop, parametric\n" in text and computed in text
    assert "not envelope: needs curves, several rows a run; --points ends leaves one row a run" in text
    assert (
        json.loads(fit(curves, "--columns", "run=name", "--points", "ends", "--dry-run", "--json"))["input"]["columns"][
            "n_params"
        ]
        == "Model Size"
    )


def test_what_cannot_be_fitted_is_told_and_stops_nothing_else(curves, capsys):
    lines = curves.read_text(encoding="utf-8-sig").splitlines()
    short = curves.with_name("short.csv")
    short.write_text("\n".join([*lines, "gla-1,gla,1000000,1000000,5.0"]) + "\n", encoding="utf-8")
    arguments = ["--approach", "envelope", "--columns", "run=name,arch=架构", "--group", "arch", "--replicates", "40"]
    result = CliRunner().invoke(app, ["fit", "table", str(short), *arguments, "--json"])
    computed = json.loads(result.stdout)
    assert len(computed["results"]) == 2 and computed["not_fitted"][0]["group"] == "gla"
    assert "not fitted: gla: envelope: " in result.stderr


def test_the_envelope_by_its_hull(curves):
    arguments = ("--approach", "envelope", "--columns", "run=name", "--json", "--optimum")
    hull, crossings = (json.loads(fit(curves, *arguments, optimum))["results"][0] for optimum in ("hull", "crossings"))
    assert "on the convex hull" in hull["objective"]["name"]
    assert hull["laws"][0]["exponent"]["value"] != crossings["laws"][0]["exponent"]["value"]


def test_mistakes_are_told_in_one_line(curves, tmp_path):
    other = tmp_path / "a.txt"
    other.write_text("x")
    nats = tmp_path / "nats.csv"
    nats.write_text("N,D,loss [nats]\n1,2,3\n")
    for message, *arguments in (
        ("a.txt: is no table .*; a study is fitted by `scaling fit study`", other),
        ("--approach: 'envelop' .*did you mean 'envelope'", curves, "--approach", "envelop"),
        ("--at: 'x' is not a number", curves, "--at", "x"),
        ("--at: '-1' is negative", curves, "--at=-1"),
        ("--form: 'plane' .*did you mean 'plain'", curves, "--approach", "parametric", "--form", "plane"),
        ("--objective: 'hubert'", curves, "--approach", "parametric", "--objective", "hubert"),
        ("error: --huber-delta: 0 is no number above 0, as 1e-3$|--huber-delta: 0 is", curves, "--huber-delta", "0"),
        ("--near-sizes: belongs to the approach envelope", curves, "--approach", "parametric", "--near-sizes", "1.2"),
        ("--near-sizes: 0.5 is no factor of 1 or more", curves, "--near-sizes", "0.5"),
        ("--optimum: 'hul' .*did you mean 'hull'", curves, "--optimum", "hul"),
        ("--predict: belongs to the approach parametric", curves, "--approach", "envelope", "--predict", "1e9,1e10"),
        ("--predict: '1e9' is not N and D", curves, "--predict", "1e9"),
        ("--replicates: 30 are too few for intervals of level 0.95: give 40", curves, "--replicates", "30"),
        ("'--replicates': Input should be less than or equal to 1000000", curves, "--replicates", "1000001"),
        ("--level: 95 is no level", curves, "--level", "95"),
        ("--save .*: is a directory", curves, "--save", tmp_path),
        ("--plot: .*: is a page: name it .html", curves, "--plot", tmp_path / "a.png"),
        ("--plot .*none/a.html: there is no directory", curves, "--plot", tmp_path / "none" / "a.html"),
        ("--details: is text, and --json has everything", curves, "--details", "--json"),
        ("--loss-unit bits: the column 'loss .nats.' says nats", nats, "--loss-unit", "bits"),
        ("--save .*none/a.json: there is no directory", curves, "--save", tmp_path / "none" / "a.json"),
        ("--group: there is no column 'archs'", curves, "--group", "archs"),
        ("look like curves, not like runs: N = 1M has 60 rows", curves, "--approach", "envelope"),
        ("no row is left", curves, "--where", "loss<0"),
        ("holds laws, not runs: give the table", ROOT / "flops/data/table3.csv"),
    ):
        refused(message, *arguments)
    for message, of, *arguments in (
        ("a.txt: is no study file", "runs", "four-architectures", other),
        ("curves.csv: is a table, and no study: `scaling fit table", "runs", "four-architectures", curves),
        ("--details: is text, and --json has everything", "study", "four-architectures", "--details", "--json"),
        ("Missing argument 'TABLE'", "table"),
        ("Missing argument 'STUDY..'", "runs"),
    ):
        refused(message, *arguments, of=of)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_fitted(curves, tmp_path, monkeypatch):
    """By the name that was typed, and without a file left behind; what is no file of the user's is never replaced."""
    monkeypatch.setattr("scaling.cli.fit.fit_points", lambda *_: pytest.fail("it goes on to fit"))
    pipe, loop, below, bare = (tmp_path / name for name in ("pipe", "loop", "curves.csv/x.json", "bare.csv"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    (tmp_path / "link").symlink_to(pipe)
    bare.write_text("N,D,loss\n1e7,1e9,3\n")
    before = sorted(tmp_path.iterdir())
    for message, *arguments in (
        (f"--save {pipe}: is no regular file", "--save", pipe),
        (f"--save {tmp_path}/link: is no regular file", "--save", tmp_path / "link"),
        (f"--save {loop}: is a link to itself", "--save", loop),
        (f"--save {below}: there is no directory", "--save", below),
        ("--save /proc/x.json: cannot be written", "--save", "/proc/x.json"),
        ("--plot /proc/x.html: cannot be written", "--plot", "/proc/x.html"),
        (f"--save {tmp_path}/n+: cannot be written .File name too long", "--save", tmp_path / ("n" * 250)),
        (
            f"--plot {tmp_path}/a.html: is the file of --save",
            "--save",
            tmp_path / "a.html",
            "--plot",
            tmp_path / "a.html",
        ),
    ):
        refused(message, curves, *arguments)
    refused("bare.csv: is what is fitted, and would be replaced", bare, "--save", tmp_path / "." / "bare.csv")
    refused("--save /proc/x: cannot be written", curves, "--save", "/proc/x")
    assert sorted(tmp_path.iterdir()) == before and pipe.is_fifo()


def test_a_link_stays_and_what_it_leads_to_is_written(curves, tmp_path):
    folder, link = tmp_path / "far", tmp_path / "link.json"
    folder.mkdir()
    link.symlink_to(folder / "found.json")
    for _ in range(2):
        computed = json.loads(fit(curves, *QUICK, "--save", link, "--json"))
        assert link.is_symlink() and json.loads((folder / "found.json").read_text()) == computed
    assert [path.name for path in folder.iterdir()] == ["found.json"]


def test_a_disk_that_fails_after_the_fit_is_one_line(curves, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "/a/temporary/name.tmp")

    monkeypatch.setattr("data.files.os.replace", full)
    refused(
        f"--save {tmp_path}/a: cannot be written .No space left on device.; name",
        *(curves, *QUICK, "--save", tmp_path / "a"),
    )


def test_a_mistake_is_exit_code_2_and_writes_nothing(curves, tmp_path):
    result = in_this_process(main, "fit", "table", curves, "--where", "loss<0", "--save", tmp_path / "f")
    assert result.returncode == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"error: {curves}: no row is left") and not (tmp_path / "f").exists()


def test_a_line_through_a_bent_law_of_the_loss_predicts_no_loss(tmp_path):
    """Points of L = E + A / N^alpha + B / D^beta: in the table, and among the parameters."""
    rows = ["run,n_params,n_tokens,loss"]
    for n in np.geomspace(3e7, 3e9, 5):
        for d in np.geomspace(1e9, 6e10, 20):
            rows.append(f"r{n:.0f},{n},{d},{1.8 + 406.4 / n**0.34 + 410.7 / d**0.28}")
    (tmp_path / "curves.csv").write_text("\n".join(rows))
    text = fit(tmp_path / "curves.csv", "--approach", "envelope", "--points", "curves", "--details")
    computed = [line.split() for line in text.splitlines() if line.startswith("L_opt ")]
    assert [line[1:3] for line in computed] == [["not", "known"]]
    assert "L_exponent" in text and text.count("not known") >= 2


def test_of_groups_that_reach_less_the_table_says_what_its_compute_is_and_losses_name_their_group(tmp_path):
    rows = ["arch,N,D,loss"]
    for arch, longest in (("one", 2e10), ("other", 8e10)):
        for n in np.geomspace(1e7, 1e9, 5):
            rows += [f"{arch},{n:.0f},{d:.0f},{1.7 + 400 / n**0.34 + 410 / d**0.28:.6f}" for d in (1e9, 4e9, longest)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows))
    arguments = [path, "--replicates", "40", "--approach", "parametric"]
    text = fit(*arguments, "--predict", "1e9,1e10")
    assert "FLOP (6nd), the largest that all fitted groups reached\n" in text
    assert all(f"\n{arch}: parametric: " in text for arch in ("one", "other")), "why each is believed or not"
    assert "one: parametric: predicted loss" in text and "other: parametric: predicted loss" in text
    assert "4 times the largest that all fitted groups reached" in fit(*arguments, "--at", "4.8e20")


def test_believed_laws_that_exclude_each_other_say_so(tmp_path):
    c = np.repeat(1e18 * 2.0 ** np.arange(9), 9)
    n = np.sqrt(c / 120) * np.tile(np.geomspace(0.25, 4, 9), 9)
    bowl = 0.0125 * np.log(n * n * 120 / c) ** 2 + 3e-4 * np.random.default_rng(0).standard_normal(len(c))
    loss = (1.7 + 3 * (c / 1e18) ** -0.15) * np.exp(bowl)  # no sum of powers of N and D
    path = tmp_path / "runs.csv"
    rows = [f"{a:.6g},{b:.6g},{v:.8f}" for a, b, v in zip(c, n, loss, strict=True)]
    path.write_text("\n".join(["C,N,loss", *rows]))
    text = fit(path, "--replicates", "40")
    assert text.count("have nothing in common") == 1 and "isoflop and parametric: note: at 2.56e20 FLOP" in text
