"""What a design takes from a pilot."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scaling.cli.design import WorldOptions
from scaling.cli.design_pilot import read_pilot
from scaling.cli.fit_laws import of_runs, of_studies
from scaling.cli.options import FittedOptions

PUBLISHED = str(Path(__file__).parents[3] / "analysis" / "studies" / "2026-second")


def test_the_noise_of_a_pilot_of_decayed_losses_is_that_of_repeated_seeds():
    """Three runs that differ by their seeds alone stand in each of 44 cells of N and D."""
    reading = of_runs(of_studies([FittedOptions(study=PUBLISHED).request()], None), None).reading
    runs = pd.concat(
        pd.DataFrame({"arch": name, "n": points.n_params, "d": points.n_tokens, "y": np.log(points.loss)})
        for name, points in reading.groups.items()
    )
    variances = runs.groupby(["arch", "n", "d"])["y"].var().dropna()
    assert reading.points == "ends" and len(variances) == 44
    pilot = read_pilot(PUBLISHED, ["llama"], "bytes")
    assert pilot.seeds == pytest.approx(variances.mean() ** 0.5)
    assert WorldOptions(pilot=PUBLISHED).noise(pilot) == (pilot.seeds, f"measured in {PUBLISHED}")
    assert WorldOptions(pilot=PUBLISHED, seed_noise="1%").noise(pilot) == (0.01, "stated")
