"""The sections of a study file: what each may say, and its defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, create_model, model_validator

from arch.config import CHOICES, ModelConfig
from flops.hardware import DEVICES

from .types import (
    Arch,
    Betas,
    Choice,
    Count,
    Distinct,
    FilePath,
    Gigabytes,
    Hours,
    Index,
    Line,
    Name,
    Number,
    Parallel,
    Plugins,
    Positive,
    Ranges,
    ResourceKey,
    RunKey,
    Seed,
    Size,
    Sources,
    TokenCounts,
    Variable,
    Word,
    one_of,
)

VOCABULARY = {"bytes": 257, "cl100k_base": 100_280}  # token ids a model must know: 256 bytes + end of text; padded

KINDS = ("corpus", "train", "eval", "finish")  # of jobs on a cluster
Kind = Annotated[str, one_of("kind of job", KINDS)]


class Section(BaseModel):
    """A part of a study file: no unknown keys, no silent conversions, no later changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Corpus(Section):
    source: Sources
    tokenizer: Annotated[str, one_of("tokenizer", tuple(VOCABULARY))] = "bytes"
    text_key: str = "text"  # of a JSONL record
    validation_fraction: Annotated[Number, Field(gt=0, lt=1)] | None = 0.03  # of documents held out; at least one is
    validation_tokens: Count | None = None  # instead: whole documents until so many tokens are held out
    max_bytes: Count | None = None
    seed: Seed = 0
    epochs: Positive = 1.0  # how often a run may see the training split; more than 1 must be asked for

    @model_validator(mode="before")
    @classmethod
    def _tokens_instead(cls, raw: Any) -> Any:
        """A number of tokens replaces the fraction's default."""
        if isinstance(raw, dict) and raw.get("validation_tokens") is not None:
            return {"validation_fraction": None} | raw
        return raw

    @model_validator(mode="after")
    def _one_of_both(self) -> Corpus:
        if (self.validation_fraction is None) == (self.validation_tokens is None):
            raise ValueError("give validation_fraction or validation_tokens, and null for the other")
        return self


class Cell(NamedTuple):
    """What one run of a grid is of."""

    arch: str
    size: str
    seed: int


class Grid(Section):
    archs: Annotated[list[Arch], Distinct]
    sizes: Annotated[list[Size], Distinct]
    seeds: Annotated[list[Seed], Distinct] = [0]
    extra_seeds: dict[Size, list[Seed]] = {}

    def cells(self) -> Iterator[Cell]:
        """What every run is of, in file order."""
        for arch in self.archs:
            for size in self.sizes:
                for seed in dict.fromkeys([*self.seeds, *self.extra_seeds.get(size, [])]):
                    yield Cell(arch, size, seed)


class Training(Section):
    """How a run is trained."""

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
    threads: Parallel = 1  # changes bits, so it belongs to the run and not to the machine
    max_steps: Count | None = None  # stop early, for trials
    log_every: Count = 1
    n_checkpoints: Annotated[Count, Field(le=100_000)] = 6
    checkpoint_tokens: TokenCounts | None = None  # wins over n_checkpoints
    artifact_dtype: Literal["bf16", "fp32"] = "bf16"
    state_every_tokens: Count | None = None
    keep_states: Count = 2  # the newest may turn out damaged


class Evaluation(Section):
    validation_tokens: Count = 65_536
    batch_rows: Count = 16
    tasks: Sources | None = None  # beside held-out loss: `scaling eval list`
    data: FilePath | None = None  # the folder that `scaling eval fetch` filled
    settings: dict[str, dict[str, Any]] = {}  # of tasks, by name


class Fit(Section):
    loss: Literal["train_smoothed", "validation"] = "train_smoothed"
    smoothing_tokens: Count = 50_000  # window of the training loss's centred mean
    smoothing_fraction: Annotated[Number, Field(ge=0, lt=1)] = 0.0  # of the tokens seen, where that is more
    control: Literal["none", "bigram"] = "none"  # bigram: less the deviation of a bigram model on the same batch
    flops: Literal["paper", "exact", "6nd"] = "exact"
    optimum: Literal["crossings", "envelope"] = "crossings"  # what N_opt and D_opt are made of; the other stands beside
    censor: bool = True  # leave out points of the envelope that say nothing about N_opt; the papers keep them
    range: Ranges = {}  # [c_min, c_max] in FLOP of `range_flops`, by architecture; one pair stands for all
    range_flops: Literal["paper", "exact", "6nd"] | None = None  # the convention that range is stated in; null: `flops`
    grid_points: Annotated[Count, Field(ge=3, le=10_000)] = 40


def _by_kind(value: object) -> object:
    """One name stands for every kind of job."""
    return dict.fromkeys(KINDS, value) if isinstance(value, str) else value


class Cluster(Section):
    """A cluster profile: its file, or `jobs.cluster` of a study. `scaling submit --example-profile` explains it."""

    nodes: Count  # at most so many for one job
    cpus_per_node: Count
    gpus_per_node: Index = 0  # 0: runs train on CPUs
    memory_gb_per_node: Gigabytes | None = None  # 10^9 bytes; null: the partition's default is not overridden
    gpu: Annotated[str, one_of("device", tuple(DEVICES))] = "h100"  # its peak and memory: flops.hardware
    gpu_type: Word | None = None  # as SLURM names it, where that must be said
    ask_gpus: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    partition: Annotated[dict[Kind, Word], BeforeValidator(_by_kind)] = {}  # one name, or one for each kind of job
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    sbatch: list[Word] = []  # more options, as --exclusive
    setup: list[Line] = []  # shell lines before anything else: module load, source
    environment: dict[Variable, Line] = {}  # NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, ...
    container: list[Line] = []  # words before python: [apptainer, exec, --nv, image.sif]
    python: Line | None = None  # null: the Python that submits
    mfu: Annotated[Number, Field(ge=1e-6, le=1)] = 0.4  # of the peak, until finished runs tell
    target_hours: Hours = 24.0  # a run gets GPUs until it is expected to take no longer
    max_hours: Hours = 24.0  # the partition's limit; a longer run saves its state and is queued again
    time_factor: Annotated[Number, Field(ge=1, le=1000)] = 1.5  # a time limit over what is expected
    pack_minutes: Index = 15  # short runs share an array element up to so long; 0: one run each
    eval_elements: Count = 100  # evaluations are spread over at most so many
    max_array_size: Count | None = None  # null: asked of SLURM
    max_running: Count | None = None  # elements of one array at once; null: no limit
    max_restarts: Index = 5  # of an array element, in a row and without a newer saved state
    signal_s: Annotated[Count, Field(ge=30)] = 180  # notice before the time limit, to save the state
    templates: FilePath | None = None  # a folder of your own batch templates, looked into first


# The tags keep pydantic's findings to the one that was meant; study_file.py leaves them out of messages.
NamedCluster = Annotated[
    Annotated[Cluster, Tag("[profile]")] | Annotated[FilePath, Tag("[name]")],
    Discriminator(lambda value: "[name]" if isinstance(value, str) else "[profile]"),
]


class Asked(Section):
    """What a study asks for some runs: what is left out is reckoned."""

    nodes: Count | None = None
    gpus_per_node: Count | None = None
    tasks_per_node: Count | None = None  # on CPUs
    cpus_per_task: Count | None = None
    memory_gb: Gigabytes | None = None  # of a node
    minutes: Count | None = None


class Jobs(Section):
    parallel: Parallel | None = None  # runs at once on this machine; null: as many as its GPUs hold, 1 without GPUs
    processes: Parallel = 1  # of each run, started by torchrun: one for each GPU that a run shall use
    recompute: bool = False  # layers' activations, in the backward pass: less memory, more time, the same numbers
    cluster: NamedCluster | None = None  # of `scaling submit`: a profile's name or file, or the profile itself
    resources: dict[ResourceKey, Asked] = {}  # of runs on a cluster, by size, arch or arch/size; corpus, eval, finish

    def asked(self, arch: str, size: str) -> Asked:
        """What `resources` says of one run's training."""
        told = [self.resources[key] for key in (size, arch, f"{arch}/{size}") if key in self.resources]
        return Asked(**{key: value for one in told for key, value in one.model_dump(exclude_unset=True).items()})

    def of_kind(self, kind: str) -> Asked:
        """What `resources` says of corpus, eval or finish jobs."""
        return self.resources.get(kind, Asked())


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


class Override(Training):
    """What some of the runs have otherwise: the keys of `training`, of which it changes only those that it names, and a
    `model` of its own."""

    model: ModelChanges = ModelChanges()


class Overrides(Section):
    by_size: dict[Size, Override] = {}
    by_arch: dict[Arch, Override] = {}
    by_run: dict[RunKey, Override] = {}

    def of(self, arch: str, size: str) -> Iterator[Override]:
        """What applies to one run; a later one wins."""
        for table, key in ((self.by_size, size), (self.by_arch, arch), (self.by_run, f"{arch}/{size}")):
            if key in table:
                yield table[key]


class StudyFile(Section):
    """What a study file may say."""

    name: Name
    plugins: Plugins = []  # modules that register architectures: arch/ADDING.md
    out: FilePath = "out"
    corpus: Corpus
    grid: Grid
    model: ModelChanges = ModelChanges()
    training: Training = Training()
    overrides: Overrides = Overrides()
    evaluation: Evaluation = Evaluation()
    fit: Fit = Fit()
    jobs: Jobs = Jobs()
