"""A study's runs as curves: the loss of each along its tokens, which runs are seeds of each other, one curve a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.fits.envelope.extract import SizeCurve, average_seeds
from analysis.fits.noise import Group
from analysis.fits.points import COPIED
from analysis.fits.pooling import SeedNoises
from analysis.fits.replicates import SAME_D, alike
from analysis.fits.settings import FitSettings
from analysis.fits.smooth import read_at, smooth
from analysis.labels import arch_of
from analysis.runs import Tables
from arch.errors import InputError

NOISE_STEP = 0.05  # log C between the points at which seeds are compared
ENDS_EARLY = "runs of its size train on more tokens"
OTHER_RECIPE = "runs of its size by another recipe end lower"
SAME_SEED = "a run of the same recipe has the same seed"


def smoothed(tables: Tables, settings: FitSettings, run_id: str) -> tuple[np.ndarray, np.ndarray]:
    """One run's curve as the fits read it: tokens [n] and loss [n] in nats a token, of the phase that settings name
    (analysis.fits.phases), so that nothing of another enters a mean; of a mean over runs (analysis.fits.grouping) the
    mean of their log loss at equal tokens."""
    if members := (tables.told or {}).get("means", {}).get(run_id):
        log_tokens, log_loss = mean_curve([logs(*smoothed(tables, settings, one)) for one in members])
        return np.exp(log_tokens), np.exp(log_loss)
    source = tables.evals if settings.loss == "validation" else tables.curves
    rows = source[source["run_id"] == run_id].sort_values("n_tokens")
    if settings.phase is not None and "phase" in rows:
        rows = rows[rows["phase"] == settings.phase]
    tokens, loss = rows["n_tokens"].to_numpy(dtype=float), rows["loss"].to_numpy(dtype=float)
    if settings.loss == "validation":
        return tokens, loss
    if settings.control == "bigram":
        if "difficulty" not in rows:
            raise InputError('these tables have no column `difficulty`: load_tables(.., control="bigram") adds it')
        loss = loss - rows["difficulty"].to_numpy(dtype=float)
    return smooth(tokens, loss, settings.smoothing_tokens, settings.smoothing_fraction)


def mean_curve(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Log tokens and mean log loss of several curves where all have both; of single points, as of decayed runs, that
    lie at the same tokens but for the rounding to batches, the mean at the fewest."""
    ends = [float(log_tokens[-1]) for log_tokens, _ in curves if len(log_tokens) == 1]
    if len(ends) == len(curves) > 1 and max(ends) - min(ends) < SAME_D:
        return np.array([min(ends)]), np.array([np.mean([log_loss[-1] for _, log_loss in curves])])
    return average_seeds(curves)


def logs(tokens: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log tokens and log loss of a curve."""
    return np.log(tokens), np.log(loss)


@dataclass(frozen=True)
class Run:
    """A run that is done and long enough: its row of the table of runs, log tokens and log loss."""

    row: Any
    log_tokens: np.ndarray
    log_loss: np.ndarray

    @property
    def name(self) -> str:
        return str(self.row.run_id)

    @property
    def trunk(self) -> str:
        """The run that it was branched from, where the table of runs has a column of it; itself."""
        return str(getattr(self.row, "trunk", None) or self.name)


Trunk = list[Run]  # its branches, most often one


@dataclass(frozen=True)
class Size:
    """The runs of one size of one architecture. sets: groups of trunks that are seeds of each other, the last of which
    stands for the size; left_out: of the others, {run id: why}."""

    sets: list[list[Trunk]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def trunks(self) -> list[Trunk]:
        return self.sets[-1]

    @property
    def runs(self) -> list[Run]:
        """Those that the size's curve is made of."""
        return [run for trunk in self.trunks for run in trunk]

    def unpaired(self) -> list[str]:
        """Of a size with several runs, those that are no seeds of others."""
        paired = {run.name for one in self.sets if len(one) > 1 for trunk in one for run in trunk}
        names = [run.name for one in self.sets for trunk in one for run in trunk]
        every = dict.fromkeys([*names, *self.left_out])
        return [name for name in every if name not in paired] if len(every) > 1 else []


Sizes = dict[str, Size]  # by name


def run_curves(tables: Tables, settings: FitSettings) -> dict[str, Sizes]:
    """By group (of tables that are grouped), the runs of its sizes. A run that another one repeats, to the last bit or
    by its recipe and seed, is left out."""
    found: dict[str, dict[str, list[Run]]] = {}
    for row in tables.runs.itertuples():
        if row.state != "done" or row.left_out:
            continue
        tokens, loss = smoothed(tables, settings, str(row.run_id))
        if len(tokens) > 1:
            run = Run(row, *logs(tokens, loss))
            found.setdefault(str(row.group), {}).setdefault(str(row.size), []).append(run)
    return {group: {size: size_of(runs) for size, runs in sizes.items()} for group, sizes in found.items()}


def size_of(runs: list[Run]) -> Size:
    """The runs of one size by what they are to each other."""
    left: dict[str, str] = {}
    numbers: set[bytes] = set()
    seeds: dict[tuple[str, int, str], str] = {}
    trunks: dict[str, list[Run]] = {}
    for run in runs:
        content = run.log_tokens.tobytes() + run.log_loss.tobytes()
        if content in numbers:
            left[run.name] = COPIED
            continue
        numbers.add(content)
        # branches of one trunk share its seed
        own = str(run.row.recipe), int(run.row.seed), "" if run.trunk == run.name else run.trunk
        if own in seeds and run.trunk == run.name:
            left[run.name] = SAME_SEED
            continue
        seeds[own] = run.name
        trunks.setdefault(run.trunk, []).append(run)
    whole = []
    for branches in trunks.values():
        groups = _alike([[run] for run in branches])
        whole.append([trunk[0] for trunk in groups[-1]])
        left |= {trunk[0].name: ENDS_EARLY for group in groups[:-1] for trunk in group}
    sets = _alike(whole)
    farthest = max(run.log_tokens[-1] for trunk in sets[-1] for run in trunk)
    for trunk in (trunk for one in sets[:-1] for trunk in one):
        for run in trunk:
            left[run.name] = ENDS_EARLY if run.log_tokens[-1] < farthest - 0.02 else OTHER_RECIPE
    return Size(sets, left)


def size_curves(sizes: Sizes, convention: str, settings: FitSettings) -> list[SizeCurve]:
    """The curves of one architecture over compute, smallest size first, seeds averaged; none under a convention that
    does not cover it."""
    curves = []
    for name, size in sizes.items():
        row = size.runs[0].row
        per_token = float(getattr(row, f"flops_per_token_{convention}"))
        if np.isnan(per_token):
            continue
        log_tokens, log_loss = average_seeds([_curve(trunk) for trunk in size.trunks])
        if len(log_tokens) > 1:
            n_params, warmup = int(row.n_params_non_embedding), settings.settled_after(int(row.warmup_tokens))
            log_c = log_tokens + np.log(per_token)
            curves.append(SizeCurve(name, n_params, per_token, warmup, len(size.trunks), log_c, log_loss))
    return sorted(curves, key=lambda curve: curve.n_params)


def seed_noises(groups: dict[str, Sizes], settings: FitSettings) -> SeedNoises:
    """Noise between seeds of each other, after warm-up and inside the architecture's range."""
    found: list[Group] = []
    for arch, sizes in groups.items():
        for name, size in sizes.items():
            for trunks in size.sets:
                row = trunks[0][0].row
                own = np.log(float(getattr(row, f"flops_per_token_{settings.range_convention}")))
                low, high = (np.log(v) for v in settings.range.get(arch_of(arch), (1e-300, 1e300)))
                warm = np.log(max(settings.settled_after(int(row.warmup_tokens)), 1))
                curves = [_curve(trunk) for trunk in trunks]
                start = max(low - own, warm, *(tokens[0] for tokens, _ in curves))
                end = min(high - own, *(tokens[-1] for tokens, _ in curves))
                if len(trunks) > 1 and start < end:
                    at = np.arange(start, end, NOISE_STEP)
                    names = tuple(run.name for trunk in trunks for run in trunk)
                    table = np.stack([read_at(*curve, at) for curve in curves])
                    read = tuple(_batches(trunk[0].row) for trunk in trunks)
                    found.append(Group(arch, name, table, names, read, at))
    return SeedNoises(tuple(found), NOISE_STEP)


def _batches(row: Any) -> str:
    """What decides the text that a run reads, in its order (data/loader.py), up to any number of tokens."""
    target = getattr(row, "target_tokens", None)
    share = f", {row.planned_tokens} of {target}" if target and target == target else ""
    return f"{row.corpus_fingerprint}, {row.context_length}, {row.seed}{share}"


def not_paired(groups: dict[str, Sizes]) -> list[dict[str, Any]]:
    """Of each size that has several runs, those that are no seeds of the others."""
    told = [(arch, name, size.unpaired()) for arch, sizes in groups.items() for name, size in sizes.items()]
    return [{"arch": arch, "size": name, "runs": runs} for arch, name, runs in told if runs]


def _alike(trunks: list[Trunk]) -> list[list[Trunk]]:
    groups = alike(
        [str(trunk[0].row.recipe) for trunk in trunks],
        [float(np.exp(max(run.log_tokens[-1] for run in trunk))) for trunk in trunks],
        [float(np.mean([run.log_loss[-1] for run in trunk])) for trunk in trunks],
    )
    return [[trunks[i] for i in group] for group in groups]


def _curve(trunk: Trunk) -> tuple[np.ndarray, np.ndarray]:
    """Log tokens and log loss, of branches the mean."""
    return average_seeds([(run.log_tokens, run.log_loss) for run in trunk])
