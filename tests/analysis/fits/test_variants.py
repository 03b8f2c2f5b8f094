"""Variants after equal tokens or compute: by hand, and how often intervals hold all of a family's truths."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.fits.fit import Estimate
from analysis.fits.pairwise import LOSS, UNDECIDED, UNKNOWN, WORSE, Comparison
from analysis.fits.settings import FitSettings
from analysis.fits.study_fits import StudyFits, Variant, VariantFamily, Variants
from analysis.fits.variants import compare_variants, seeds_that_halve
from analysis.report.variants import is_of_variants, variant_figure, variant_lines, variant_notes, variant_rows
from analysis.run_table import RunTable
from analysis.runs import load_tables
from tests.analysis.fits.built import envelopes_of, group_of, study_of
from tests.analysis.fits.synthetic import BATCH
from tests.analysis.fits.test_grouping import write

from ..report.drawn_paper import check_paper

KEYS = {"state": "done", "left_out": "", "context_length": 256, "reset_at_documents": False}


def tables_of(losses, sizes=None, **changes):
    """Of {(arch, size, point): {seed: [ln loss after 100 tokens, after 200, ..]}}; sizes: by name, parameters."""
    runs, evals = [], []
    for (arch, size, point), by_seed in losses.items():
        for seed, values in by_seed.items():
            run = f"{arch}-{size}-{point}-{seed}"
            n = (sizes or {}).get(size, 1000)
            runs.append(
                {"run_id": run, "arch": arch, "size": size, "point": point, "seed": seed, "n_params_non_embedding": n}
                | {"flops_per_token_exact": 6.0 * n}
                | KEYS
                | changes.get(run, {})
            )
            for step, value in enumerate(values, start=1):
                row = {"run_id": run, "n_tokens": 100 * step, "loss": float(np.exp(value)), "phase": "undecayed"}
                evals.append(row)
    return RunTable(pd.DataFrame(runs), pd.DataFrame(), pd.DataFrame(evals))


def test_by_hand():
    """Two variants, two seeds: the residual is half of how much the seeds' differences differ."""
    losses = {
        ("tnl", "6k", "decay=on"): {0: [3.0, 1.00], 1: [3.0, 1.10]},
        ("tnl", "6k", "decay=off"): {0: [3.0, 1.05], 1: [3.0, 1.17], 2: [3.0, 9.0]},
        ("tnl", "14k", "decay=on"): {0: [1.0, 0.9]},
        ("llama", "6k", ""): {0: [1.0, 0.9]},
    }
    result = compare_variants(tables_of(losses, {"6k": 6000, "14k": 14_000}), 0.95)
    (family,) = result.families
    assert (family.arch, family.at, family.n_tokens, family.seeds) == ("tnl", "6k", 200, (0, 1))
    s = 0.02 / np.sqrt(2) / np.sqrt(2)  # of one observation, from differences 0.05 and 0.07
    assert (result.s, result.df) == (pytest.approx(s), 1)
    # of one more seed: t of two degrees of freedom over sqrt(3), to t of one over sqrt(2)
    assert stats.t.ppf(0.975, 2) / math.sqrt(3) < stats.t.ppf(0.975, 1) / math.sqrt(2) / 2
    assert seeds_that_halve(family, result, 0.95) == 1
    on, off = family.variants
    assert (on.name, on.against_first) == ("decay=on", None) and on.loss == pytest.approx(np.exp(1.05))
    half = 12.706 * s  # Student's t, one degree of freedom; sqrt(2 / 2 seeds) is 1
    ratio = off.against_first.ratio
    assert ratio.value == pytest.approx(np.exp(0.06)) and off.flops == 6 * 6000 * 200
    assert ratio.interval == pytest.approx((np.exp(0.06 - half), np.exp(0.06 + half)), rel=1e-3)


def shown(second: Variant, s: float | None = 0.01) -> StudyFits:
    """A study of two variants, of which the first has a loss of 2.8."""
    family = VariantFamily("tnl", "6k", ("on", "off"), 200, (0, 1), (Variant("on", 6000, 7.2e6, 2.8), second))
    return study_of(groups=[group_of("tnl", reason="one size")], variants=Variants(s, 1, (family,)))


@pytest.mark.parametrize(
    ("ratio", "verdict", "line"),
    [
        (
            Estimate(1.1, 0.9, 1.3),
            UNDECIDED,
            "on has .* 2.8000 nats/byte. It is not distinguishable from off: .*noise. 1 more seed of .*half as wide.",
        ),
        (Estimate(1.1, 1.05, 1.2), WORSE, "on has the lowest held-out loss after 200 tokens: 2.8000 nats/byte."),
        (
            Estimate(0.9, 0.8, 1.1),
            UNDECIDED,
            r"off has .*, −10.00% \[.*\] against on. It is not .* from on: .*noise. 1 more seed .*half as wide.",
        ),
        (Estimate(1.1), UNKNOWN, "on has the lowest held-out loss after 200 tokens: 2.8000 nats/byte."),
    ],
)
def test_what_is_said_of_variants(ratio, verdict, line):
    against = Comparison("off", "on", LOSS, 7.2e6, ratio)
    fits = shown(Variant("off", 6000, 7.2e6, 2.8 * ratio.value, against), None if verdict == UNKNOWN else 0.01)
    first, second = variant_rows(fits)
    assert (first["verdict"], second["verdict"], first["family"]) == ("", verdict, "TNL, 6k, 200 tokens")
    (result,) = variant_lines(fits)
    assert re.fullmatch(f"TNL, 6k: {line}", result)
    assert is_of_variants(fits) and not is_of_variants(replace(fits, groups=(group_of("tnl"),)))
    note = "nobody knows" if verdict == UNKNOWN else "1.00% of the loss (1 degrees of freedom)"
    assert note in variant_notes(fits)[0]
    assert list(variant_figure(fits).data[0].y) == ["on", "off"]
    long = Variant("off, of a variant with a long name", 6000, 7.2e6, 2.8 * ratio.value, against)
    check_paper(variant_figure(shown(long)))


def test_what_is_a_family():
    """Sizes within a tenth of each other's parameters are its shapes; losses over other contexts stand apart; what
    failed or is left out is no variant."""
    sizes = {"wide": 1000, "deep": 1090, "next": 1300}
    losses = {("tnl", size, ""): {0: [1.0]} for size in sizes}
    result = compare_variants(tables_of(losses, sizes), 0.95)
    (family,) = result.families
    assert [variant.name for variant in family.variants] == ["wide", "deep"] and result.s is None
    other = {"context_length": 512}
    assert not compare_variants(tables_of(losses, sizes, **{"tnl-deep--0": other}), 0.95).families
    for change in ({"state": "failed"}, {"left_out": "why"}, {"reset_at_documents": True}):
        assert not compare_variants(tables_of(losses, sizes, **{"tnl-deep--0": change}), 0.95).families


def test_shapes_of_equal_compute_are_compared_at_their_ends_and_sizes_of_neighbouring_budgets_are_not():
    losses = {("tnl", "wide", ""): {0: [1.0], 1: [1.02]}, ("tnl", "deep", ""): {0: [1.1], 1: [1.14]}}
    table = tables_of(losses, {"wide": 1000, "deep": 1050})
    deep = table.evals["run_id"].str.contains("deep")
    table.evals.loc[deep, "n_tokens"] = 95
    (family,) = compare_variants(table, 0.95).families
    assert (family.n_tokens, family.flops) == (0, pytest.approx(6 * math.sqrt(100_000 * 99_750)))
    assert family.variants[1].against_first.ratio.value == pytest.approx(np.exp(0.11))
    fits = study_of(groups=[group_of("tnl", reason="one size")], variants=compare_variants(table, 0.95))
    assert "after 5.99·10⁵ FLOP" in variant_lines(fits)[0]
    table.evals.loc[deep, "n_tokens"] = 80
    assert not compare_variants(table, 0.95).families


def test_what_cannot_be_compared_is_told():
    losses = {("tnl", "6k", "a=1"): {0: [1.0, 1.0]}, ("tnl", "6k", "a=2"): {1: [1.0, 1.0]}}
    (family,) = compare_variants(tables_of(losses), 0.95).families
    assert family.reason == "no seed has all of its variants" and not family.variants
    losses[("tnl", "6k", "a=2")] = {0: []}
    result = compare_variants(tables_of(losses), 0.95)
    assert result.families[0].reason == "its variants were not evaluated after equal tokens or compute"
    notes = variant_notes(study_of(variants=result))
    assert notes == [f"TNL, 6k: 2 variants are not compared: {result.families[0].reason}."]


def test_intervals_hold_all_differences_of_a_family_at_once():
    """100 studies of two families of four variants and two seeds, with an effect of the seed five times the noise."""
    rng, held = np.random.default_rng(0), []
    truth = np.array([0.0, 0.01, -0.02, 0.05])
    for _ in range(100):
        losses = {}
        for arch in ("tnl", "llama"):
            seeds = 0.05 * rng.normal(size=2)
            for variant, effect in enumerate(truth):
                values = 1.0 + effect + seeds + 0.01 * rng.normal(size=2)
                losses[arch, "6k", f"a={variant}"] = {seed: [value] for seed, value in enumerate(values)}
        for family in compare_variants(tables_of(losses), 0.95).families:
            ratios = [variant.against_first.ratio for variant in family.variants[1:]]
            held.append(all(ratio.low <= np.exp(t) <= ratio.high for ratio, t in zip(ratios, truth[1:], strict=True)))
    assert 0.92 <= np.mean(held) <= 0.99, np.mean(held)


def test_points_of_one_size_have_no_law_of_size(tmp_path):
    for decay in ("independent", "none"):
        write(tmp_path, "tnl", "14k", **{"model.decay": decay})
    fits = envelopes_of(load_tables(tmp_path), FitSettings(smoothing_tokens=10 * BATCH, n_replicates=20))
    reasons = {group.reason for group in fits.groups}
    assert reasons == {"it has one size, 14k, and no law of size: its points are compared as variants"}
