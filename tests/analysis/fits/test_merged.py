"""Losses of merged weights beside those of branches decayed to the same tokens: a known offset is found."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.fits.settings import FitSettings
from analysis.report.runs import checkpoints_table
from analysis.report.variants import merged_section
from analysis.runs import load_tables
from tests.analysis.fits.built import envelopes_of, study_of

from .synthetic import BATCH, SIZES, write_evals
from .test_losses import decayed, ends_of, write_trunk

OFFSET, SCATTER = 0.02, 0.001
BRANCHED = ("14k", "55k", "393k")
SETTINGS = FitSettings(loss="validation")


def write_merged(directory, size, rng, branches):
    """A trunk with branches, and merged losses at shares of its tokens and where a branch ends."""
    ends = ends_of(size, max(2, branches))[-branches:]
    write_trunk(directory, "llama", size, ends, 0, rng)
    last = round(0.8 * ends[-1] / BATCH)
    steps = sorted({end // BATCH for end in ends if end // BATCH <= last} | {round(last / 5), last})
    losses = [
        float(decayed(SIZES[size], step * BATCH)) * math.exp(OFFSET + SCATTER * rng.standard_normal()) for step in steps
    ]
    write_evals(directory, f"llama-{size}-c256-s0", steps, losses, "merged-evals")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory, rng = tmp_path_factory.mktemp("studies") / "merged", np.random.default_rng(3)
    for size in SIZES:
        write_merged(directory, size, rng, 5 if size in BRANCHED else 1)
    return load_tables(directory)


def test_merged_losses_enter_no_fit_and_their_offset_counts_each_trunk_once(tables):
    assert set(tables.evals["phase"]) == {"undecayed", "merged", "decayed"}
    assert {row["weights"] for row in checkpoints_table(tables).rows} == {"", "merged"}
    fits = envelopes_of(tables, SETTINGS)
    assert fits.settings.points == "decayed" and fits.points["left_out"]["merged"] > 15
    assert "rows of merged weights" in fits.points["text"]
    merged = fits.merged["llama"]
    assert (merged.n_pairs, merged.n_trunks, set(merged.sizes)) == (12, 3, set(BRANCHED))
    losses, means = tables.evals.set_index(["run_id", "n_tokens", "phase"])["loss"], []
    for size in BRANCHED:
        trunk = f"llama-{size}-c256-s0"
        ends = tables.runs.loc[tables.runs["trunk"] == trunk, "n_tokens"]
        pairs = [
            math.log(losses[trunk, end, "merged"] / losses[f"{trunk}-d{end}", end, "decayed"])
            for end in ends
            if (trunk, end, "merged") in losses.index
        ]
        means.append(np.mean(pairs))
    assert merged.offset.value == pytest.approx(np.mean(means), rel=1e-12) and abs(np.mean(means) - OFFSET) < 0.001
    assert merged.offset.interval == pytest.approx(stats.t.interval(0.95, 2, np.mean(means), stats.sem(means)))
    section = merged_section(fits)
    ((row,),) = (table.rows for table in section.tables)
    assert (row["architecture"], row["pairs"]) == ("LLaMA", "12 of 3 trunks")
    assert row["merged above decayed"].startswith(f"{np.mean(means):+.2%} [+") and "No fit uses" in section.notes[0]
    assert not merged_section(study_of()).has_text


def test_one_trunk_gives_an_offset_without_an_interval(tmp_path):
    write_merged(tmp_path / "s", "14k", np.random.default_rng(0), 2)
    offset = envelopes_of(load_tables(tmp_path / "s"), SETTINGS).merged["llama"].offset
    assert abs(offset.value - OFFSET) < 0.005 and offset.interval is None and "two trunks" in offset.reason
