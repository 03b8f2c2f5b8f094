"""How a batch splits over the processes of a run and into micro-batches: the trainer's rule, and every estimate's."""

from __future__ import annotations

from dataclasses import dataclass

from .training import Training


@dataclass(frozen=True)
class BatchSplit:
    """A batch of `rows` sequences on `processes` processes, `micro_rows` at most in one forward and backward pass."""

    rows: int
    processes: int
    micro_rows: int

    @property
    def process_rows(self) -> int:
        """Sequences of one process; of the one that has most, where they do not split evenly."""
        return -(-self.rows // self.processes)

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step on one process: gradients are accumulated where it is more than one."""
        return -(-self.process_rows // self.micro_rows)

    @property
    def is_even(self) -> bool:
        """Whether every process has the same number of whole micro-batches, as the trainer asks for."""
        return self.micro_rows > 0 and self.rows % (self.processes * self.micro_rows) == 0


def split_batch(training: Training, context_length: int, processes: int, rows: int | None = None) -> BatchSplit:
    """The split of a batch of `rows` sequences, by default those of training.batch_tokens. Without micro_batch_tokens,
    and where a process has fewer sequences than that, one pass takes all that the process has."""
    rows = training.batch_tokens // context_length if rows is None else rows
    process_rows = -(-rows // processes)
    micro = training.micro_batch_tokens
    return BatchSplit(rows, processes, process_rows if micro is None else min(process_rows, micro // context_length))
