"""What can be said about other people's tables by `scaling fit table`, on those that are public."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special

from analysis.fits.fit import Fit
from tests.scaling.cli.test_fit import fit, refused

TABLES = Path(__file__).resolve().parents[4] / "shared" / "data" / "tables"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="no shared/data/tables beside the repository")
GADRE = [
    *(TABLES / "gadre104.csv", "--columns", "n_params=params,n_tokens=tokens,loss=loss_c4_val,run=name,corpus="),
    *("--where", "train_set=c4_original", "--approach", "parametric", "--replicates", "40"),
]
# Their five runs: four sizes at 20 tokens a parameter, the smallest at 320 too (Gadre et al. 2024, section 4)
FIVE = "name=" + "|".join(
    f"c4_original-d={shape}" for shape in ("96_l=8_h=4-1.0", "512_l=8_h=4-1.0", "576_l=24_h=8-1.0")
)
FIVE += "|c4_original-d=1024_l=24_h=8-1.0|c4_original-d=96_l=8_h=4-16.0"
PORIAN = "tuned|short|const|standard|val"


def result(*arguments):
    (only,) = json.loads(fit(*arguments, "--json"))["results"]
    return only


def over_training(*arguments):
    part = result(*GADRE, "--form", "over-training", *arguments)["parametric"]
    return [part["parameters"]["E"]["value"], *(part["over_training"][name]["value"] for name in ("a", "b", "eta"))]


def test_the_over_training_law_of_gadre():
    """All 34 runs by Huber losses, and the law that they published, of five runs by least squares."""
    assert over_training() == pytest.approx([1.622, 163.6, 281.8, 0.1285], rel=5e-4)
    published = [1.51, 141, 190, 0.121]
    assert over_training("--where", FIVE, "--objective", "least_squares") == pytest.approx(published, rel=4e-3)


def test_the_delta_of_the_huber_loss():
    """What scipy finds to be lowest at the same delta, and nothing else; the default is 1e-3."""
    table = pd.read_csv(TABLES / "gadre104.csv")
    table = table[table["train_set"] == "c4_original"]
    log_n, log_d, log_loss = (np.log(table[name]).to_numpy() for name in ("params", "tokens", "loss_c4_val"))

    def huber(theta, delta):
        e, a, b, alpha, beta = theta
        fitted = np.log(np.exp(e) + np.exp(a - alpha * log_n) + np.exp(b - beta * log_d))
        return special.huber(delta, log_loss - fitted).sum()

    plain = result(*GADRE)["objective"]
    assert result(*GADRE, "--huber-delta", "1e-3")["objective"] == plain and "delta 0.001" in plain["name"]
    own = result(*GADRE, "--huber-delta", "0.03")
    values = [own["parametric"]["parameters"][name]["value"] for name in ("E", "A", "B", "alpha", "beta")]
    theta = np.array([*np.log(values[:3]), *values[3:]])
    best = optimize.minimize(
        huber, theta + 0.01, (0.03,), method="Nelder-Mead", options={"maxiter": 10**5, "xatol": 1e-9, "fatol": 1e-15}
    )
    assert huber(theta, 0.03) == pytest.approx(own["objective"]["value"], rel=1e-9)
    assert huber(theta, 0.03) <= best.fun * (1 + 1e-6) and "delta 0.03" in own["objective"]["name"]
    refused("belongs to --objective huber", *GADRE, "--huber-delta", "0.1", "--objective", "least_squares")
    refused("--huber-delta: 0 is no number above 0, as 1e-3$", *GADRE, "--huber-delta", "0")


def isoflop(*arguments):
    return Fit.from_dict(result(*arguments, "--approach", "isoflop", "--replicates", "200"))


def test_budgets_by_name_beside_a_c_that_differs():
    """Marin's runs by C = 6 N D lie up to 35% off the budget that they were planned by. Grouped by that, the fit is
    near the one by their own C; grouped by 6 N D itself its interval is twice as wide."""
    table = TABLES / "marin_dclm.csv"
    own, nominal = isoflop(table), isoflop(table, "--columns", "budget=flops,flops=")
    grouped_by_c = isoflop(table, "--columns", "flops=")
    n_params = pd.read_csv(table).groupby("flops").size()
    assert [minimum.n_points for minimum in nominal.isoflop.minima] == n_params.to_list()
    assert nominal.a.value == pytest.approx(own.a.value, abs=0.02)
    widths = [fitted.a.high - fitted.a.low for fitted in (nominal, grouped_by_c)]
    assert widths[0] < 0.6 * widths[1]


def test_the_columns_of_public_isoflop_tables(tmp_path):
    """tokens, params, budget and loss, as Open-Athena/scaling-law-analysis has them; and a budget as the one C."""
    table = pd.read_csv(TABLES / "llama3_isoflop.csv")
    plain = isoflop(TABLES / "llama3_isoflop.csv")
    public = table.rename(columns={"n_tokens": "tokens", "n_params": "params", "flops": "budget"})
    public.assign(dataset="llama_3", experiment="raw").to_csv(path := tmp_path / "isoflops.csv", index=False)
    assert isoflop(path).a.value == pytest.approx(plain.a.value, rel=1e-6)
    public.drop(columns="params").to_csv(path, index=False)
    assert isoflop(path, "--columns", "n_params=").a.value == pytest.approx(plain.a.value, rel=1e-6)
    refused("no column for n_params", path)

    long = pd.read_csv(TABLES / "porian_owt2.csv").query("variant == @PORIAN")
    wide = long.pivot(index="n_params", columns="flops", values="loss").add_prefix("loss at ")
    wide.to_csv(path)
    long.drop(columns="variant").to_csv(tmp_path / "long.csv", index=False)
    assert isoflop(path).a == isoflop(tmp_path / "long.csv", "--columns", "run=").a


def test_duplicates_count_where_the_user_says_so(tmp_path):
    """Twice the table is one table, unless duplicates are kept: then the same law at twice the objective."""
    table = pd.read_csv(TABLES / "gadre104.csv")
    pd.concat([table, table]).to_csv(path := tmp_path / "twice.csv", index=False)
    once, dropped, kept = (
        json.loads(fit(*of, *GADRE[1:], "--json"))
        for of in ((TABLES / "gadre104.csv",), (path,), (path, "--keep-duplicates"))
    )
    assert dropped["results"] == once["results"] and dropped["input"]["rows"]["dropped"]["exactly as another row"] == 34
    (first,), (twice,) = once["results"], kept["results"]
    assert twice["n_points"] == twice["n_runs"] == 68
    assert twice["objective"]["value"] == pytest.approx(2 * first["objective"]["value"], rel=1e-9)
    table.assign(seed=1, loss_c4_val=table["loss_c4_val"] * 1.001).pipe(
        lambda other: pd.concat([table.assign(seed=1), other]).assign(name=lambda rows: range(len(rows)))
    ).to_csv(path, index=False)
    lowest, repeats = (result(path, *GADRE[1:], *flag) for flag in ((), ("--keep-duplicates",)))
    assert (lowest["n_points"], repeats["n_points"]) == (34, 68) and repeats["parametric"]["seeds"]["df"] == 34


def test_an_outer_exponent_of_public_runs():
    """A local search of scipy's from elsewhere ends where ours does; E and the losses of the plain form differ."""
    table = pd.read_csv(TABLES / "marin_dclm.csv")
    n, d, loss = (np.log(table[name]).to_numpy() for name in ("n_params", "n_tokens", "loss"))
    n, d = n - n.mean(), d - d.mean()
    options = (TABLES / "marin_dclm.csv", "--approach", "parametric", "--objective", "least_squares")
    options += ("--replicates", "100")
    fitted = Fit.from_dict(result(*options, "--form", "outer-exponent", "--at", "1e20"))
    plain = Fit.from_dict(result(*options, "--at", "1e20"))

    def residual(theta):
        e, a, b, alpha, beta, gamma = theta
        return np.exp(loss) - e - (np.exp(a - alpha * n) + np.exp(b - beta * d)) ** gamma

    search = optimize.least_squares(residual, [2.0, -0.5, -0.5, 0.3, 0.3, 1.0], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert fitted.objective.value == pytest.approx(2 * search.cost, rel=1e-6)
    own = [fitted.parameters[name].value for name in ("E", "alpha", "beta", "gamma")]
    assert own == pytest.approx(search.x[[0, 3, 4, 5]], rel=1e-3)
    assert fitted.objective.value < 0.6 * plain.objective.value and fitted.parameters["gamma"].high < 1
    assert fitted.optima[0].n_params.value == pytest.approx(plain.optima[0].n_params.value, rel=0.3)
