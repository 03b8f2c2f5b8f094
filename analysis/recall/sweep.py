"""A sweep on disk: a file for each training, written whole. Workers share it, and a second start trains what is
missing.

<out>/<name>/cells/<arch>-<length>x<pairs>-d<width>[-e<expand ratio>]-lr<rate>-s<seed>.json
<out>/<name>/recall.json, index.html, figures/recall.png    the table and figure 3, of all that is there
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from analysis.claims import claimed
from arch.config import ModelConfig
from data.files import read_json, write_json

from .recipe import Problem, Run, Sweep, Trial

VERSION = 1  # of the recipe's code: a change makes every stored cell stale
# What decides a cell beside itself; the rest of a sweep chooses among cells.
RECIPE = (
    "n_layers",
    "init_std",
    "vocab_size",
    "rows",
    "warm_up_steps",
    "weight_decay",
    "every",
    "held_out_rows",
    "done",
)


@dataclass(frozen=True)
class Unit:
    """What one worker takes: an architecture on a problem at a width, all its trials and seeds."""

    arch: str
    problem: Problem
    width: int

    @property
    def name(self) -> str:
        return f"{self.arch}-{self.problem.name}-d{self.width}"


@dataclass(frozen=True)
class Outcome:
    """A finished unit: the trials at the first seed, and the runs of the chosen trial by seed."""

    unit: Unit
    sweep: tuple[Run, ...]
    runs: tuple[Run, ...]

    @property
    def accuracy(self) -> float:
        """Mean over the seeds."""
        return sum(run.accuracy for run in self.runs) / len(self.runs)


def units(sweep: Sweep) -> list[Unit]:
    """All units, the cheapest first, so that the figure shows something early."""
    ordered = sorted(sweep.problems, key=lambda problem: problem.length)
    return [Unit(arch, problem, width) for problem in ordered for width in sweep.widths for arch in sweep.archs]


def cell_path(directory: Path, unit: Unit, trial: Trial, seed: int) -> Path:
    ratio = "" if trial.ratio is None else f"-e{trial.ratio}"
    return directory / "cells" / f"{unit.name}{ratio}-lr{trial.rate:g}-s{seed}.json"


def cell_key(sweep: Sweep, unit: Unit, trial: Trial, seed: int) -> str:
    """16 hex digits over everything that decides a training."""
    parts = {name: getattr(sweep, name) for name in RECIPE}
    model = sweep.config(unit.arch, unit.problem, unit.width, trial.ratio).identity()
    cell = [VERSION, model, unit.problem.length, unit.problem.pairs, sweep.steps_of(unit.arch), trial.rate, seed]
    return hashlib.sha256(json.dumps([parts, cell], sort_keys=True).encode()).hexdigest()[:16]


def stored(sweep: Sweep, directory: Path, unit: Unit, trial: Trial, seed: int) -> Run | None:
    """The stored training, None where there is none of this recipe."""
    try:
        cell = read_json(cell_path(directory, unit, trial, seed))
        if cell["key"] != cell_key(sweep, unit, trial, seed):
            return None
        curve = tuple((step, accuracy) for step, accuracy in cell["curve"])
        return Run(cell["rate"], cell["seed"], curve, cell["seconds"], trial.ratio)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def settle(sweep: Sweep, unit: Unit, run: Callable[[Trial, int], Run | None]) -> Outcome | None:
    """The rule that chooses a trial. run(trial, seed) trains or reads a training; where it returns None, so does this.

    Trials in order at the first seed; with `stop` the first that solves ends them; the best final accuracy counts.
    """
    tried: list[Run] = []
    for trial in sweep.trials(unit.arch, unit.width):
        trained = run(trial, sweep.seeds[0])
        if trained is None:
            return None
        tried.append(trained)
        if sweep.stop and trained.accuracy >= sweep.solved:
            break
    best = max(tried, key=lambda training: training.accuracy)
    others = [run(best.trial, seed) for seed in sweep.seeds[1:]]
    if None in others:
        return None
    return Outcome(unit, tuple(tried), (best, *(other for other in others if other is not None)))


def outcomes(sweep: Sweep, directory: Path) -> dict[Unit, Outcome | None]:
    """The outcome of every unit, None where trainings are missing."""

    return {unit: settle(sweep, unit, partial(stored, sweep, directory, unit)) for unit in units(sweep)}


def missing(sweep: Sweep, directory: Path) -> Iterator[tuple[ModelConfig, int]]:
    """The model and the steps of each training that is not stored, at most: trials may be spared by one that solves,
    and steps by one that is done. Seeds after the first, whose trial is not chosen yet, count as of the first trial."""
    for unit, outcome in outcomes(sweep, directory).items():
        if outcome is not None:
            continue
        trials = sweep.trials(unit.arch, unit.width)
        left = [trial for trial in trials if stored(sweep, directory, unit, trial, sweep.seeds[0]) is None]
        for trial in [*left, *[trials[0]] * (len(sweep.seeds) - 1)]:
            yield sweep.config(unit.arch, unit.problem, unit.width, trial.ratio), sweep.steps_of(unit.arch)


def work(sweep: Sweep, directory: Path, device: str, say: Callable[[str], None]) -> None:
    """Train the units that are missing and that no other worker has claimed. Several processes may work at once."""
    from .training import train  # torch

    for unit in units(sweep):
        if settle(sweep, unit, partial(stored, sweep, directory, unit)) is not None:
            continue
        with claimed(directory / "cells", unit.name) as is_ours:

            def run(trial: Trial, seed: int, unit: Unit = unit) -> Run:
                trained = stored(sweep, directory, unit, trial, seed)
                if trained is None:
                    trained = train(sweep, unit.arch, unit.problem, unit.width, trial, seed, device=device)
                    _store(sweep, directory, unit, trained)
                    say(f"{unit.name} rate {trial} seed {seed}: {trained.accuracy:.3f}, {trained.seconds:.0f} s")
                return trained

            if is_ours:
                settle(sweep, unit, run)


def _store(sweep: Sweep, directory: Path, unit: Unit, run: Run) -> None:
    path = cell_path(directory, unit, run.trial, run.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    cell = {"arch": unit.arch, "length": unit.problem.length, "pairs": unit.problem.pairs, "width": unit.width}
    content = {"key": cell_key(sweep, unit, run.trial, run.seed), **cell, **asdict(run)}
    write_json(path, content, kind="eval")
