"""Fits of whole studies on disk: exponents of a known world, refusals with their reason, and what a result says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.fits.envelope import CURVED
from analysis.fits.fit import D_OPT, L_OPT, N_OPT
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import UnusedRun, fits_of
from analysis.report.comparison import verdict_notes
from analysis.report.figures import law_of_figure, laws_figure
from analysis.report.laws import law_notes, law_rows
from analysis.report.methods import interval_text
from analysis.report.runs import unused_lines
from analysis.runs import load_tables
from arch.errors import InputError
from data.files import read_json, write_json

from .built import envelopes_of
from .synthetic import BATCH, SIZES, power_world, write_evals, write_run, write_study

RANGE = (5e10, 5e12)
BUDGETS = {size: int(min(6e6, 7e12 / 6 / n)) for size, n in SIZES.items()}


def settings(**changes: object) -> FitSettings:
    fields = {"range": {"llama": RANGE, "tnl": RANGE}, "n_replicates": 200, "smoothing_tokens": 20_000}
    return FitSettings(**(fields | changes))  # type: ignore[arg-type]


def test_recovers_the_exponents_of_a_known_world(tmp_path: Path) -> None:
    """L = (N/N0)^-0.3 + (D/D0)^-0.3: alpha -0.15, a = b = 0.5; a and b from five crossings."""
    runs = write_study(tmp_path, tokens=BUDGETS, seed_noise=0.001)
    fits = envelopes_of(load_tables(tmp_path, runs), settings(), {runs[0]: "abc"})
    for arch in ("llama", "tnl"):
        fit = fits.envelope(arch)
        loss = fit.law(L_OPT)
        assert loss.exponent.value == pytest.approx(-0.15, abs=0.003)
        assert fit.law(N_OPT).exponent.value == pytest.approx(0.5, abs=0.01)
        assert fit.law(N_OPT).exponent.value + fit.law(D_OPT).exponent.value == pytest.approx(1, abs=1e-9)
        assert not loss.curved and not loss.about_loss.curvature.reason
        assert loss.exponent.low < loss.exponent.value < loss.exponent.high
    noise = fits.seed_noise  # two architectures of three seeds, hardly correlated
    assert 3.9 < noise.df <= 4
    assert fits.inputs == {runs[0]: "abc"}
    assert fits_of(json.loads(json.dumps(fits.to_dict(), allow_nan=False))) == fits


def test_a_noisy_architecture_does_not_widen_the_intervals_of_a_quiet_one(tmp_path: Path) -> None:
    for arch, noise in (("llama", 0.0005), ("tnl", 0.02)):
        write_study(tmp_path, (arch,), BUDGETS, noise)
    fits = envelopes_of(load_tables(tmp_path), settings())
    noise = fits.seed_noise
    assert [part.archs for part in noise.parts] == [("llama",), ("tnl",)]
    quiet, noisy = (part.s for part in noise.parts)
    assert 20 * quiet < noise.s < noisy and "each architecture with the noise of those" in interval_text(fits)
    each = f"LLaMA {quiet:.2%} of the loss, 2 degrees of freedom; TNL {noisy:.2%} of the loss, 2 degrees of freedom"
    assert f"Seed noise: {each};" in interval_text(fits) and f"(seed noise: {each})" in verdict_notes(fits)[0]
    at = fits.verdicts[0].archs
    first, second = (at[arch].loss for arch in ("llama", "tnl"))
    assert np.log(first.high / first.low) < 0.1 * np.log(second.high / second.low)
    (worse,) = (row.against_best.ratio for row in at.values() if row.against_best)
    half = np.log(worse.high / worse.low) / 2
    assert half == pytest.approx(4.303 * noisy, rel=0.01)  # Student's t of the noisy one's 2 degrees of freedom
    width = [np.diff(fits.envelope(arch).law(L_OPT).exponent.interval)[0] for arch in ("llama", "tnl")]
    assert width[0] < 0.2 * width[1]


def test_envelope_points_are_the_minima_of_the_curves(tmp_path: Path) -> None:
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, extra_seeds=())
    points = envelopes_of(load_tables(tmp_path, runs), settings()).envelope("tnl").envelope.points
    for c, loss, size, n_tokens in zip(points.c, points.loss, points.size, points.n_tokens, strict=True):
        reach = {s: c / 6 / n for s, n in SIZES.items() if 40_000 < c / 6 / n < BUDGETS[s] - 20_000}
        best = min(reach, key=lambda s: float(power_world(SIZES[s], np.array(reach[s]))))
        assert power_world(SIZES[size], np.array(n_tokens)) == pytest.approx(loss, rel=2e-3)
        assert loss == pytest.approx(float(power_world(SIZES[best], np.array(reach[best]))), rel=2e-3)


def test_cost_that_grows_faster_than_parameters(tmp_path: Path) -> None:
    """fpt ~ N^1.1: a 1.1 + b = 1, so a + b falls short of 1."""
    runs = []
    for size, n in SIZES.items():
        cost = 6 * 50_000 * (n / 50_000) ** 1.1
        runs.append(write_run(tmp_path, "tnl", size, int(min(6e6, 7e12 / cost)), per_token=cost))
    fit = envelopes_of(load_tables(tmp_path, runs), settings()).envelope("tnl")
    assert fit.law(N_OPT).exponent.value * 1.1 + fit.law(D_OPT).exponent.value == pytest.approx(1, abs=1e-9)
    assert fit.law(N_OPT).exponent.value + fit.law(D_OPT).exponent.value < 0.97


def test_fewer_than_three_crossings_are_not_identified(tmp_path: Path) -> None:
    budgets = {size: BUDGETS[size] for size in ("14k", "25k", "55k")} | {"393k": 400_000}
    runs = write_study(tmp_path, archs=("tnl",), tokens=budgets)
    fits = envelopes_of(load_tables(tmp_path, runs), settings())
    crossings = fits.envelope("tnl")
    assert crossings.law(L_OPT).identified
    points = envelopes_of(load_tables(tmp_path, runs), settings(optimum="envelope")).envelope("tnl")
    for fit, reason in (
        (crossings, "2 pairs cross in the range, 3 are needed: 55k and 393k: the smaller size is still ahead by"),
        (points, "2 interior sizes own an uncensored stretch (25k, 55k), 3 are needed"),
    ):
        for law in (fit.law(N_OPT), fit.law(D_OPT)):
            assert law.exponent.value is None and law.coefficient.value is None and law.exponent.interval is None
            assert reason in law.reason
    assert any("a, b not identified: 2 pairs cross" in line for line in law_notes(fits))
    for name in ("a (N_opt exponent)", "b (D_opt exponent)"):
        assert {row[name] for row in law_rows(fits)} == {"not identified"}


def test_one_size_has_no_law_of_the_lowest_loss(tmp_path: Path) -> None:
    """As while the first size of a study trains, and its report is drawn: architectures are compared all the same."""
    runs = write_study(tmp_path, tokens={"25k": BUDGETS["25k"]})
    tables = load_tables(tmp_path, runs)
    fits = envelopes_of(tables, settings())
    law = fits.envelope("tnl").law(L_OPT)
    assert not law.identified and law.exponent.value is None
    assert any("alpha, beta not identified: there is one size" in line for line in law_notes(fits))
    assert law_of_figure(fits, "tnl", L_OPT) == "not identified: there is one size"
    assert laws_figure(fits, tables).data and fits.verdicts[0].best in ("llama", "tnl")


def test_the_papers_way(tmp_path: Path) -> None:
    """fit: {optimum: envelope, censor: off}: lines through all points of the envelope."""
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, seed_noise=0.001)
    tables = load_tables(tmp_path, runs)
    wide = {"range": {"tnl": (2.5e10, 6e12)}}  # with points that the smallest size owns
    ours = envelopes_of(tables, settings(**wide)).envelope("tnl")
    papers = envelopes_of(tables, settings(optimum="envelope", censor=False, **wide))
    other = envelopes_of(tables, settings(optimum="envelope", **wide)).envelope("tnl").law(N_OPT)
    assert other.exponent.value == pytest.approx(0.5, abs=0.06)  # four interior sizes' points
    result = papers.envelope("tnl")
    points = result.envelope.points
    assert "owned by the smallest size" in points.censored  # used, and still told
    assert points.censored == ours.envelope.points.censored
    every = np.polyfit(np.log(points.c), np.log(points.n_params), 1)
    assert result.a.value == pytest.approx(every[0])
    assert result.law(N_OPT).n_points == len(points.c) > other.n_points


def test_a_curve_that_is_no_power_law_is_told_everywhere(tmp_path: Path) -> None:
    def irreducible(n_params: float, n_tokens: np.ndarray) -> np.ndarray:
        return 0.8 + power_world(n_params, n_tokens)

    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, seed_noise=0.001, world=irreducible)
    fits = envelopes_of(load_tables(tmp_path, runs), settings())
    loss = fits.envelope("tnl").law(L_OPT)
    assert loss.about_loss.curvature.shape == "convex" and loss.about_loss.curvature.reason == CURVED
    assert loss.exponent.interval is None and loss.band is None
    assert any(" describe the losses of TNL (" in line for line in law_notes(fits))
    assert all(row["alpha (L exponent)"].endswith(" (no power law)") for row in law_rows(fits))
    assert fits.envelope("tnl").law(N_OPT).exponent.value == pytest.approx(0.5, abs=0.02)


def test_without_a_stated_range_no_point_is_inside_warm_up(tmp_path: Path) -> None:
    """Its first point, at the end of the warm-up, counts."""
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, seed_noise=0.001)
    fits = envelopes_of(load_tables(tmp_path, runs), settings(range={}))
    assert "inside warm-up" not in fits.envelope("tnl").envelope.points.censored


def test_without_replicate_seeds_there_is_no_interval(tmp_path: Path) -> None:
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, extra_seeds=())
    fits = envelopes_of(load_tables(tmp_path, runs), settings())
    assert fits.intervals.method == "none: no replicate seeds"
    loss = fits.envelope("tnl").law(L_OPT)
    assert loss.exponent.interval is None
    assert "[" not in law_rows(fits)[0]["alpha (L exponent)"] and "Fieller" not in interval_text(fits)


def test_runs_that_are_not_done_are_left_out_and_told(tmp_path: Path) -> None:
    runs = write_study(tmp_path, archs=("tnl",), tokens={s: BUDGETS[s] for s in list(SIZES)[:-1]}, extra_seeds=())
    runs.append(write_run(tmp_path, "tnl", "393k", BUDGETS["393k"], state="failed", reason="loss is nan at step 9"))
    only = write_run(tmp_path, "hgrn2", "14k", BUDGETS["14k"], state="failed", reason="loss is nan at step 2")
    fits = envelopes_of(load_tables(tmp_path, [*runs, only, "llama-14k-c256-s0"]), settings())
    group = fits.group("tnl")
    assert [entry.size for entry in group.sizes] == list(SIZES)[:-1]
    assert group.left_out == (UnusedRun(runs[-1], "failed", "loss is nan at step 9"),)
    for arch in ("hgrn2", "llama"):
        assert not fits.group(arch).fitted and fits.envelope(arch) is None
        assert "no usable run" in fits.group(arch).reason
    assert f"1 run left out of the fits, state failed, loss is nan at step 9: {runs[-1]}" in unused_lines(fits)
    assert any(line.startswith("HGRN2: not fitted: no usable run") for line in law_notes(fits))
    assert law_rows(fits)[-1]["alpha (L exponent)"] == "not fitted"


def test_a_range_that_no_curve_reaches_is_told(tmp_path: Path) -> None:
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, extra_seeds=())
    fits = envelopes_of(load_tables(tmp_path, runs), settings(range={"tnl": (1e20, 1e21)}))
    loss = fits.envelope("tnl").law(L_OPT)
    assert not loss.identified
    assert "0 points of the range lie on a curve" in loss.reason
    json.dumps(fits.to_dict(), allow_nan=False)


def test_every_convention_fits_the_same_stretch_of_the_same_runs(tmp_path: Path) -> None:
    """Here paper = 7/6 of exact: exponents agree, ranges differ by 7/6."""
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS)
    tables = load_tables(tmp_path, runs)
    fits, papers = envelopes_of(tables, settings()), envelopes_of(tables, settings(flops="paper", range_flops="exact"))
    exact, paper = fits.envelope("tnl"), papers.envelope("tnl")
    assert np.array(paper.range) == pytest.approx(np.array(exact.range) * 7 / 6)
    assert paper.a.value == pytest.approx(exact.a.value)
    assert fits.conventions["C"] == "exact"
    assert fits.conventions["N"] == "non-embedding parameters"
    assert "20,000 tokens" in fits.conventions["L"]


def without_formula(folder: Path, convention: str) -> list[str]:
    """The runs of a study, those of TNL without their cost by a convention."""
    runs = write_study(folder, tokens=BUDGETS, extra_seeds=())
    for run in (folder / "runs" / run_id / "run.json" for run_id in runs if run_id.startswith("tnl")):
        record = read_json(run)
        del record["cost"]["flops_per_token_train"][convention]
        write_json(run, record)
    return runs


def test_an_architecture_whose_flop_are_unknown_is_left_out_with_the_reason(tmp_path: Path) -> None:
    runs = without_formula(tmp_path, "exact")
    fits = envelopes_of(load_tables(tmp_path, runs), settings())
    assert fits.group("llama").fitted
    assert "fit.flops = exact has no formula for it" in fits.group("tnl").reason
    json.dumps(fits.to_dict(), allow_nan=False)
    by_params = envelopes_of(load_tables(tmp_path, runs), settings(flops="6nd"))
    assert by_params.group("llama").fitted and by_params.group("tnl").fitted


def test_a_convention_that_does_not_cover_an_architecture_is_left_out(tmp_path: Path) -> None:
    runs = without_formula(tmp_path, "paper")
    fits = envelopes_of(load_tables(tmp_path, runs), settings())
    assert sorted(fit.group for fit in fits.fits) == ["llama", "tnl"]
    fits = envelopes_of(load_tables(tmp_path, runs), settings(flops="paper"))
    assert fits.group("llama").fitted
    assert "fit.flops = paper has no formula for it" in fits.group("tnl").reason
    json.dumps(fits.to_dict(), allow_nan=False)


def test_held_out_loss_instead_of_training_loss(tmp_path: Path) -> None:
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, extra_seeds=())
    for run in runs:
        size = run.split("-")[1]
        steps = np.unique(np.geomspace(10, BUDGETS[size] // BATCH, 12).astype(int)).tolist()
        losses = (1.1 * power_world(SIZES[size], np.array(steps) * float(BATCH))).tolist()
        write_evals(tmp_path, run, steps, losses, by_source=lambda loss: {"en": loss / 2, "zh": 1.5 * loss**2})
    table = load_tables(tmp_path, runs)
    fits = envelopes_of(table, settings(loss="validation"))
    law = fits.envelope("tnl").law(L_OPT)
    assert law.exponent.value == pytest.approx(-0.15, abs=0.005)
    of_zh = envelopes_of(table, settings(loss="validation", source="zh"))
    assert of_zh.envelope("tnl").law(L_OPT).exponent.value == pytest.approx(2 * law.exponent.value, rel=0.01)
    assert of_zh.conventions["L"].startswith("held-out loss of zh (")
    assert "source" not in fits.settings.to_dict() and of_zh.settings.to_dict()["source"] == "zh"
    with pytest.raises(InputError, match=r"fit.source: 'zk' \(valid: en, zh; did you mean 'zh'\?\)"):
        envelopes_of(table, settings(loss="validation", source="zk"))
    bare = replace(table, evals=table.evals.drop(columns=["loss:en", "loss:zh"]))
    with pytest.raises(InputError, match=r"fit.source: 'zh': its held-out losses are of no mixture"):
        envelopes_of(bare, settings(loss="validation", source="zh"))
    with pytest.raises(ValueError, match="source needs loss validation"):
        settings(source="zh")
    assert fits.envelope("tnl").envelope.points.loss[0] > 1.05 * float(power_world(25_000, np.array(5e10 / 6 / 25_000)))
    assert "held-out" in fits.conventions["L"]


def test_no_loss_of_warm_up_enters_a_law(tmp_path: Path) -> None:
    """Losses halved in warm-up win the envelope there, are marked, and move neither other points nor L(C)."""

    def spiked(n_params: float, n_tokens: np.ndarray) -> np.ndarray:
        return power_world(n_params, n_tokens) * np.where(n_tokens <= 400_000, 0.5, 1.0)

    result = []
    for name, world in (("plain", power_world), ("spiked", spiked)):
        runs = write_study(tmp_path / name, archs=("tnl",), tokens=BUDGETS, world=world, warmup_tokens=400_000)
        chosen = settings(range={}, smoothing_tokens=100_000)
        result.append(envelopes_of(load_tables(tmp_path / name, runs), chosen).envelope("tnl"))
    plain, spiked_fit = result
    assert plain.range[0] == pytest.approx(6 * 14_000 * 450_000)  # the whole window lies after warm-up
    after = [why != "inside warm-up" for why in spiked_fit.envelope.points.censored]
    assert 10 < sum(after) < len(after)
    losses = [np.array(fit.envelope.points.loss) for fit in result]
    assert losses[1][after] == pytest.approx(losses[0][after], rel=1e-9)
    assert spiked_fit.law(L_OPT).n_points == sum(after)
    assert spiked_fit.law(L_OPT).exponent.value == pytest.approx(-0.15, abs=0.01)


def test_what_counts_as_settled() -> None:
    assert FitSettings(smoothing_tokens=100).settled_after(900) == 950
    assert FitSettings(smoothing_tokens=100, smoothing_fraction=0.5).settled_after(900) == 1200
    assert FitSettings(loss="validation").settled_after(900) == 900


def test_a_done_run_too_short_to_smooth_is_told(tmp_path: Path) -> None:
    runs = write_study(tmp_path, archs=("tnl",), tokens={s: BUDGETS[s] for s in list(SIZES)[:-1]}, extra_seeds=())
    short = [write_run(tmp_path, "tnl", "393k", 16_384, seed=seed) for seed in (0, 1)]
    runs += short
    fits = envelopes_of(load_tables(tmp_path, runs), settings())
    assert fits.group("tnl").n_runs == 5
    why = "without more tokens than fit.smoothing_tokens"
    assert f"2 runs left out of the fits, {why}: {', '.join(short)}" in unused_lines(fits)


def test_training_loss_of_repeated_text_is_refused(tmp_path: Path) -> None:
    """It is fitted while every token is seen once; the held-out loss is the one to fit otherwise."""
    runs = write_study(tmp_path, archs=("tnl",), tokens=BUDGETS, extra_seeds=())
    corpus = {"splits": {"train": {"tokens": 4_000_000}}, "files": {}}
    (tmp_path / "corpus").mkdir()
    write_json((tmp_path / "corpus" / "manifest.json"), corpus)
    tables = load_tables(tmp_path, runs)
    assert tables.runs["epochs"].max() == pytest.approx(1.5, rel=1e-2)
    fits = envelopes_of(tables, settings())
    assert not fits.group("tnl").fitted and fits.fits == ()
    assert any("saw text more than once" in line and "set fit.loss to validation" in line for line in law_notes(fits))
    assert law_rows(fits)[0]["alpha (L exponent)"] == "not fitted"
    for run in runs:
        write_evals(tmp_path, run, [100, 200, 400], [3.0, 2.0, 1.5])
    assert envelopes_of(load_tables(tmp_path, runs), settings(loss="validation")).group("tnl").fitted
    corpus["splits"]["train"]["tokens"] = 6_000_000
    write_json((tmp_path / "corpus" / "manifest.json"), corpus)
    assert envelopes_of(load_tables(tmp_path, runs), settings()).group("tnl").fitted
