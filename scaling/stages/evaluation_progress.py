"""Watching a matrix being evaluated: what is done, what failed, and when the rest will be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flops.tables import duration

from ..study.cost import expected_work

if TYPE_CHECKING:
    from analysis.evals.matrix import Pair

NAMED = 3  # evaluations that the line tells about


class EvalProgress:
    """open: pairs without a result; done: the new results; failed: why. A pair is expected to take what its task took
    elsewhere, by the cost of the model's tokens."""

    def __init__(self, missing: Sequence[Pair], attempt: str, workers: int) -> None:
        self.open = list(missing)
        self.done: dict[Pair, dict[str, Any]] = {}
        self.failed: dict[Pair, str] = {}
        self._attempt, self._workers = attempt, workers
        self._total = len(self.open)
        self._begun = time.monotonic()
        runs = {pair.checkpoint.run.run_id: pair.checkpoint.run for pair in missing}
        self._work = {run_id: expected_work(run) / run.n_tokens for run_id, run in runs.items()}

    def refresh(self) -> None:
        """Look for new results and failures."""
        left = []
        for pair in self.open:
            if (result := pair.stored()) is not None:
                self.done[pair] = result
            elif (reason := pair.failed(self._attempt)) is not None:
                self.failed[pair] = reason
            else:
                left.append(pair)
        self.open = left

    def line(self) -> str:
        """One line for people: counts, time left, what the workers are at."""
        from analysis.claims import progress_of

        self.refresh()
        now = [(pair, progress_of(pair.checkpoint.results, pair.task.name)) for pair in self.open]
        shares = {pair: said["share"] for pair, said in now if said}
        text = f"eval: {len(self.done)}/{self._total} done"
        text += f", {len(self.failed)} failed" if self.failed else ""
        left = self.left_s(shares)
        so_far = time.monotonic() - self._begun
        text += f", {duration(round(left))} left" if left is not None else f", {duration(round(so_far))} so far"
        at = [f"{pair.name} {share:.0%}" for pair, share in list(shares.items())[:NAMED]]
        return f"{text}; {'; '.join(at)}" if at else text

    def left_s(self, shares: dict[Pair, float]) -> float | None:
        """Seconds to the end; None before anything is done."""
        if not self.done:
            return None
        pace: dict[str, list[float]] = {}
        for pair, result in self.done.items():
            took = result["seconds"] + result["setup_seconds"]
            pace.setdefault(pair.task.name, []).append(took / self._work[pair.checkpoint.run.run_id])
        means = {task: sum(paces) / len(paces) for task, paces in pace.items()}
        typical = sum(means.values()) / len(means)
        left = sum(
            means.get(pair.task.name, typical) * self._work[pair.checkpoint.run.run_id] * (1 - shares.get(pair, 0.0))
            for pair in self.open
        )
        return left / min(self._workers, max(1, len(self.open)))
