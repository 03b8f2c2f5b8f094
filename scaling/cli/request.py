"""The study that a command works on, and which of its runs. Every stage takes a request."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

from arch.amounts import counted
from arch.errors import FULL, InputError

from ..rundir.directory import RunDir, clean_unfinished
from ..rundir.lock import study_lock
from ..rundir.prepare import changed_code, count_again
from ..rundir.worklist import check_damage, check_runs, mark_for_repair
from ..study.rates import Lock, resolve
from ..study.run import RunSpec
from ..study.spec import StudySpec

REMEDIES = {
    **dict.fromkeys(FULL, "free some space"),
    errno.EACCES: "make it yours to write, or give another --out",
    errno.EROFS: "give another --out",
}


@dataclass(frozen=True)
class Request:
    """What the command line chooses: the study, the runs of it (with or without those of its forecast), where
    lines for people go, and whether runs whose files are damaged are trained again."""

    study: StudySpec
    only: str | None = None
    stream: TextIO = sys.stdout
    forecast: bool = True
    repair: bool = False

    @cached_property
    def lock(self) -> Lock:
        """Where the study's runs find the learning rates of the laws that they follow."""
        return Lock(self.study)

    @cached_property
    def runs(self) -> list[RunSpec]:
        """The chosen runs, at the rates that the lock gives."""
        runs = self.study.all_runs(self.only) if self.forecast else self.study.runs(self.only)
        return resolve(runs, self.lock)

    @cached_property
    def whole_grid(self) -> list[RunSpec]:
        """All runs of the study's grid, whatever --only says."""
        return resolve(self.study.runs(), self.lock)

    def forecast_runs(self, round: int | None = None) -> list[RunSpec]:
        """All runs of a round of the study's forecast, or of the whole forecast, whatever --only says."""
        return resolve(self.study.forecast_runs(round), self.lock)

    @property
    def corpus_directory(self) -> Path:
        return self.study.directory / "corpus"

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def rundir(self, run: RunSpec) -> RunDir:
        return RunDir(self.study.run_directory(run))

    @contextmanager
    def writing(self, rates: bool = True) -> Iterator[None]:
        """Alone in the study's directory, and only where no run of another spec is in the way.

        What a kill left unfinished there is removed first. rates: every run must have its learning rate; the corpus
        needs none, and fit and report take runs at the rates that they had.
        """
        if rates:
            self.check_rates()
        self.check_runs(rates)
        with study_lock(self.study.directory):
            try:
                clean_unfinished(self.study.directory)
                if line := count_again(self.study.directory):
                    self.say(line)
                for line in mark_for_repair(map(self.rundir, self.runs)) if self.repair else ():
                    self.say(line)
                yield
            except OSError as error:
                remedy = REMEDIES.get(error.errno or 0)
                if remedy is None:
                    raise
                raise InputError(
                    f"{error.filename or self.study.directory}: {error.strerror}: {remedy} and run it again "
                    f"(complete files are kept, the write that failed left nothing)"
                ) from None

    def check_rates(self) -> None:
        """Raise InputError where runs follow a law that the study's own sweep has not given yet. Forecast runs do not
        count: they are left out of what is trained (forecast.Waiting)."""
        pending = [run for run in self.runs if run.is_pending and not run.is_forecast]
        if pending:
            rate = min((run.rate for run in pending if run.rate), key=lambda rate: rate.swept)
            have = counted(len(pending), "run has", "runs have")
            message = f"{have} no learning rate yet (training.lr: law): {rate.pending}"
            raise InputError(message if rate.swept else f"{message}: `scaling sweep {self.study.path}` first")

    def check_runs(self, weights: bool = True) -> None:
        """Raise OtherRun, which names all of them, where directories of runs were written for other specs, and
        InputError where runs are damaged and are not to be repaired; weights: of worklist.damage_of. Warn once where
        the code of plugins is another now."""
        check_runs([(self.rundir(run), run) for run in self.runs])
        if not self.repair:
            check_damage(map(self.rundir, self.runs), weights)
        _ = self._warns_of_code

    @cached_property
    def _warns_of_code(self) -> bool:
        lines = changed_code((run, self.rundir(run)) for run in self.runs)
        for line in lines:
            print(f"warning: {line}", file=sys.stderr, flush=True)
        return bool(lines)
