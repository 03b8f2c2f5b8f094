"""What a link is fitted to: a task's scores of checkpoints beside their loss and compute, on one scale."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace

import numpy as np

from analysis.scales import ACCURACY, PERPLEXITY, Scale
from arch.errors import InputError

SHOWN = 5  # row numbers that a message lists
LOSS, COMPUTE = "loss", "compute"


@dataclass(frozen=True)
class Scores:
    """n checkpoints of one architecture that a task was asked of; every array has one value a checkpoint.

    Raises InputError, with row numbers, for a loss, compute or perplexity that is not positive and finite, for a score
    beyond its scale and for arrays of different lengths. Scores that are not there (NaN) are dropped and counted.
    """

    loss: np.ndarray  # nats a token
    flops: np.ndarray  # training FLOP so far
    value: np.ndarray  # as the task gives it
    run: np.ndarray  # checkpoints of one run share its noise
    scale: Scale
    error: np.ndarray = field(default_factory=lambda: np.array([]))  # standard error of `value`, NaN where not known
    row: np.ndarray = field(default_factory=lambda: np.array([]))
    task: str = ""
    group: str = ""  # the architecture
    n_missing: int = 0  # scores that were not there
    convention: str = "6nd"  # of flops

    def __post_init__(self) -> None:
        n = len(self.value)
        if not len(self.error):
            object.__setattr__(self, "error", np.full(n, np.nan))
        if not len(self.row):
            object.__setattr__(self, "row", np.arange(1, n + 1))
        for name in ("loss", "flops", "value", "error"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=float))
        object.__setattr__(self, "run", np.asarray(self.run, dtype=object))
        for name in ("loss", "flops", "error", "run", "row"):
            if len(getattr(self, name)) != n:
                raise InputError(f"{self.task}: {name}: {len(getattr(self, name))} values, value has {n}")
        missing = np.isnan(self.value)
        if missing.any():
            kept = self.take(~missing)
            for one in self.arrays():
                object.__setattr__(self, one, getattr(kept, one))
            object.__setattr__(self, "n_missing", self.n_missing + int(missing.sum()))
        for name in ("loss", "flops"):
            found = getattr(self, name)
            self._refuse(name, ~(np.isfinite(found) & (found > 0)), "is not a positive, finite number")
        if self.scale.kind == PERPLEXITY:
            self._refuse("perplexity", ~(np.isfinite(self.value) & (self.value > 1)), "is not above 1 and finite")
        elif self.scale.kind == ACCURACY:
            outside = ~((self.value >= 0) & (self.value <= self.scale.full * (1 + 1e-9)))
            self._refuse("accuracy", outside, f"is not between 0 and {self.scale.full:g}")
        else:
            self._refuse("score", ~np.isfinite(self.value), "is not finite")

    def _refuse(self, name: str, bad: np.ndarray, why: str) -> None:
        if bad.any():
            rows = [str(row) for row in self.row[bad][:SHOWN]]
            more = f" and {bad.sum() - SHOWN} more" if bad.sum() > SHOWN else ""
            what = f"{self.task}: {name}" if self.task else name
            raise InputError(f"{what} {why} in row{'' if bad.sum() == 1 else 's'} {', '.join(rows)}{more}")

    def __len__(self) -> int:
        return len(self.value)

    @classmethod
    def arrays(cls) -> tuple[str, ...]:
        return tuple(one.name for one in fields(cls) if one.type == "np.ndarray")

    def take(self, keep: np.ndarray) -> Scores:
        """The checkpoints of a mask or of indices."""
        return replace(self, **{name: getattr(self, name)[keep] for name in self.arrays()})

    @property
    def n_runs(self) -> int:
        return len(set(self.run.tolist()))

    @property
    def run_number(self) -> np.ndarray:
        """[n]: 0, 1, .. of each checkpoint's run."""
        return np.unique(self.run.astype(str), return_inverse=True)[1]

    @property
    def fitted(self) -> np.ndarray:
        """[n]: what a link is fitted to. Of an accuracy the share above chance, (share - chance) / (1 - chance); of a
        perplexity its logarithm; the score itself, as a share of a full one, otherwise."""
        if self.scale.kind == PERPLEXITY:
            return np.log(self.value)
        return (self.value / self.scale.full - self.scale.chance) / (1 - self.scale.chance)

    @property
    def noise(self) -> np.ndarray:
        """[n]: the standard error of `fitted`, up to one factor; all 1 where the task gives none.

        That of an accuracy of 0 or 1 is 0, as lm-eval computes it, and would outweigh all others. It is computed again
        with two right and two wrong answers more (Agresti and Coull 1998), from the number of questions that the
        other standard errors imply.
        """
        if self.scale.kind == PERPLEXITY:
            found = self.error / self.value
            return found if (np.isfinite(found) & (found > 0)).all() else np.ones(len(self))
        share, error = self.value / self.scale.full, self.error / self.scale.full
        if self.scale.kind == ACCURACY and (known := np.isfinite(error) & (error > 0)).any():
            n = float(np.median(share[known] * (1 - share[known]) / error[known] ** 2))
            added = (share * n + 2) / (n + 4)
            return np.asarray(np.sqrt(added * (1 - added) / n) / (1 - self.scale.chance))
        return np.ones(len(self))

    def order(self, against: str) -> np.ndarray:
        """[n]: the abscissa of a link, which rises as models get better. Against loss -L, of a perplexity -ln L;
        against compute ln C."""
        if against == COMPUTE:
            return np.log(self.flops)
        return -np.log(self.loss) if self.scale.kind == PERPLEXITY else -self.loss

    @property
    def input_hash(self) -> str:
        """Of the numbers, runs and scale, whatever the order of the rows."""
        rows = sorted(
            (*(float(getattr(self, name)[i]).hex() for name in ("loss", "flops", "value", "error")), str(self.run[i]))
            for i in range(len(self))
        )
        return hashlib.sha256(repr((self.scale, self.convention, rows)).encode()).hexdigest()
