"""The compute of a token over model size: smooth, whatever the steps of the sizes' widths."""

import numpy as np
import pytest

from analysis.fits.cost import cost_of
from analysis.fits.points import Points
from analysis.fits.surface import Surface

SIZES = np.geomspace(2e5, 1.4e7, 24)


def points(a_token: np.ndarray) -> Points:
    tokens = np.full(len(SIZES), 1e8)
    return Points(SIZES, tokens, tokens * a_token, np.linspace(2, 1, len(SIZES)), convention="exact")


@pytest.mark.parametrize("other", [2e4, -1e3])
def test_costs_without_steps_are_read_as_they_are(other):
    """A token of N parameters more than 6 N, or less: as of sizes that count embeddings, which cost nothing."""
    a_token = 6 * SIZES + other * SIZES**0.5
    assert np.allclose(cost_of(points(a_token)).per_token(SIZES), a_token, rtol=1e-9)


def test_sizes_whose_widths_come_in_steps_do_not_draw_the_optimum_to_themselves():
    """Attention costs what the width does, which grows in steps, while N grows between them by the MLP."""
    smooth = 6 * SIZES + 6 * 2048 * 4 * np.sqrt(SIZES / 48)
    in_steps = 6 * SIZES + 6 * 2048 * 4 * 32 * np.round(np.sqrt(SIZES / 48) / 32)
    cost = cost_of(points(in_steps))
    assert (np.diff(cost.growth(np.log(np.geomspace(SIZES[0], SIZES[-1], 200, endpoint=False)))) >= -1e-9).all()
    off = np.abs(np.log([cost.per_token(SIZES) / smooth, in_steps / smooth]))
    assert off[0].max() < off[1].max() and off[0].mean() < off[1].mean()
    surface = Surface(1.0, 12.0, 60.0, 0.26, 0.29)
    n_opt = surface.n_opt(np.geomspace(2e14, 4e15, 40), cost)
    assert SIZES[0] < n_opt[0] and n_opt[-1] < SIZES[-1]
    moves = np.diff(np.log(n_opt))
    assert moves.min() > 0 and moves.max() < 3 * np.median(moves)
