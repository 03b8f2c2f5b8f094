"""The scoreboard of predictions beyond the data: peers that are exact where their law is, and its lines."""

import json

import numpy as np
import pytest

from analysis.fits.points import Points
from analysis.fits.surface import Surface
from arch.errors import InputError
from benchmarks import extrapolation
from benchmarks.extrapolation import LOWEST, OURS, lowest_so_far, main, power_law, splits

TRUTH = Surface(1.69, 406.4, 410.7, 0.34, 0.28)


def points() -> Points:
    c = np.repeat(1e18 * 2.0 ** np.arange(9), 7)
    n = TRUTH.n_opt(c) * np.tile(np.geomspace(0.25, 4, 7), 9)
    return Points(
        n, c / 6 / n, c, TRUTH.loss(n, c / 6 / n) * np.exp(0.003 * np.random.default_rng(0).standard_normal(63))
    )


def test_a_power_law_is_exact_where_losses_are_one():
    c = np.geomspace(1e18, 1e20, 8)
    low, high = (Points(np.full(4, 1e8), part / 6e8, part, 5 * part**-0.03) for part in (c[:4], c[4:]))
    assert np.allclose(power_law(low, high)[0], high.loss, rtol=1e-9)


def test_the_lowest_loss_has_no_better_run_at_its_compute():
    result = points()
    assert lowest_so_far(result).reshape(9, 7).sum(1).max() == 1


def test_nothing_above_a_cut_is_fitted():
    for low, high in splits(points(), 5):
        assert low.flops.max() * 1.4 < high.flops.min()


def test_a_table_of_ones_own_is_scored_and_a_missing_package_named(tmp_path, monkeypatch, capsys):
    result = points()
    table = "flops,n_params,n_tokens,loss\n" + "\n".join(
        f"{c!r},{n!r},{d!r},{loss!r}"
        for c, n, d, loss in zip(
            *(getattr(result, k).tolist() for k in ("flops", "n_params", "n_tokens", "loss")), strict=True
        )
    )
    (tmp_path / "mine.csv").write_text(table)
    monkeypatch.setattr(extrapolation, "PUBLIC", {})
    main([str(tmp_path), "--table", str(tmp_path / "mine.csv"), "--cuts", "2", "--json", str(tmp_path / "x.json")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 15 and any(line.startswith(OURS) for line in lines)
    assert any(line.startswith("vpnls") and "absent" in line for line in lines)
    computed = json.loads((tmp_path / "x.json").read_text())
    ours, naive = (
        {
            unit["cut"]: unit["error"]
            for unit in computed["units"]
            if unit["method"] == name and unit["target"] == LOWEST
        }
        for name in (OURS, "no change")
    )
    near, far = max(ours), min(ours)
    # two computes below the far cut tell no exponent: losses 128 times as far are as the expected one has them
    assert near > 50 * far and ours[near] < 0.02 and ours[far] < 0.05
    assert all(naive[cut] > error for cut, error in ours.items())


def test_a_number_of_cuts_below_one_is_refused(tmp_path):
    with pytest.raises(InputError, match="--cuts"):
        main([str(tmp_path), "--cuts", "0"])
