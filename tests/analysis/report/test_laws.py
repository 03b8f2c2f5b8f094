"""What the report says of laws: which one leads, how they are fitted, which runs and sizes are left out."""

from dataclasses import replace
from pathlib import Path

from analysis.fits.fit import NOTHING, PASSED, Check, Claim, Estimate, Fit, NotFitted
from analysis.fits.noise import NoisePart, SeedNoise
from analysis.fits.pairwise import COMPUTE, Comparison
from analysis.fits.study_fits import UnusedRun, read_fits
from analysis.report.comparison import study_lines
from analysis.report.laws import (
    approach_reasons,
    approach_rows,
    law_sentences,
    laws_section,
    leading_law,
    sizes_left_out,
)
from analysis.report.methods import methods_section
from analysis.report.runs import unused_lines
from analysis.report.words import noise_text

from ..fits.built import fit_of, group_of, optimum, study_of

FITS = Path(__file__).resolve().parents[3] / "analysis" / "studies" / "2026-second" / "fits.json"


def law(approach: str, reach: float, why: str = "a reason", a: float | None = 0.5) -> Fit:
    n, d = (Estimate(3.2e5, 3e5, 3.5e5), Estimate(4e6)) if a else (NOTHING, NOTHING)
    exponent = NOTHING if a is None else Estimate(a, 0.45, 0.55)
    return fit_of(approach, reach, why, a=exponent, optima=(optimum(1e12, n, d),))


def test_the_law_that_is_believed_most_leads_and_of_those_alike_the_envelope() -> None:
    unknown, surface = law("envelope", 0, "N_opt is not identified: 2 pairs", None), law("parametric", 10)
    result = study_of(unknown, surface)
    assert leading_law(result, "tnl") is surface
    assert law_sentences(result) == [
        "The optimal size of TNL is known up to 10 times the largest compute (parametric law): 320k [300k, 350k] "
        "parameters at 10¹² FLOP, growing as C^0.500 [0.450, 0.550]."
    ]
    first, second = approach_rows(result)
    assert first["a (N_opt exponent)"] == first["N_opt at 10¹² FLOP"] == "not identified"
    assert second["N_opt at 10¹² FLOP"] == "320k [300k, 350k]" and second["D_opt at 10¹² FLOP"] == "4M"
    alike = [law(name, 1) for name in ("isoflop", "parametric", "envelope")]
    assert leading_law(study_of(*alike), "tnl") is alike[2] and leading_law(study_of(*alike[:2]), "tnl") is alike[1]
    assert leading_law(study_of(*alike, better := law("isoflop", 10)), "tnl") is better


def test_where_none_is_believed_the_reasons_stand() -> None:
    failed = (NotFitted("tnl", "isoflop", "three (1; 2)"),)
    result = study_of(law("envelope", 0, "one"), law("parametric", 0, "two: details"), not_fitted=failed)
    assert law_sentences(result) == ["No law of the optimal size is believed for TNL; parametric: two."]
    assert approach_reasons(result)[1] == "TNL, parametric: do not believe. Two: details."
    assert laws_section(result).notes == ["isoFLOP: not fitted for TNL: three (1; 2)"]
    assert law_sentences(study_of()) == [] and leading_law(study_of(), "tnl") is None


def test_runs_that_are_left_out_for_one_reason_stand_in_one_line_and_are_counted() -> None:
    waiting = [UnusedRun(f"llama-{i}", "waiting", "") for i in range(8)]
    llama = group_of("llama", left_out=(*waiting, UnusedRun("llama-b", "done", "too short")))
    failed, short = UnusedRun("tnl-a", "failed", "loss is nan at step 9"), UnusedRun("tnl-b", "done", "too short")
    skipped = ({"run_id": "tnl-z", "why": "3 whose loss is no finite number"},)
    assert unused_lines(study_of(groups=[llama, group_of("tnl", left_out=(failed, short))], skipped=skipped)) == [
        "8 runs left out of the fits, state waiting: llama-0, llama-1, llama-2 and 5 more (fits.json names all)",
        "2 runs left out of the fits, too short: llama-b, tnl-b",
        "1 run left out of the fits, state failed, loss is nan at step 9: tnl-a",
        "tnl-z: single rows or evaluations of it are left out, not the run: 3 whose loss is no finite number",
    ]


def test_sizes_that_a_surface_is_fitted_without_are_named() -> None:
    result = read_fits(FITS)
    smallest, *larger = (size.size for size in result.group("hgrn2").sizes)
    fits = tuple(
        replace(law, parametric=replace(law.parametric, sizes=tuple(larger)))
        if law.parametric is not None and law.group == "hgrn2"
        else law
        for law in result.fits
    )
    result = replace(result, fits=fits, settings=result.settings.model_copy(update={"stopped": "leave_out"}))
    assert sizes_left_out(result) == {"hgrn2": [smallest]}
    assert f"the larger ones says: {smallest} of HGRN2." in " ".join(methods_section(result).lead)
    result = replace(result, settings=result.settings.model_copy(update={"stopped": "keep"}))
    assert sizes_left_out(result) == {} and "larger ones" not in " ".join(methods_section(result).lead)


def test_the_noise_is_that_of_each_part() -> None:
    quiet, noisy = NoisePart(("tnl", "hgrn2"), 0.0032, 8.66), NoisePart(("llama",), 0.0094, 4.0)
    whole = NoisePart(("tnl", "hgrn2", "llama"), 0.007, 16.8)
    noise = SeedNoise(0.007, 16.8, parts=(whole,))
    two = replace(noise, parts=(quiet, noisy))
    assert noise_text(replace(noise, parts=(replace(whole, archs=("tnl",)),))) == (
        "0.70% of the loss, 16.8 degrees of freedom"
    )
    assert noise_text(two) == (
        "TNL and HGRN2 0.32% of the loss, 8.6 degrees of freedom; LLaMA 0.94% of the loss, 4 degrees of freedom"
    )
    assert two.of("hgrn2") is quiet and two.of("llama") is noisy and two.of("mamba2").df == two.df


def test_without_curves_architectures_are_compared_by_their_surfaces() -> None:
    study = read_fits(FITS)
    lowest = replace(study.verdicts[0], c=None, best="", archs={}, reason="no curves")
    surfaces = study_lines(replace(study, verdicts=(lowest,)))
    main = study.compared(lowest.at).main
    assert main is not None
    of_pairs = [line for line in surfaces if ", each at its optimal size by the fitted surfaces: " in line]
    assert len(of_pairs) == len(main.archs) - 1
    assert study_lines(replace(study, verdicts=(lowest,), comparisons=()))[0] == "No comparison: no curves."


def test_a_count_that_says_the_opposite_is_named_with_what_it_says() -> None:
    study = read_fits(FITS)
    lowest = replace(study.verdicts[0], c=None, best="", archs={}, reason="no curves")
    compared = study.compared(lowest.at)
    ratios = (Estimate(2.0, 1.5, 2.5), Estimate(0.5, 0.4, 0.6), *[Estimate(1.1, 0.9, 1.3)] * (len(compared.views) - 2))
    views = {
        name: replace(
            view, archs=("hgrn2", "tnl"), compute=(Comparison("tnl", "hgrn2", COMPUTE, view.range[1], ratio),)
        )
        for (name, view), ratio in zip(compared.views.items(), ratios, strict=True)
    }
    line = study_lines(replace(study, verdicts=(lowest,), comparisons=(replace(compared, views=views),)))[0]
    first, opposite, *rest = views
    assert (
        f"depends on the measure, worse by 1 of {len(views)} ways to count compute and size (better with {opposite}; "
        "undecided with " in line
    )
    assert all(f"undecided with {name}" in line for name in rest) and f"with {first}" not in line


def test_a_ratio_without_an_interval_says_why() -> None:
    study = read_fits(FITS)
    lowest = replace(study.verdicts[0], c=None, best="", archs={}, reason="no curves")
    compared = study.compared(lowest.at)
    name, view = next(iter(compared.views.items()))
    ratio = Estimate(6.3, reason="some draws never reach the loss")
    pair = Comparison("tnl", "hgrn2", COMPUTE, view.range[1], ratio)
    views = {name: replace(view, archs=("hgrn2", "tnl"), compute=(pair,))}
    line = study_lines(replace(study, verdicts=(lowest,), comparisons=(replace(compared, views=views),)))[0]
    assert "needs 6.3 times the compute (no interval: some draws never reach the loss) for the loss" in line


def test_a_ranking_the_other_way_is_no_ground_for_a_ratio() -> None:
    study = read_fits(FITS)
    lowest = replace(study.verdicts[0], c=None, best="", archs={}, reason="no curves")
    compared = study.compared(lowest.at)
    main = compared.main
    assert main is not None
    best, other = main.archs[:2]
    for what, expected in ((f"{best} better than {other}", ""), (f"{other} better than {best}", "the other way: ")):
        claim = Claim(what, main.range[1], 1.0, 0.99, (Check("rehearsed", PASSED, 0.5, 1.0, "a reason"),))
        line = study_lines(replace(study, verdicts=(lowest,), comparisons=(replace(compared, rankings=(claim,)),)))[0]
        assert ("Hint, not a result" in line) == bool(expected) and expected in line
        assert line.endswith("is lower is believed.") != bool(expected)
