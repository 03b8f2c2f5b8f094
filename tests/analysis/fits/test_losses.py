"""Trunks and branches of a known surface: which losses a fit takes, and that it never takes both kinds."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.fits.losses import NO_CURVE, resolved
from analysis.fits.points import CURVES
from analysis.fits.prepare import prepare, refuse_ends
from analysis.fits.settings import FitSettings
from analysis.fits.study import fit_study
from analysis.report.runs import unused_lines
from analysis.runs import load_tables
from arch.errors import InputError
from tests.analysis.fits.built import envelopes_of

from .synthetic import BATCH, SIZES, power_world, write_evals, write_run

WSD = {"schedule": "wsd", "decay_fraction": 0.2}
HELD_OUT = FitSettings(loss="validation")
TRAINING = FitSettings(smoothing_tokens=10_000)


def decayed(n_params, n_tokens):
    return 0.7 + power_world(n_params, n_tokens)


def undecayed(n_params, n_tokens):
    """Higher, and on another power of the tokens: a fit of both would be of neither."""
    return decayed(n_params, n_tokens) + 0.3 * (n_tokens / 2e6) ** -0.1


def write_trunk(directory, arch, size, ends, seed=0, rng=None, evaluated=True):
    """A trunk to 0.8 of the last end, and a branch to each; both evaluated."""
    n, shift = SIZES[size], 0.0 if rng is None else 0.001 * rng.standard_normal()
    last = round(0.8 * ends[-1] / BATCH) * BATCH
    trunk = write_run(directory, arch, size, last, undecayed, seed=seed, shift=shift)
    steps = [round(share * last / BATCH) for share in (0.1, 0.2, 0.4, 0.7, 1.0)]
    write_evals(directory, trunk, steps, [float(undecayed(n, step * BATCH)) * np.exp(shift) for step in steps])
    for end in ends:
        own = shift + (0.0 if rng is None else 0.0005 * rng.standard_normal())
        branch = write_run(directory, arch, size, end, decayed, seed=seed, shift=own, trunk=trunk, **WSD)
        if evaluated:
            write_evals(directory, branch, [end // BATCH], [float(decayed(n, float(end))) * np.exp(own)])


def ends_of(size, count=5):
    whole = 3e12 / 6 / SIZES[size]
    return [round(whole * share / BATCH) * BATCH for share in np.geomspace(0.06, 1, count)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory, rng = tmp_path_factory.mktemp("studies") / "branched", np.random.default_rng(0)
    for size in SIZES:
        for seed in (0, 1) if size in ("25k", "98k") else (0,):
            write_trunk(directory, "llama", size, ends_of(size), seed, rng)
    return load_tables(directory)


def test_rows_name_their_phase_and_runs_their_trunk(tables):
    runs = tables.runs.set_index("run_id")
    branch = next(name for name in runs.index if "-55k-" in name and runs.loc[name, "trunk"])
    assert runs.loc[branch, "trunk"] == "llama-55k-c256-s0" and runs.loc["llama-55k-c256-s0", "trunk"] == ""
    rows = tables.curves[tables.curves["run_id"] == branch]
    assert rows["phase"].tolist() == ["decaying"] * (len(rows) - 1) + ["decayed"]
    n_steps = int(runs.loc[branch, "step"])
    assert rows["step"].tolist() == list(range(n_steps - round(0.2 * n_steps) + 1, n_steps + 1))
    per_token = rows["flops_exact"] / rows["n_tokens"]
    assert np.allclose(per_token, 6 * SIZES["55k"]), "C of the point, its trunk's share with it"
    assert set(tables.curves.loc[tables.curves["run_id"] == "llama-55k-c256-s0", "phase"]) == {"undecayed"}
    assert set(tables.evals["phase"]) == {"undecayed", "decayed"}


def test_held_out_losses_are_those_of_decayed_ends(tables):
    settings = resolved(tables, HELD_OUT)
    assert (
        settings.points == "decayed"
        and settings.loss_name("nats/byte") == "held-out loss after a decay of the learning rate (nats/byte)"
    )
    reading = prepare(replace(tables, name="s", settings=HELD_OUT), points=CURVES)
    points = reading.groups["llama"]
    assert len(points) == points.n_runs == 40 and len(set(points.trunk.tolist())) == 8
    with pytest.raises(InputError, match="--points curves: study s fits one loss a run"):
        refuse_ends(replace(tables, name="s", settings=HELD_OUT))
    refuse_ends(replace(tables, name="s", settings=TRAINING))
    expected = decayed(points.n_params, points.n_tokens)
    assert np.abs(np.log(points.loss / expected)).max() < 0.006
    assert "without a loss of the phase of the learning rate that is fitted (fit.points)" in reading.dropped

    fits = fit_study(replace(tables, name="s", settings=HELD_OUT))
    assert fits.points["phase"] == "decayed" and fits.points["left_out"] == {"undecayed": 40}
    assert "left out: 40 rows before any decay" in fits.points["text"]
    assert fits.settings.points == "decayed" and (fits.not_fitted[0].approach, fits.not_fitted[0].reason) == (
        "envelope",
        NO_CURVE,
    )
    (unused,) = unused_lines(fits)
    assert unused.startswith("8 runs left out of the fits, without a loss at the end of a decay (fit.points): llama-")
    llama = fits.group("llama")
    assert llama.fitted and llama.n_runs == 40 and {size.n_seeds for size in llama.sizes} == {1, 2}
    surface, budgets = fits.fit("llama", "parametric"), fits.fit("llama", "isoflop")
    known = {name: estimate.value for name, estimate in surface.parameters.items()}
    assert abs(known["alpha"] - 0.3) < 0.04 and abs(known["beta"] - 0.3) < 0.04 and abs(known["E"] - 0.7) < 0.1, known
    assert surface.intervals.over == "8 trunks"
    for exponent in (surface.a, budgets.a):
        assert exponent.low < 0.5 < exponent.high and exponent.high - exponent.low < 0.2


def test_training_losses_are_those_before_any_decay_and_branches_change_no_law(tables):
    settings = resolved(tables, TRAINING)
    assert settings.points == "undecayed" and "before any decay" in settings.loss_name("nats/token")
    with_branches = envelopes_of(tables, TRAINING)
    assert "fit.loss validation fits these" in with_branches.points["text"]
    assert set(with_branches.points["left_out"]) == {"decaying", "decayed"}
    alone = tables.without(set(tables.runs.loc[tables.runs["trunk"] != "", "run_id"]))
    without = envelopes_of(alone, TRAINING)
    assert without.points is None and without.settings.points == "auto"
    assert with_branches.envelope("llama").laws == without.envelope("llama").laws
    assert (with_branches.intervals, with_branches.seed_noise) == (without.intervals, without.seed_noise)


def test_one_architecture_without_decayed_losses_keeps_all_undecayed(tables, tmp_path):
    for size in SIZES:
        write_trunk(tmp_path / "two", "llama", size, ends_of(size, 2))
        write_trunk(tmp_path / "two", "tnl", size, ends_of(size, 2), evaluated=False)
    both = load_tables(tmp_path / "two")
    assert resolved(both, HELD_OUT).points == "undecayed"
    assert resolved(both, HELD_OUT.model_copy(update={"points": "decayed"})).points == "decayed"
    reading = prepare(replace(both, name="two", settings=HELD_OUT), points=CURVES)
    assert set(reading.groups) == {"llama", "tnl"} and set(reading.groups["tnl"].trunk) == set(
        reading.groups["tnl"].run
    )


def test_decayed_losses_that_are_not_there_are_one_line(tmp_path):
    with pytest.raises(ValueError, match="points decayed needs loss validation"):
        FitSettings(points="decayed")
    write_evals(tmp_path / "s", write_run(tmp_path / "s", "llama", "14k", 100 * BATCH), [50, 100], [3.0, 2.0])
    with pytest.raises(
        InputError, match=r"fit\.points is decayed, and no run that is done has an evaluated checkpoint"
    ):
        settings = FitSettings(loss="validation", points="decayed")
        fit_study(replace(load_tables(tmp_path / "s"), settings=settings))
