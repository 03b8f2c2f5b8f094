"""Envelopes worked by hand: who owns which point, and why a point says nothing about N_opt."""

import numpy as np

from analysis.fits.envelope.extract import (
    ENDED,
    LARGEST,
    SMALLEST,
    UNCOVERED,
    UNRIVALLED,
    WARMUP,
    SizeCurve,
    average_seeds,
    extract,
)
from analysis.fits.envelope.intervals import owns_stretch


def line(size: str, rank: int, slope: float, offset: float, span: tuple[float, float], warmup: int = 0) -> SizeCurve:
    """log loss = offset + slope log C on a span of log C; one FLOP a token, so that log C is log tokens."""
    log_c = np.linspace(*span, 50)
    return SizeCurve(size, 10**rank, 1.0, warmup, 1, log_c, offset + slope * log_c)


# log losses: a 10; b 10 - x; c 12 - 2x; d 16 - 3x. So b beats a from 0 on, c beats b from 2, d beats c from 4.
A, B, C, D = (line(n, i, -i, i * (i - 1) + 10.0, (0.0, 8.0)) for i, n in enumerate("abcd"))
GRID = np.array([-0.2, 0.5, 1.0, 1.9, 2.1, 3.0, 3.9, 4.1, 5.0, 7.0, 8.5])


def curve_of(source: SizeCurve, end: float, warmup: int = 0) -> SizeCurve:
    keep = source.log_c <= end
    return SizeCurve(source.size, source.n_params, 1.0, warmup, 1, source.log_c[keep], source.log_loss[keep])


def owners(curves: list[SizeCurve], grid: np.ndarray) -> str:
    envelope = extract(curves, grid)
    pairs = zip(envelope.owner[0], envelope.code[0], strict=True)
    return "".join(curves[k].size if code != UNCOVERED else "." for k, code in pairs)


def test_owners_of_four_crossing_lines() -> None:
    assert owners([A, B, C, D], GRID) == ".bbbcccddd."
    envelope = extract([A, B, C, D], GRID)
    assert envelope.log_loss[0, 2] == 10 - GRID[2]
    assert np.isinf(envelope.log_loss[0, 0])
    assert envelope.code[0].tolist() == [UNCOVERED, 0, 0, 0, 0, 0, 0, LARGEST, LARGEST, LARGEST, UNCOVERED]


def test_smallest_is_censored() -> None:
    envelope = extract([B, C, D], np.array([1.0, 3.0]))
    assert envelope.code[0].tolist() == [SMALLEST, 0]


def test_warm_up_is_censored() -> None:
    warm = curve_of(B, 8.0, warmup=round(np.exp(1.5)))
    assert extract([A, warm, C, D], np.array([1.0, 1.9])).code[0].tolist() == [WARMUP, 0]


def test_a_smaller_size_still_ahead_at_its_end_censors_what_follows() -> None:
    grid = np.array([1.0, 1.8, 2.5, 3.5])
    short = [A, curve_of(B, 1.5), C, D]  # b ends before c overtakes it at 2
    assert owners(short, grid) == "bccc"
    assert extract(short, grid).code[0].tolist() == [0, ENDED, ENDED, ENDED]
    long = [A, curve_of(B, 2.4), C, D]  # overtaken before it ends: what follows is c's own
    assert extract(long, grid).code[0].tolist() == [0, 0, 0, 0]
    # and d's, although b, when it ended, was still ahead of d: c was ahead of b by then, and stays so
    assert extract([*long, line("e", 4, -4, 22.0, (0.0, 8.0))], np.array([4.5, 5.5])).code[0].tolist() == [0, 0]


def test_a_point_without_the_next_larger_curve_is_censored() -> None:
    """c owns from 2 to 4; where d has ended, or not begun, d might have been ahead."""
    grid = np.array([1.0, 2.5, 3.0, 3.5])
    ended = [A, B, C, curve_of(D, 2.9)]
    assert owners(ended, grid) == "bccc"
    assert extract(ended, grid).code[0].tolist() == [0, 0, UNRIVALLED, UNRIVALLED]
    late = SizeCurve(D.size, D.n_params, 1.0, 0, 1, D.log_c[D.log_c > 3.2], D.log_loss[D.log_c > 3.2])
    assert extract([A, B, C, late], grid).code[0].tolist() == [0, UNRIVALLED, UNRIVALLED, 0]


def test_a_stretch_is_two_neighbouring_points() -> None:
    assert owns_stretch(extract([A, B, C, D], GRID), 4).tolist() == [[False, True, True, False]]
    assert owns_stretch(extract([A, B, C, D], np.array([1.0, 1.9, 3.0, 5.0])), 4).tolist() == [[0, 1, 0, 0]]


def test_shifts_move_owners() -> None:
    shifts = np.array([[0.0, 0.0, 0.0, 0.0], [0.0, -5.0, 0.0, 0.0]])
    envelope = extract([A, B, C, D], np.array([3.0]), shifts)
    assert envelope.owner[:, 0].tolist() == [2, 1]
    assert np.allclose(envelope.log_loss[:, 0], [6.0, 2.0])


def test_seeds_are_averaged_where_all_are() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0])
    at, mean = average_seeds([(x, x), (x[1:], 3 * x[1:]), (x[:3], 2 * x[:3])])
    assert at.tolist() == [1.0, 2.0]
    assert mean.tolist() == [2.0, 4.0]
