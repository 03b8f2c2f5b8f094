"""Pathfinder and Path-X of the Long Range Arena, made from a seed: do two dots end the same dashed path?

An image has two long dashed paths, shorter ones that distract, and two dots: at both ends of one long path (class 1),
or at the beginning of one and the end of the other (class 0). The rules are those of Linsley et al. 2018
(arXiv:1805.08315) and Kim et al. 2020 (arXiv:1906.01558), with the sizes that the arena publishes beside its data
(arXiv:2011.04006): each next dash of a path begins two margins after the last one, and turns by an angle d with a
probability that falls as cos^2(min(continuity d, pi/2)), among the places that other dashes leave free; a path that is
blocked begins again. Here a dash has as many directions as a circle of its length and margin has pixels, and the second
long path begins after the first one is whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from .synthetic import Draws

SUBSAMPLES = 8  # of a pixel each way, to measure the share that is covered
TAKEN_SHARE = 0.9  # of a pixel that a dash with its margin covers: no other dash may take it
WALL = 255  # stands where an image ends, in place of the number of a dash
TURNS = 3  # tried of a dash, before its path fails
PLACES = 32  # tried for the first dash of a path, before it fails
DISTRACTOR_TRIES = 5  # of a short path, before the image does without it
LONG_TRIES = 40  # of a long path, before the image is given up
N_DASHES = 14  # of a long path
N_DISTRACTOR_DASHES = 4


@dataclass(frozen=True)
class Rules:
    """Lengths in pixels; brightness 1 is white, and what is brighter is white too."""

    size: int
    dash: int
    thickness: float
    margins: tuple[int, ...]  # around dashes: equally many images of each
    seed_distance: int  # between the beginnings of the two long paths
    dot_radius: float
    continuity: float
    brightness: float
    distractor_brightness: float
    n_distractors: int


PATHFINDER = Rules(32, 2, 0.5, (1,), 7, 1.5, continuity=1.0, brightness=1.5, distractor_brightness=2.0, n_distractors=5)
PATH_X = Rules(128, 5, 1.5, (2, 3), 20, 3.0, continuity=1.8, brightness=0.9, distractor_brightness=0.9, n_distractors=8)


class Dashes(NamedTuple):
    """Dashes by image, [images] or [images, dashes]: the place of each head and its direction."""

    heads: np.ndarray
    directions: np.ndarray


# the heads and directions, [rows], of the dashes to try in the images of some rows
Proposal = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Images:
    """Images under construction: the tables of one margin. Places are numbers of pixels, row by row, of images with a
    border; a pivot lies one margin before a dash."""

    def __init__(self, rules: Rules, margin: int) -> None:
        self.rules = rules
        reach, radius = rules.dash + margin, rules.dash + margin + math.ceil(rules.thickness)
        self.border = 2 * radius + 1
        self.width = rules.size + 2 * self.border
        self.nowhere = radius * (self.width + 1)  # a place whose dashes are all in the border

        circle = self._circle(reach)
        self.angles = angles = np.arctan2(circle[:, 0], circle[:, 1])
        units = np.stack([np.sin(angles), np.cos(angles)], axis=1)
        turns = np.abs(angles[:, None] - angles)
        falling = np.cos(np.minimum(rules.continuity * np.minimum(turns, 2 * math.pi - turns), math.pi / 2)) ** 2
        weights = np.rint(falling * (1 << 20)).astype(np.int64)
        self.next = np.argsort(-weights, axis=1, kind="stable")[:, : (weights > 0).sum(axis=1).max()]  # directions
        self.weights = np.take_along_axis(weights, self.next, axis=1)  # [directions, next directions]
        self.to_head = self._places(circle)  # from the pivot, [directions]
        self.to_pivot = self._places((rules.dash + 2 * margin) * units)  # from the pivot to the next
        self.dash = self._places(rules.dash * units)  # from tail to head
        self.to_beside = self._places(self._circle(rules.seed_distance))

        grid = np.mgrid[-radius : radius + 1, -radius : radius + 1].reshape(2, -1).T
        fine = (np.mgrid[:SUBSAMPLES, :SUBSAMPLES].reshape(2, -1).T + 0.5) / SUBSAMPLES - 0.5
        points = grid[:, None] + fine  # [patch, subsamples, 2], the head at 0
        along = np.clip(points @ -units.T, 0, rules.dash)  # [patch, subsamples, directions]
        distance = np.linalg.norm(points[:, :, None] + along[..., None] * units, axis=-1)
        ink = (distance <= rules.thickness / 2).mean(axis=1).T
        takes = (distance <= rules.thickness / 2 + margin).mean(axis=1).T >= TAKEN_SHARE
        dot = (np.linalg.norm(points, axis=-1) <= rules.dot_radius).mean(axis=1)
        used = (ink > 0).any(axis=0) | takes.any(axis=0) | (dot > 0)
        self.patch = self._places(grid[used])  # from the head
        self.ink, self.takes, self.dot = ink[:, used], takes[:, used], dot[used]  # [directions, patch], [patch]
        self.near = self._places(grid[(grid**2).sum(axis=1) <= margin**2])

        inside = np.zeros((self.width, self.width), bool)
        inside[self.border : -self.border, self.border : -self.border] = True
        self.inside = np.flatnonzero(inside)
        centre = slice(self.border + 2 * rules.seed_distance, -self.border - 2 * rules.seed_distance)
        self.centre = np.arange(inside.size).reshape(inside.shape)[centre, centre].ravel()
        free = inside.copy()
        free[[self.border, -self.border - 1]] = free[:, [self.border, -self.border - 1]] = False  # one pixel stays dark
        self.empty = np.where(free, 0, WALL).astype(np.uint8).ravel()

    def _circle(self, radius: int) -> np.ndarray:
        """The pixels of a circle, [n, 2]."""
        angles = np.linspace(0, 2 * math.pi, math.ceil(2 * math.pi * radius), endpoint=False)
        return np.unique(np.rint(radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)).astype(np.int64), axis=0)

    def _places(self, offsets: np.ndarray) -> np.ndarray:
        return np.rint(offsets).astype(np.int64) @ (self.width, 1)

    def drawn(self, n: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Pixels, uint8 [n, size * size], and classes, int64 [n]."""
        rules, canvas = self.rules, np.zeros((n, self.width**2), np.uint8)
        taken, long_paths = self.long_paths(n, draws)
        for path in long_paths:
            self._draw(canvas, path, rules.brightness)
        for i in range(rules.n_distractors):
            number = 1 + 2 * N_DASHES + i * N_DISTRACTOR_DASHES
            anywhere = partial(self._from_one_of, self.inside, draws)
            path = self._path(taken, number, N_DISTRACTOR_DASHES, DISTRACTOR_TRIES, anywhere, draws)
            self._draw(canvas, path, rules.distractor_brightness)
        is_same, marked = draws.below(2, n), draws.below(2, n)
        tails = np.choose(marked, [self.tails(path) for path in long_paths])
        ends = np.choose(np.where(is_same, marked, 1 - marked), [path.heads[:, -1] for path in long_paths])
        for place in (tails, ends):
            _lighten(canvas, place[:, None] + self.patch, _grey(self.dot))
        return canvas[:, self.inside], is_same

    def _draw(self, canvas: np.ndarray, path: Dashes, brightness: float) -> None:
        ink = _grey(self.ink * brightness)
        for heads, directions in zip(path.heads.T, path.directions.T, strict=True):
            _lighten(canvas, heads[:, None] + self.patch, ink[directions])

    def long_paths(self, n: int, draws: Draws) -> tuple[np.ndarray, list[Dashes]]:
        """The number of the dash that takes each pixel, [n, width * width], and both paths of n images."""
        made: list[tuple[np.ndarray, ...]] = []
        while sum(len(part[0]) for part in made) < n:
            taken = np.tile(self.empty, (n, 1))
            centre = partial(self._from_one_of, self.centre, draws)
            first = self._path(taken, 1, N_DASHES, LONG_TRIES, centre, draws)
            beside = partial(self._from_beside, self.tails(first), draws)
            second = self._path(taken, 1 + N_DASHES, N_DASHES, LONG_TRIES, beside, draws)
            is_whole = (first.heads[:, -1] != self.nowhere) & (second.heads[:, -1] != self.nowhere)
            made.append(tuple(part[is_whole] for part in (taken, *first, *second)))
        taken, *parts = (np.concatenate(part)[:n] for part in zip(*made, strict=True))
        return taken, [Dashes(*parts[:2]), Dashes(*parts[2:])]

    def tails(self, path: Dashes) -> np.ndarray:
        return path.heads[:, 0] - self.dash[path.directions[:, 0]]

    def _path(self, taken: np.ndarray, number: int, n_dashes: int, tries: int, first: Proposal, draws: Draws) -> Dashes:
        """A path in each image, [images, n_dashes], of dashes numbered from `number`; nowhere where all tries fail.
        first: proposes its first dash."""
        path = Dashes(*(np.full((len(taken), n_dashes), fill) for fill in (self.nowhere, 0)))
        for _ in range(tries):
            rows = tried = np.flatnonzero(path.heads[:, -1] == self.nowhere)
            for i in range(n_dashes):
                propose = partial(self._turned, taken, path, i, number, draws) if i else first
                rows = self._place(taken, path, i, number, rows, propose)
            failed = tried[path.heads[tried, -1] == self.nowhere]
            for i in range(n_dashes):
                places = path.heads[failed, i, None] + self.patch
                before = taken[failed[:, None], places]
                taken[failed[:, None], places] = np.where(before == number + i, 0, before)
            path.heads[failed] = self.nowhere
        return path

    def _place(
        self, taken: np.ndarray, path: Dashes, i: int, number: int, rows: np.ndarray, propose: Proposal
    ) -> np.ndarray:
        """Which of the images `rows` have a dash i now: one whose pixels are free or those of the dash before it."""
        left, tries = rows, PLACES if i == 0 else TURNS
        for _ in range(tries):
            heads, directions = propose(left)
            places, takes = heads[:, None] + self.patch, self.takes[directions]
            before = taken[left[:, None], places]
            is_free = (~takes | (before == 0) | ((before == number + i - 1) & (i > 0))).all(axis=1)
            done = left[is_free]
            taken[done[:, None], places[is_free]] = np.where(takes, number + i, before)[is_free]
            path.heads[done, i], path.directions[done, i] = heads[is_free], directions[is_free]
            left = left[~is_free]
        return rows[path.heads[rows, i] != self.nowhere]

    def _turned(
        self, taken: np.ndarray, path: Dashes, i: int, number: int, draws: Draws, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """A dash i that goes on from dash i - 1."""
        last = path.directions[rows, i - 1]
        pivots = path.heads[rows, i - 1] - self.to_head[last] + self.to_pivot[last]
        heads = pivots[:, None] + self.to_head[self.next[last]]
        near = taken[rows[:, None, None], heads[..., None] + self.near]
        is_free = ((near == 0) | (near == number + i - 1)).all(axis=2)
        ends = (self.weights[last] * is_free).cumsum(axis=1)
        total = ends[:, -1]
        drawn = draws.below(np.maximum(total, 1), len(rows))
        choice = np.arange(len(rows)), np.minimum((ends <= drawn[:, None]).sum(axis=1), ends.shape[1] - 1)
        return np.where(total > 0, heads[choice], self.nowhere), self.next[last][choice]

    def _from_one_of(self, places: np.ndarray, draws: Draws, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._from_tails(places[draws.below(len(places), len(rows))], draws)

    def _from_beside(self, tails: np.ndarray, draws: Draws, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._from_tails(tails[rows] + self.to_beside[draws.below(len(self.to_beside), len(rows))], draws)

    def _from_tails(self, tails: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        directions = draws.below(len(self.dash), len(tails))
        return tails + self.dash[directions], directions


def _grey(share: np.ndarray) -> np.ndarray:
    return np.rint(255 * np.minimum(share, 1)).astype(np.uint8)


def _lighten(canvas: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    rows = np.arange(len(canvas))[:, None]
    canvas[rows, places] = np.maximum(canvas[rows, places], values)


_images = cache(Images)  # by rules and margin


def examples(rules: Rules, seed: int, n: int, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """The n images of part `unit` of a set, uint8 [n, size * size], and their classes, int64 [n]. They depend on the
    arguments alone."""
    draws, n_margins = Draws(seed, unit), len(rules.margins)
    pixels, classes = np.empty((n, rules.size**2), np.uint8), np.empty(n, np.int64)
    for i, margin in enumerate(rules.margins):
        part = slice(i, None, n_margins)
        pixels[part], classes[part] = _images(rules, margin).drawn(len(classes[part]), draws)
    return pixels, classes
