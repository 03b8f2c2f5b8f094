"""The sections of a study file: what each may say, and its defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from arch.config import CHOICES, ModelConfig

from .fields import (
    Arch,
    Betas,
    Choice,
    Count,
    Distinct,
    Index,
    Name,
    Number,
    Plugins,
    Positive,
    Ranges,
    RunKey,
    Seed,
    Size,
    Sources,
    TokenCounts,
    one_of,
)

VOCABULARY = {"bytes": 257, "cl100k_base": 100_280}  # token ids a model must know: 256 bytes + end of text; padded


class Section(BaseModel):
    """A part of a study file: no unknown keys, no silent conversions, no later changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Corpus(Section):
    source: Sources
    tokenizer: Annotated[str, one_of("tokenizer", tuple(VOCABULARY))] = "bytes"
    text_key: str = "text"  # of a JSONL record
    validation_fraction: Annotated[Number, Field(gt=0, lt=1)] = 0.03
    max_bytes: Count | None = None
    seed: Seed = 0
    epochs: Positive = 1.0  # how often a run may see the training split; more than 1 must be asked for


class Grid(Section):
    archs: Annotated[list[Arch], Distinct]
    sizes: Annotated[list[Size], Distinct]
    seeds: Annotated[list[Seed], Distinct] = [0]
    extra_seeds: dict[Size, list[Seed]] = {}

    def cells(self) -> Iterator[tuple[str, str, int]]:
        """(arch, size, seed) of every run, in file order."""
        for arch in self.archs:
            for size in self.sizes:
                for seed in dict.fromkeys([*self.seeds, *self.extra_seeds.get(size, [])]):
                    yield arch, size, seed


class Training(Section):
    """How a run is trained. As `overrides` the same keys change only what they name."""

    n_tokens: Count | None = None  # required, here or in the overrides
    batch_tokens: Count = 2048
    micro_batch_tokens: Count | None = None  # per process and forward pass; null: the whole batch
    lr: Positive = 3e-4  # constant after a linear warm-up
    warmup_tokens: Index = 0
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    betas: Betas = [0.9, 0.95]
    eps: Positive = 1e-8
    grad_clip: Annotated[Number, Field(ge=0)] = 1.0  # 0: off
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: autocast over fp32 parameters
    zero_stage: Annotated[Index, Field(le=2)] = 0
    threads: Count = 1  # changes bits, so it belongs to the run and not to the machine
    max_steps: Count | None = None  # stop early, for trials
    log_every: Count = 1
    n_checkpoints: Count = 6
    checkpoint_tokens: TokenCounts | None = None  # wins over n_checkpoints
    artifact_dtype: Literal["bf16", "fp32"] = "bf16"
    state_every_tokens: Count | None = None
    keep_states: Count = 2  # the newest may turn out damaged


class Overrides(Section):
    by_size: dict[Size, Training] = {}
    by_arch: dict[Arch, Training] = {}
    by_run: dict[RunKey, Training] = {}

    def of(self, arch: str, size: str) -> Iterator[Training]:
        """What applies to one run; a later one wins."""
        for table, key in ((self.by_size, size), (self.by_arch, arch), (self.by_run, f"{arch}/{size}")):
            if key in table:
                yield table[key]


class Evaluation(Section):
    validation_tokens: Count = 65_536
    batch_rows: Count = 16
    tasks: Sources | None = None  # beside held-out loss: `scaling eval list`
    data: str | None = None  # the folder that `scaling eval fetch` filled
    settings: dict[str, dict[str, Any]] = {}  # of tasks, by name


class Fit(Section):
    loss: Literal["train_smoothed", "validation"] = "train_smoothed"
    smoothing_tokens: Count = 50_000  # window of the training loss's centred mean
    smoothing_fraction: Annotated[Number, Field(ge=0, lt=1)] = 0.0  # of the tokens seen, where that is more
    control: Literal["none", "bigram"] = "none"  # bigram: less the deviation of a bigram model on the same batch
    flops: Literal["paper", "exact", "6nd"] = "exact"
    range: Ranges = {}  # [c_min, c_max] in FLOP of the convention `flops`, by architecture; one pair stands for all
    grid_points: Annotated[Count, Field(ge=3)] = 40


class Jobs(Section):
    parallel: Count = 1  # runs at once on this machine
    processes: Count = 1  # of each run, started by torchrun: one for each GPU it shall use
    recompute: bool = False  # layers' activations, in the backward pass: less memory, more time, the same numbers


_MODEL_TYPES: dict[str, Any] = {
    "int": Count,
    "float": Positive,
    "bool": bool,
    "str": str,
    "str | None": str | None,
    "int | None": Count | None,
}
# The fields of ModelConfig, each optional; ModelConfig itself judges their values.
ModelChanges: Any = create_model(  # type: ignore[call-overload]
    "ModelChanges",
    __base__=Section,
    **{
        f.name: (Choice if "off" in CHOICES.get(f.name, ()) else _MODEL_TYPES[str(f.type)], None)
        for f in dataclasses.fields(ModelConfig)
        if f.name != "arch"
    },
)


class StudyFile(Section):
    """What a study file may say."""

    name: Name
    plugins: Plugins = []  # modules that register architectures: arch/ADDING.md
    out: str = "out"
    corpus: Corpus
    grid: Grid
    model: ModelChanges = ModelChanges()
    training: Training = Training()
    overrides: Overrides = Overrides()
    evaluation: Evaluation = Evaluation()
    fit: Fit = Fit()
    jobs: Jobs = Jobs()
