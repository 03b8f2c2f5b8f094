"""Runs that are in no fit, and pairs of sizes that do not cross: few lines, however many there are."""

import json
from pathlib import Path
from typing import Any

from analysis.fits.envelope.crossings import Missing
from analysis.fits.envelope.optimum import optimum_laws
from analysis.report.left_out import sizes_left_out, unused_lines
from analysis.report.methods import _pooled_text, methods
from analysis.report.noise import noise_of, noise_text

from ..fits.envelope.test_crossings import curve

FITS = Path(__file__).resolve().parents[3] / "analysis" / "studies" / "h200-2026" / "fits.json"


def fits(*runs: tuple[str, str, str]) -> dict[str, Any]:
    archs: dict[str, Any] = {}
    for name, state, reason in runs:
        one = archs.setdefault(name.partition("-")[0], {"left_out": []})
        one["left_out"].append({"run_id": name, "state": state, "reason": reason})
    return {"archs": archs, "skipped": [{"run_id": "tnl-z", "why": "3 whose loss is no finite number"}]}


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
    found = json.loads(FITS.read_text())
    assert sizes_left_out(found) == {"hgrn2": ["n360k"]}
    assert "the larger ones says: n360k of HGRN2." in " ".join(methods(found))
    found["settings"]["stopped"] = "keep"
    assert sizes_left_out(found) == {} and "larger ones" not in " ".join(methods(found))


def test_of_pairs_that_do_not_cross_the_reason_has_the_nearest_and_counts_the_others() -> None:
    curves = [curve(n, 29.0) for n in (1e3, 2e3, 4e3, 8e3)]
    missing = [Missing(0, "far", 0.02), Missing(1, "near", 0.01), Missing(2, "not known")]
    for pairs, told in (
        (missing, ": 2000 and 4000: near; 2 more pairs do not cross either"),
        (missing[::2], ": 1000 and 2000: far; 1 more pair does not cross either"),
        (missing[2:], ": 4000 and 8000: not known"),
        ([], ""),
    ):
        laws, _ = optimum_laws(curves, [], pairs, None, 0.95)
        assert laws["n_opt"]["reason"] == laws["d_opt"]["reason"] == f"0 pairs cross in the range, 3 are needed{told}"


def test_the_noise_is_told_of_each_part() -> None:
    quiet, noisy = {"archs": ["tnl", "hgrn2"], "s": 0.0032, "df": 8.66}, {"archs": ["llama"], "s": 0.0094, "df": 4.0}
    one = {"s": 0.007, "df": 16.8, "parts": [quiet | {"archs": ["tnl", "hgrn2", "llama"]}]}
    two = one | {"parts": [quiet, noisy]}
    assert noise_text(one | {"parts": [one | {"archs": ["tnl"]}]}) == "0.70% of the loss, 16.8 degrees of freedom"
    assert noise_text(two) == (
        "TNL and HGRN2 0.32% of the loss, 8.6 degrees of freedom; LLaMA 0.94% of the loss, 4 degrees of freedom"
    )
    assert noise_of(two, "hgrn2") is quiet and noise_of(two, "llama") is noisy and noise_of(two, "mamba2") is two
    assert "here it tells 2 parts apart: TNL and HGRN2; LLaMA." in _pooled_text(two)
    assert "one noise holds for all of them" in _pooled_text(one)
    assert "here" not in _pooled_text(one | {"parts": [noisy]})
