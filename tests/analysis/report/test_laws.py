"""The laws in rows and lines: runs in no fit, sizes that a surface is fitted without, the noise of each part."""

from dataclasses import replace
from pathlib import Path

from analysis.fits.noise import NoisePart, SeedNoise
from analysis.fits.study_fits import StudyFits, UnusedRun, read_fits
from analysis.report.laws import sizes_left_out, unused_lines
from analysis.report.methods import methods
from analysis.report.noise import noise_text
from analysis.report.verdict import study_lines

from ..fits.built import group_of, study_of

FITS = Path(__file__).resolve().parents[3] / "analysis" / "studies" / "h200-2026" / "fits.json"


def fits(*runs: tuple[str, str, str]) -> StudyFits:
    groups: dict[str, list[UnusedRun]] = {}
    for name, state, reason in runs:
        groups.setdefault(name.partition("-")[0], []).append(UnusedRun(name, state, reason))
    skipped = ({"run_id": "tnl-z", "why": "3 whose loss is no finite number"},)
    return study_of(groups=[group_of(name, left_out=tuple(left)) for name, left in groups.items()], skipped=skipped)


def test_runs_that_are_left_out_alike_are_told_in_one_line_and_counted() -> None:
    waiting = [(f"{arch}-{i}", "waiting", "") for arch in ("llama", "tnl") for i in range(4)]
    others = [
        ("tnl-a", "failed", "loss is nan at step 9"),
        ("tnl-b", "done", "too short"),
        ("llama-b", "done", "too short"),
    ]
    assert unused_lines(fits(*waiting, *others)) == [
        "8 runs are left out of the fits, their state is waiting: llama-0, llama-1, llama-2 and 5 more (fits.json "
        "names all)",
        "2 runs enter no curve of their size: too short: llama-b, tnl-b",
        "tnl-a: left out of the fits, its state is failed: loss is nan at step 9",
        "tnl-z: single rows or evaluations of it are left out, not the run: 3 whose loss is no finite number",
    ]


def test_sizes_that_a_surface_is_fitted_without_are_told() -> None:
    result = read_fits(FITS)
    assert sizes_left_out(result) == {"hgrn2": ["n360k"]}
    assert "the larger ones says: n360k of HGRN2." in " ".join(methods(result))
    result = replace(result, settings=result.settings.model_copy(update={"stopped": "keep"}))
    assert sizes_left_out(result) == {} and "larger ones" not in " ".join(methods(result))


def test_the_noise_is_told_of_each_part() -> None:
    quiet, noisy = NoisePart(("tnl", "hgrn2"), 0.0032, 8.66), NoisePart(("llama",), 0.0094, 4.0)
    whole = NoisePart(("tnl", "hgrn2", "llama"), 0.007, 16.8)
    one = SeedNoise(0.007, 16.8, parts=(whole,))
    two = replace(one, parts=(quiet, noisy))
    assert noise_text(replace(one, parts=(replace(whole, archs=("tnl",)),))) == (
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
    of_pairs = [line for line in surfaces if " for the same loss, by their fitted surfaces at C = " in line]
    assert len(of_pairs) == len(main.archs) - 1
    assert study_lines(replace(study, verdicts=(lowest,), comparisons=()))[0] == "No comparison: no curves."
