"""Variants after equal tokens: against values by hand, and how often the intervals hold all of a family's truths."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.fits.settings import FitSettings
from analysis.fits.variants import compare_variants
from analysis.report.variants import is_of_variants, variant_figure, variant_lines, variant_notes, variant_rows
from analysis.run_table import RunTable
from analysis.runs import load_tables
from tests.analysis.fits.built import envelopes_of, group_of, study_of
from tests.analysis.fits.synthetic import BATCH
from tests.analysis.fits.test_grouping import write

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
    return RunTable(pd.DataFrame(runs), pd.DataFrame(), pd.DataFrame(evals), nuisance={})


def test_by_hand():
    """Two variants, two seeds: the residual is half of how much the seeds' differences differ."""
    losses = {
        ("tnl", "6k", "decay=on"): {0: [3.0, 1.00], 1: [3.0, 1.10]},
        ("tnl", "6k", "decay=off"): {0: [3.0, 1.05], 1: [3.0, 1.17], 2: [3.0, 9.0]},
        ("tnl", "14k", "decay=on"): {0: [1.0, 0.9]},
        ("llama", "6k", ""): {0: [1.0, 0.9]},
    }
    found = compare_variants(tables_of(losses, {"6k": 6000, "14k": 14_000}), 0.95)
    (family,) = found["families"]
    assert (family["arch"], family["at"], family["n_tokens"], family["seeds"]) == ("tnl", "6k", 200, [0, 1])
    s = 0.02 / np.sqrt(2) / np.sqrt(2)  # of one observation, from differences 0.05 and 0.07
    assert found["noise"] == {"s": pytest.approx(s), "df": 1}
    on, off = family["rows"]
    assert (on["variant"], on["low"], on["more"]) == ("decay=on", None, 0.0) and on["loss"] == pytest.approx(
        np.exp(1.05)
    )
    half = 12.706 * s  # Student's t, one degree of freedom; sqrt(2 / 2 seeds) is 1
    assert off["more"] == pytest.approx(np.expm1(0.06)) and off["flops"] == 6 * 6000 * 200
    assert (off["low"], off["high"]) == (
        pytest.approx(np.expm1(0.06 - half), rel=1e-3),
        pytest.approx(np.expm1(0.06 + half), rel=1e-3),
    )
    fits = study_of(groups=[group_of("tnl", reason="one size")], variants=found)
    rows = variant_rows(fits)
    assert [row["told apart"] for row in rows] == ["", "no"] and rows[0]["family"] == "TNL, 6k, 200 tokens"
    first = "TNL, 6k: decay=on has the lowest held-out loss after 200 tokens: 2.8577 nats/byte."
    assert variant_lines(fits) == [f"{first} Seed noise does not tell it from decay=off."]
    told = [on, off | {"low": 0.01, "high": 0.1}]
    assert variant_lines(replace(fits, variants=found | {"families": [family | {"rows": told}]})) == [first]
    better = on | {"loss": 2.0, "more": -0.1, "low": -0.2, "high": 0.1}
    (turned,) = variant_lines(replace(fits, variants=found | {"families": [family | {"rows": [off, better]}]}))
    assert turned.endswith(" against decay=off. Seed noise does not tell it from decay=off.")
    unknown = found | {"noise": None, "families": [family | {"rows": [on, off | {"low": None, "high": None}]}]}
    assert variant_lines(replace(fits, variants=unknown)) == [first]
    assert is_of_variants(fits) and not is_of_variants(replace(fits, groups=(group_of("tnl"),)))
    assert "1.00% of the loss (1 degrees of freedom)" in variant_notes(fits)[0]
    assert list(variant_figure(fits).data[0].y) == ["decay=on", "decay=off"]


def test_what_is_a_family():
    """Sizes within a tenth of each other's parameters are its shapes; losses over other contexts stand apart; what
    failed or is left out is no variant."""
    sizes = {"wide": 1000, "deep": 1090, "next": 1300}
    losses = {("tnl", size, ""): {0: [1.0]} for size in sizes}
    found = compare_variants(tables_of(losses, sizes), 0.95)
    (family,) = found["families"]
    assert [row["variant"] for row in family["rows"]] == ["wide", "deep"] and found["noise"] is None
    assert "nobody knows" in variant_notes(study_of(variants=found))[0]
    other = {"context_length": 512}
    assert not compare_variants(tables_of(losses, sizes, **{"tnl-deep--0": other}), 0.95)["families"]
    for change in ({"state": "failed"}, {"left_out": "why"}, {"reset_at_documents": True}):
        assert not compare_variants(tables_of(losses, sizes, **{"tnl-deep--0": change}), 0.95)["families"]


def test_merged_weights_are_no_variant():
    tables = tables_of({("tnl", "6k", f"a={i}"): {0: [1.0, 0.9]} for i in (1, 2)})
    tables.evals.loc[tables.evals["n_tokens"] == 200, "phase"] = "merged"
    assert compare_variants(tables, 0.95)["families"][0]["n_tokens"] == 100


def test_what_cannot_be_compared_is_told():
    losses = {("tnl", "6k", "a=1"): {0: [1.0, 1.0]}, ("tnl", "6k", "a=2"): {1: [1.0, 1.0]}}
    (family,) = compare_variants(tables_of(losses), 0.95)["families"]
    assert family["reason"] == "no seed has all of its variants" and not family["rows"]
    losses[("tnl", "6k", "a=2")] = {0: []}
    found = compare_variants(tables_of(losses), 0.95)
    assert found["families"][0]["reason"] == "its variants were not evaluated after equal tokens"
    notes = variant_notes(study_of(variants=found))
    assert notes == ["TNL, 6k: 2 variants are not compared: its variants were not evaluated after equal tokens."]


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
        for family in compare_variants(tables_of(losses), 0.95)["families"]:
            rows = family["rows"][1:]
            inside = [row["low"] <= np.expm1(t) <= row["high"] for row, t in zip(rows, truth[1:], strict=True)]
            held.append(all(inside))
    assert 0.92 <= np.mean(held) <= 0.99, np.mean(held)


def test_points_of_one_size_have_no_law_of_size(tmp_path):
    for decay in ("independent", "none"):
        write(tmp_path, "tnl", "14k", **{"model.decay": decay})
    fits = envelopes_of(load_tables(tmp_path), FitSettings(smoothing_tokens=10 * BATCH, n_replicates=20))
    reasons = {one.reason for one in fits.groups}
    assert reasons == {"it has one size, 14k, and no law of size: its points are compared after equal tokens"}
