"""Pathfinder: paths follow the rules, dots stand where the class says, and images have the published sizes."""

import numpy as np
import pytest

from data.pathfinder import N_DASHES, PATH_X, PATHFINDER, Dashes, Images, examples
from data.synthetic import Draws

N = 40


@pytest.fixture(scope="module", params=[(PATHFINDER, 1), (PATH_X, 3)], ids=["pathfinder", "path-x"])
def made(request):
    """Rules, margin, their images, and the long paths that these draw first."""
    rules, margin = request.param
    images = Images(rules, margin)
    return rules, margin, images, *images.long_paths(N, Draws(1))


def pixels(images: Images, places: np.ndarray) -> np.ndarray:
    """Row and column of places, in the image without its border."""
    return np.stack(np.divmod(places, images.width), axis=-1) - images.border


def test_dashes_follow_each_other_by_the_rules(made):
    rules, margin, images, taken, paths = made
    for i, path in enumerate(paths):
        heads, tails = (pixels(images, path.heads - places) for places in (0, images.dash[path.directions]))
        assert heads.shape == (N, N_DASHES, 2) and heads.min() >= 1 and heads.max() < rules.size - 1
        assert np.allclose(np.linalg.norm(heads - tails, axis=-1), rules.dash, atol=0.75)
        gaps = np.linalg.norm(tails[:, 1:] - heads[:, :-1], axis=-1)
        assert gaps.min() >= margin and abs(gaps.mean() - 2 * margin) < 0.5
        turns = np.angle(np.exp(1j * np.diff(images.angles[path.directions], axis=1)))
        assert np.abs(turns).max() <= np.pi / 2 / rules.continuity and abs(turns.mean()) < 0.05
        # no dash lies on another, but at joints of its own path
        number = 1 + i * N_DASHES + np.arange(N_DASHES)
        at_heads = taken[np.arange(N)[:, None], path.heads]
        assert ((at_heads == number) | (at_heads == number + 1)).all()
    distance = np.linalg.norm(np.subtract(*(pixels(images, images.tails(path)) for path in paths)), axis=-1)
    assert np.allclose(distance, rules.seed_distance, atol=1)


def test_the_class_says_whether_both_dots_end_one_path(made):
    rules, _, images, _, paths = made
    drawn, classes = images.drawn(N, Draws(1))
    grey = drawn.reshape(N, rules.size, rules.size)
    radius = int(rules.dot_radius)
    near = np.argwhere(np.hypot(*np.mgrid[-radius : radius + 1, -radius : radius + 1]) <= rules.dot_radius - 1) - radius

    def is_dot(places: np.ndarray) -> np.ndarray:
        rows, columns = np.clip(np.moveaxis(pixels(images, places)[:, None] + near, -1, 0), 0, rules.size - 1)
        return (grey[np.arange(N)[:, None], rows, columns] == 255).all(axis=1)

    starts, ends = ([is_dot(places) for places in (f(paths[0]), f(paths[1]))] for f in (images.tails, last_heads))
    connected, apart = ([starts[0] & ends[0], starts[1] & ends[1]], [starts[0] & ends[1], starts[1] & ends[0]])
    assert np.where(classes == 1, np.any(connected, axis=0), np.any(apart, axis=0)).all()
    seen = np.add.reduce([*starts, *ends])
    assert (seen >= 2).all() and (seen == 2).mean() > 0.8  # other ends can lie under a dot, or be white themselves


def last_heads(path: Dashes) -> np.ndarray:
    return path.heads[:, -1]


def test_images_have_the_published_sizes_and_balanced_classes():
    """Path-X's: test_arena.py."""
    rules, n = PATHFINDER, 300
    drawn, classes = examples(rules, 0, n, 0)
    assert drawn.shape == (n, rules.size**2) and drawn.dtype == np.uint8 and set(classes.tolist()) == {0, 1}
    assert abs(classes.mean() - 0.5) < 1.5 / n**0.5
    assert (drawn.max(axis=1) == 255).all() and 0.2 < (drawn > 0).mean() < 0.25
    edge = drawn.reshape(n, rules.size, rules.size).copy()
    edge[:, 1:-1, 1:-1] = 0
    assert (edge > 0).mean() < 0.01
    assert len({image.tobytes() for image in drawn}) == n
    # a bag of pixels does not say the class: images of both have equally much ink
    ink = drawn.mean(axis=1)
    assert abs(ink[classes == 1].mean() - ink[classes == 0].mean()) < 3 * ink.std() * 2 / n**0.5


def test_images_follow_from_the_seed():
    """The same of one: test_arena.py."""
    assert not np.array_equal(*(examples(PATHFINDER, seed, 1, 7)[0] for seed in (4, 5)))
