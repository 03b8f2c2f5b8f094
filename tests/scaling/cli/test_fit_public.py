"""What can be said about other people's tables by `scaling fit table`, on those that are public."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special

from tests.scaling.cli.test_fit import fit, refused

TABLES = Path(__file__).resolve().parents[4] / "shared" / "data" / "tables"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="no shared/data/tables beside the repository")
GADRE = [
    *(TABLES / "gadre104.csv", "--columns", "n_params=params,n_tokens=tokens,loss=loss_c4_val,run=name,corpus="),
    *("--where", "train_set=c4_original", "--approach", "parametric", "--replicates", "100"),
]
# Their five runs: four sizes at 20 tokens a parameter, the smallest at 320 too (Gadre et al. 2024, section 4)
FIVE = "name=" + "|".join(
    f"c4_original-d={shape}" for shape in ("96_l=8_h=4-1.0", "512_l=8_h=4-1.0", "576_l=24_h=8-1.0")
)
FIVE += "|c4_original-d=1024_l=24_h=8-1.0|c4_original-d=96_l=8_h=4-16.0"


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
    refused("is above 0", *GADRE, "--huber-delta", "0")
