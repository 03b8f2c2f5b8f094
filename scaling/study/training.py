"""The sections `training` and `overrides` of a study file, and how a batch splits over processes.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from .model_section import ModelChanges, ModelSection
from .schedule import SCHEDULES
from .types import (
    Amount,
    AmountOrNone,
    Arch,
    Betas,
    BranchPoints,
    Count,
    FilePath,
    Flag,
    Index,
    Number,
    Parallel,
    Positive,
    Rate,
    RunKey,
    Section,
    Size,
    TokenCounts,
    Tokens,
)

if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[tuple(SCHEDULES)]


class Training(Section):
    """How a run is trained."""

    n_tokens: Tokens | None = None
    """Tokens a run trains on, rounded up to whole batches; a multiple of its parameters without embeddings, such as
    `20N`; or its training compute by the convention `exact`, such as `2e14 FLOP`, over what a token costs the model:
    then architectures have equal compute, not equal tokens. Required, here or in `overrides`."""
    max_tokens: Amount | None = None
    """A cap on `n_tokens` and `branches`, for multiples of parameters; branches that it makes equal are one."""
    batch_tokens: Count = 2048
    """Tokens of one optimizer step: a whole number of sequences of `model.context_length`."""
    micro_batch_tokens: Count | None = None
    """Tokens of one forward pass of one process; null takes the process's whole share of the batch."""
    lr: Rate = 3e-4
    """Learning rate at the end of a linear warm-up; `schedule` says what follows. `law`: the rate of the law file
    for the run's architecture, size, tokens and batch."""
    lr_law: FilePath | None = None
    """With `lr: law`: the law file of a sweep (docs/rates.md); a relative path counts from the study file's folder."""
    lr_law_beyond: Annotated[Number, Field(ge=1)] = 10.0
    """With `lr: law`: the largest factor by which the size, tokens or batch of a run may lie outside of the sweep."""
    warmup_tokens: AmountOrNone = 0
    """Tokens over which the learning rate rises from zero."""
    schedule: Name = "constant"
    """What the learning rate does after the warm-up: nothing; half a cosine down to its end; `wsd`: nothing, then a
    fall over the last `decay_fraction` of the tokens; `inverse_sqrt`: falls as 1 over the root of the tokens."""
    decay_fraction: Annotated[Number, Field(gt=0, le=1)] = 0.2
    """Of schedule `wsd`: the share of the run's tokens over which the rate falls."""
    decay_shape: Literal["linear", "sqrt"] = "linear"
    """Of schedule `wsd`: a line, or 1 - sqrt, which fell slightly lower in Hägele et al. 2024."""
    final_lr_fraction: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    """Of schedules `cosine` and `wsd`: the rate of the last step, as a share of `lr`."""
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    """`adam`: AdamW, but with weight decay added to the gradient (L2), so that the averages see it. `muon`: hidden
    layers' projections and MLPs by Muon, whose steps are as large as AdamW's; embeddings, head, norms, convolutions,
    gates of low rank and fused projections by AdamW, not with `zero_stage`."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    """Weight decay; biases, norms and other vectors have none."""
    betas: Betas = [0.9, 0.95]
    """The two decay rates of AdamW's averages."""
    min_steps: Count | None = None
    """Halve `batch_tokens` until the run has this many steps, as long as every process keeps whole sequences: small
    models want small batches (1M parameters on 20 tokens each make 305 steps of 65,536)."""
    beta2_batch_tokens: Count | None = None
    """The batch that the second of `betas` is stated for; a run of another batch takes
    clip(beta2^(batch / this), 0.9, 0.9999), which averages over the same number of tokens."""
    eps: Positive = 1e-8
    """The term that AdamW adds to the root of the second average."""
    grad_clip: Annotated[Number, Field(ge=0)] = 1.0
    """Largest norm of the gradient; 0 turns clipping off. A step whose gradient is not finite is skipped and counted,
    whatever this is; five in a row end the run."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` runs autocast over fp32 parameters; `fp32` runs without autocast."""
    zero_stage: Annotated[Index, Field(le=3)] = 0
    """DeepSpeed's ZeRO stage: 0 shares nothing, 1 the optimizer's state, 2 the gradients too, 3 the parameters too."""
    threads: Parallel = 1
    """CPU threads of each process; the number changes rounding, so it is part of the run. As many further processes
    draw augmented images, from 2 on."""
    max_steps: Count | None = None
    """Stop after this many steps, for trials."""
    log_every: Count = 1
    """Write a row of `metrics.jsonl` after this many steps each time; at most the run's number of steps."""
    reset_at_documents: Flag = False
    """Read each document of a packed sequence as if alone, in every architecture: the end-of-text token before it is
    its first, and nothing from before that is seen by attention, state, convolution or positions. Every token stays a
    target. Held-out losses are read the same way; runs of both kinds are fitted apart (an axis). FLOP and times are
    those of whole contexts."""
    branches: BranchPoints | None = None
    """Instead of `n_tokens`, with schedule `wsd`: lengths of runs that share a trunk at the constant rate; each
    trains only its own decay: docs/schedules.md."""
    n_checkpoints: Annotated[Count, Field(le=100_000)] = 6
    """Number of checkpoints, at token counts evenly spaced in the logarithm over the last 1.5 decades."""
    checkpoint_tokens: TokenCounts | None = None
    """The token counts of the checkpoints, ascending; replaces `n_checkpoints`."""
    checkpoint_dtype: Literal["bf16", "fp32"] = "bf16"
    """Precision of the weights in a checkpoint; what a model must keep in fp32 stays in fp32."""
    state_every_tokens: Amount | None = None
    """Save the training state this often; null saves it at every checkpoint."""
    keep_states: Count = 2
    """How many of the newest training states are kept; two, because the newest may turn out damaged."""

    @property
    def peak_lr(self) -> float:
        """`lr` of a resolved section, where a law has given it."""
        assert not isinstance(self.lr, str), "a law is followed before a run is resolved"
        return self.lr


class Override(Training):
    """What some of the runs have otherwise: the keys of `training`, of which it changes only those that it names, and a
    `model` of its own."""

    model: ModelChanges = ModelSection()
    """Fields of the model that these runs have otherwise."""

    @field_validator("reset_at_documents")
    @classmethod
    def _is_of_all_runs(cls, _: bool) -> bool:
        raise ValueError(
            "must be the same for all runs, whose losses are fitted together: give it in training, or as an axis"
        )


class Overrides(Section):
    by_size: dict[Size, Override] = {}
    """Changes for the runs of a size."""
    by_arch: dict[Arch, Override] = {}
    """Changes for the runs of an architecture; wins over `by_size`."""
    by_run: dict[RunKey, Override] = {}
    """Changes for the runs of one `arch/size`; wins over both."""

    def of(self, arch: str, size: str) -> Iterator[Override]:
        """What applies to one run; a later one wins."""
        for table, key in ((self.by_size, size), (self.by_arch, arch), (self.by_run, f"{arch}/{size}")):
            if key in table:
                yield table[key]


@dataclass(frozen=True)
class BatchSplit:
    """A batch of `rows` sequences on `processes` processes, `micro_rows` at most in one forward and backward pass;
    `sequence` of the processes have the same sequences, and read a part of each."""

    rows: int
    processes: int
    micro_rows: int
    sequence: int = 1

    @property
    def process_rows(self) -> int:
        """Sequences of one process; of the one that has most, where they do not split evenly."""
        return -(-self.rows * self.sequence // self.processes)

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step on one process: gradients are accumulated where it is more than one."""
        return -(-self.process_rows // self.micro_rows)

    @property
    def is_even(self) -> bool:
        """Whether every process has the same number of whole micro-batches, as the trainer asks for."""
        if self.micro_rows == 0 or self.processes % self.sequence:
            return False
        return self.rows % (self.processes // self.sequence * self.micro_rows) == 0


def split_batch(
    training: Training, context_length: int, processes: int, rows: int | None = None, sequence: int = 1
) -> BatchSplit:
    """The split of a batch of `rows` sequences, by default those of training.batch_tokens. Without micro_batch_tokens,
    and where a process has fewer sequences than that, one pass takes all that the process has. sequence: as
    BatchSplit's."""
    rows = training.batch_tokens // context_length if rows is None else rows
    process_rows = -(-rows * sequence // processes)
    micro = training.micro_batch_tokens
    micro_rows = process_rows if micro is None else min(process_rows, micro // context_length)
    return BatchSplit(rows, processes, micro_rows, sequence)
