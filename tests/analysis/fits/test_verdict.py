"""What a study says: the best architecture at a common compute, and that chance alone makes no verdict."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.fits.fit import L_OPT, QUANTITIES, EnvelopePoints, Estimate, Fit, Law
from analysis.fits.noise import SeedNoise
from analysis.fits.pairwise import UNDECIDED, UNKNOWN, WORSE
from analysis.fits.seeds import SizeCurve
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import LossOf, LowestLoss, StudyFits
from analysis.fits.verdict import judge_architectures, seeds_that_halve
from analysis.report.comparison import losses_table, study_lines, verdict_notes
from analysis.report.laws import law_cell, law_notes, law_rows
from analysis.runs import load_tables
from scaling.cli.show import show_laws, show_summary

from .built import envelopes_of, fit_of, study_of
from .synthetic import SIZES, power_world, write_run

BUDGETS = {size: int(min(6e6, 7e12 / 6 / n)) for size, n in SIZES.items()}
NAMES = ("llama", "tnl", "hgrn2", "cosformer2")
CURVES = (  # the larger size is the better one throughout
    ("14k", 14_000, (np.log([1e9, 1e12]), np.array([1.1, 1.0]))),
    ("55k", 55_000, (np.log([1e9, 1e12]), np.array([1.0, 0.9]))),
)


def worse(by: float) -> Any:
    return lambda n, tokens: power_world(n, tokens) * math.exp(by)


def drawn(folder: Path, shifts: dict[str, float], seeds: int = 3) -> StudyFits:
    """Fits of a study whose architectures lie `shifts` of log loss above the first; seeds of 55k differ by 0.2%."""
    for arch, by in shifts.items():
        for size, tokens in BUDGETS.items():
            for seed in range(seeds if size == "55k" else 1):
                write_run(folder, arch, size, tokens, worse(by), seed=seed, shift=0.002 * (seed - 1) * (seeds > 1))
    settings = FitSettings(smoothing_tokens=20_000, n_replicates=200, range=dict.fromkeys(shifts, (5e10, 5e12)))
    return envelopes_of(load_tables(folder), settings)


def test_the_best_at_the_largest_common_compute_is_told_apart_from_what_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = drawn(tmp_path, {"tnl": 0.03, "hgrn2": 0.0, "llama": 0.004})
    lowest = fits.verdicts[0]
    assert (lowest.best, list(lowest.archs)) == ("hgrn2", ["hgrn2", "llama", "tnl"])
    ends = [fits.envelope(group.name).envelope.points.c[-1] for group in fits.groups]
    assert lowest.c == min(ends) == pytest.approx(5e12, rel=0.2)
    llama, tnl = (lowest.against(arch, "hgrn2") for arch in ("llama", "tnl"))
    assert (llama.verdict, tnl.verdict) == (UNDECIDED, WORSE) and lowest.against("llama", "tnl") is None
    assert math.log(tnl.ratio.value) == pytest.approx(0.03, abs=1e-3)
    best = lowest.archs["hgrn2"]
    assert best.loss.low < best.loss.value < best.loss.high
    first = best.predictions[0]
    assert first.flops == lowest.c and first.loss.value == pytest.approx(best.loss.value, rel=0.02)

    lines = "\n".join(study_lines(fits))
    assert lines.startswith("HGRN2 has the lowest loss at C = ") and "that all 3 fitted architectures reached" in lines
    assert "LLaMA is not distinguishable from HGRN2: the difference is within seed noise." in lines
    assert "TNL is worse than HGRN2 by more than seed noise." in lines and "may be the size" not in lines
    rows = losses_table(fits).rows
    assert [row["verdict"] for row in rows] == ["", UNDECIDED, WORSE] and "+3.0% [" in rows[2]["above the lowest"]
    monkeypatch.setattr("arch.tables.print_width", lambda: 100)
    printed = show_laws(fits)
    assert max(map(len, printed.splitlines())) <= 100 and lines.splitlines()[1] in printed
    short = show_summary(fits, ["report: x.html"])
    assert len(short.splitlines()) <= 15 and short.split("  ")[0] in printed and short.endswith("x.html")
    assert "TNL is worse than HGRN2" in short and "+3.0% [" in short and "R^2" not in short


def test_a_loss_at_another_size_is_not_told_as_the_architectures(tmp_path: Path) -> None:
    """Two architectures of one law; TNL's runs have a sixtieth of the tokens, so only its largest is there."""
    for arch, less in (("tnl", 60), ("hgrn2", 1)):
        for size, tokens in BUDGETS.items():
            for seed in range(3 if size == "55k" else 1):
                shift = 0.002 * (seed - 1) * (size == "55k")
                write_run(tmp_path, arch, size, tokens // less, seed=seed, shift=shift, warmup_tokens=4096)
    fits = envelopes_of(load_tables(tmp_path), FitSettings(smoothing_tokens=5_000, n_replicates=100))
    lines = study_lines(fits)
    assert "TNL is worse than HGRN2 by more than seed noise." in lines
    caveat = next(line for line in lines if line.startswith("The difference of TNL may be of its size: "))
    assert "is of 221k after 81.9k tokens, HGRN2's of 25k after 7" in caveat
    assert caveat.endswith("and only the size 221k was trained that far, so the best size there is not known.")


def test_without_seeds_nothing_is_told_apart(tmp_path: Path) -> None:
    fits = drawn(tmp_path, {"tnl": 0.05, "hgrn2": 0.0}, seeds=1)
    assert fits.verdicts[0].against("tnl", "hgrn2").verdict == UNKNOWN
    assert fits.verdicts[0].archs["tnl"].loss.interval is None
    lines = study_lines(fits)
    assert lines[0].startswith("No architecture is best at C = ") and "may be chance" in lines[2]
    assert losses_table(fits).rows[1]["verdict"] == f"{UNKNOWN}: no size has two seeds"


def test_what_is_not_identified_stays_so_with_its_reason(tmp_path: Path) -> None:
    for size in ("14k", "25k", "55k"):
        write_run(tmp_path, "tnl", size, BUDGETS[size])
    write_run(tmp_path, "llama", "14k", BUDGETS["14k"], state="failed", reason="loss is nan at step 12")
    fits = envelopes_of(load_tables(tmp_path), FitSettings(smoothing_tokens=20_000))
    assert any(line.startswith("LLaMA is not compared: no usable run") for line in verdict_notes(fits))
    lines = study_lines(fits)
    assert lines[0].startswith("TNL alone was fitted. At C = ") and lines[0].endswith(" nats/byte.")
    assert law_rows(fits)[-1]["a (N_opt exponent)"] == "not identified"
    result = "TNL: only the size 55k was trained that far, so the best size there is not known."
    assert result in verdict_notes(fits)


def test_what_is_said_of_the_best_size_depends_on_who_was_trained_as_far() -> None:
    small, large = (SizeCurve(size, n, 6.0 * n, 0.0, 1, *line) for size, n, line in CURVES)
    fit = reaching(1e9, 1e11)
    result = {}
    for name, curves in {"both": [small, large], "one": [large]}.items():
        result[name] = notes_of(judge_architectures({"tnl": curves}, {"tnl": fit}, {"tnl": None}, 0.95))
    early = replace(small, log_c=small.log_c[:1], log_loss=small.log_loss[:1])
    result["alone"] = notes_of(judge_architectures({"tnl": [early, large]}, {"tnl": fit}, {"tnl": None}, 0.95))
    assert "TNL: the best size there is the largest one trained; a larger one may be better." in result["both"]
    assert "TNL: only one size was trained, so the best size is not known." in result["one"]
    assert "TNL: only the size 55k was trained that far, so the best size there is not known." in result["alone"]
    assert not any("may be better" in line for line in [*result["one"], *result["alone"]])


def reaching(*computes: float, censored: tuple[str | None, ...] = (None, None)) -> Fit:
    """An envelope with points at these computes and laws of nothing, for what reads losses alone."""
    points = EnvelopePoints(computes, (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), ("25k", "25k"), censored)
    laws = [Law(quantity, reason="too few sizes") for quantity in QUANTITIES]
    fit = fit_of("envelope", laws=laws)
    assert fit.envelope is not None
    return replace(fit, envelope=replace(fit.envelope, points=points))


def notes_of(verdict: LowestLoss) -> list[str]:
    result = verdict_notes(study_of(fit_of("envelope"), verdicts=(verdict,)))
    assert any("ends half a smoothing window before its run" in line for line in result)
    return result


def test_architectures_that_are_not_told_apart_have_no_winner(tmp_path: Path) -> None:
    first, second, *_ = study_lines(drawn(tmp_path, {"tnl": 0.001, "hgrn2": 0.0}))
    assert first.startswith("No architecture is worse than the best by more than seed noise at C = ")
    assert "HGRN2" not in first and second.startswith("The lowest loss measured is that of HGRN2: ")


def test_seeds_that_halve_an_interval() -> None:
    noise = SeedNoise(0.01, 1e9)
    archs = {arch: LossOf(Estimate(1.0), "6k", 6e3, 1e6, n, 1, 0) for arch, n in (("tnl", 2), ("hgrn2", 2))}
    lowest = LowestLoss(0.95, best="tnl", archs=archs)
    assert seeds_that_halve("hgrn2", lowest, noise) == 6, "of a noise that is known: four times as many"
    assert seeds_that_halve("hgrn2", lowest, SeedNoise(0.01, 2)) == 2, "more seeds tell of the noise too"


def test_a_law_that_misses_its_points_predicts_no_loss(tmp_path: Path) -> None:
    """Losses that fall steeply at first, without a stated range and with one that leaves that out."""

    def steep(n_params: float, n_tokens: np.ndarray) -> np.ndarray:
        return power_world(n_params, n_tokens) * (1 + 2 * np.exp(-n_tokens / 1e5))

    for size, tokens in BUDGETS.items():
        for seed in range(3 if size == "55k" else 1):
            write_run(tmp_path, "tnl", size, tokens, steep, seed=seed, shift=0.002 * (seed - 1))
    base = FitSettings(smoothing_tokens=20_000, n_replicates=200)
    fits = envelopes_of(load_tables(tmp_path), base)
    loss = fits.envelope("tnl").law(L_OPT)
    missed = f"the law misses its points by {math.expm1(loss.about_loss.off_line):.1%}"
    for at in fits.verdicts[0].archs["tnl"].predictions:
        assert (at.loss.value, at.loss.reason) == (None, missed)
    assert law_rows(fits)[0]["beta (L at C = 1 FLOP)"].endswith("(no power law)")
    advice = "TNL: the loss falls faster at the start of the range. To leave that part out, set fit.range.tnl"
    assert any(line.startswith(advice) for line in law_notes(fits))
    stated = envelopes_of(load_tables(tmp_path), FitSettings(**base.to_dict() | {"range": {"tnl": (1e11, 5e12)}}))
    assert all(at.loss.value for at in stated.verdicts[0].archs["tnl"].predictions)
    assert not any("falls faster at the start" in line for line in law_notes(stated))


def test_no_compute_that_all_reached(tmp_path: Path) -> None:
    fit, other = reaching(1e9, 1e10), reaching(1e11, 1e12, censored=("inside warm-up", None))
    curve = flat(0.0)
    result = judge_architectures(
        {"tnl": [curve], "llama": [curve]}, {"tnl": fit, "llama": other}, dict.fromkeys(NAMES), 0.95
    )
    assert result.c is None and result.reason.startswith("no compute was reached by all: some end at 1e10 FLOP")
    assert study_lines(study_of(fit_of("envelope"), verdicts=(result,))) == [f"No comparison: {result.reason}."]
    assert judge_architectures({}, {}, {}, 0.95).reason == "no architecture has curves of loss over compute"


def flat(log_loss: float) -> SizeCurve:
    return SizeCurve("25k", 25_000, 150_000.0, 0.0, 1, np.log([1e9, 1e12]), np.array([log_loss, log_loss]))


def test_equal_architectures_are_told_apart_in_five_of_a_hundred_studies_at_most() -> None:
    """Four of one loss, with the noise between seeds measured with 8 degrees of freedom, in 2,000 studies: the
    intervals hold for the best, which was picked by looking."""
    rng = np.random.default_rng(0)
    fit = reaching(1e10, 1e11)
    alarms = 0
    for _ in range(2000):
        noise = SeedNoise(0.01 * math.sqrt(rng.chisquare(8) / 8), 8)
        curves = {arch: [flat(0.01 * rng.standard_normal())] for arch in NAMES}
        result = judge_architectures(curves, dict.fromkeys(NAMES, fit), dict.fromkeys(NAMES, noise), 0.95)
        alarms += any(result.against(arch, result.best).verdict == WORSE for arch in NAMES if arch != result.best)
    assert 0.035 < alarms / 2000 < 0.065


@pytest.mark.parametrize(("lost", "shown"), [(0, "0.50 [0.40, 0.60]"), (99, "0.50 [0.40, 0.60]")])
def test_an_interval_of_few_failures_stands_as_it_is(lost: int, shown: str) -> None:
    law = Law(L_OPT, exponent=Estimate(0.5, 0.4, 0.6), replicates=1000, replicates_lost=lost)
    assert law_cell(law, law.exponent, ".2f") == shown
    law = replace(law, replicates_lost=430)
    assert law_cell(law, law.exponent, ".2f") == "0.50 [0.40, 0.60] (43% of replicates failed)"
    law = replace(law, replicates_lost=620, exponent=Estimate(0.5))
    assert law_cell(law, law.exponent, ".2f") == "0.50 (no interval: 62% of replicates failed)"
