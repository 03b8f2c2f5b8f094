"""The sections of a study file: what each may say, and its defaults. The section `jobs` is in jobs_schema.py.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainValidator, SerializeAsAny, create_model, model_validator

from arch.config import field_choices, field_types
from arch.errors import InputError
from data.settings import CorpusSettings

from .jobs_schema import Jobs
from .types import (
    Arch,
    Betas,
    Choice,
    Count,
    Distinct,
    FilePath,
    Index,
    Name,
    Number,
    Parallel,
    Plugins,
    Positive,
    Ranges,
    RunKey,
    Section,
    Seed,
    Size,
    Sources,
    TokenCounts,
    one_of,
)

VOCABULARY = {"bytes": 257, "cl100k_base": 100_280}  # token ids a model must know: 256 bytes + end of text; padded


class Corpus(Section):
    source: Sources
    """Where the text comes from: a file, a folder, a JSONL file, `stdlib:` or `synthetic:SEED:BYTES`, or a list of
    these."""
    tokenizer: Annotated[str, one_of("tokenizer", tuple(VOCABULARY))] = "bytes"
    """How text becomes token ids; `cl100k_base` reads its rank file through tiktoken."""
    text_key: str = "text"
    """The key of a JSONL record that holds its text."""
    validation_fraction: Annotated[Number, Field(gt=0, lt=1)] | None = 0.03
    """The share of the documents that is held out from training; at least one document is held out."""
    validation_tokens: Count | None = None
    """Instead of a share: whole documents are held out until they have this many tokens."""
    max_bytes: Count | None = None
    """Take at most this many bytes of UTF-8 text, in the order of the sources; the last document is cut."""
    seed: Seed = 0
    """Seed of the choice of held-out documents."""
    epochs: Positive = 1.0
    """How many times a run may read the training text; a run that plans more tokens is refused."""

    @model_validator(mode="before")
    @classmethod
    def _tokens_instead(cls, raw: Any) -> Any:
        """A number of tokens replaces the fraction's default."""
        if isinstance(raw, dict) and raw.get("validation_tokens") is not None:
            return {"validation_fraction": None} | raw
        return raw

    @model_validator(mode="after")
    def _as_the_data_package_takes_it(self) -> Corpus:
        try:
            self.settings()
        except InputError as error:
            raise ValueError(str(error).removeprefix("corpus: ")) from None
        return self

    def settings(self) -> CorpusSettings:
        """What the corpus is made by, as the data package takes it. Raises InputError where that cannot be."""
        source = self.source[0] if len(self.source) == 1 else tuple(self.source)
        return CorpusSettings(source=source, **self.model_dump(exclude={"source", "epochs"}))


class Cell(NamedTuple):
    """What one run of a grid is of."""

    arch: str
    size: str
    seed: int


class Grid(Section):
    archs: Annotated[list[Arch], Distinct]
    """The architectures; every architecture is trained at every size."""
    sizes: Annotated[list[Size], Distinct]
    """The sizes: names of presets, such as `98k`, `410m` or `mamba-130m`."""
    seeds: Annotated[list[Seed], Distinct] = [0]
    """Seeds of every cell; a seed decides the initial weights and the order of the training text."""
    extra_seeds: dict[Size, list[Seed]] = {}
    """More seeds for some sizes; intervals of the fits need seeds that were repeated somewhere."""

    def cells(self) -> Iterator[Cell]:
        """What every run is of, in file order."""
        for arch in self.archs:
            for size in self.sizes:
                for seed in dict.fromkeys([*self.seeds, *self.extra_seeds.get(size, [])]):
                    yield Cell(arch, size, seed)


class Training(Section):
    """How a run is trained."""

    n_tokens: Count | None = None
    """Tokens a run trains on, rounded up to whole batches; required, here or in `overrides`."""
    batch_tokens: Count = 2048
    """Tokens of one optimizer step: a whole number of sequences of `model.context_length`."""
    micro_batch_tokens: Count | None = None
    """Tokens of one forward pass of one process; null takes the process's whole share of the batch."""
    lr: Positive = 3e-4
    """Learning rate, constant after a linear warm-up."""
    warmup_tokens: Index = 0
    """Tokens over which the learning rate rises from zero."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    """Weight decay of AdamW; biases, norms and other vectors have none."""
    betas: Betas = [0.9, 0.95]
    """The two decay rates of AdamW's averages."""
    eps: Positive = 1e-8
    """The term that AdamW adds to the root of the second average."""
    grad_clip: Annotated[Number, Field(ge=0)] = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` runs autocast over fp32 parameters; `fp32` runs without autocast."""
    zero_stage: Annotated[Index, Field(le=2)] = 0
    """DeepSpeed's ZeRO stage: 0 shares nothing, 1 the optimizer's state, 2 the gradients too."""
    threads: Parallel = 1
    """CPU threads of each process; the number changes rounding, so it is part of the run."""
    max_steps: Count | None = None
    """Stop after this many steps, for trials."""
    log_every: Count = 1
    """Write a row of `metrics.jsonl` every this many steps."""
    n_checkpoints: Annotated[Count, Field(le=100_000)] = 6
    """Number of checkpoints, at token counts evenly spaced in the logarithm over the last 1.5 decades."""
    checkpoint_tokens: TokenCounts | None = None
    """The token counts of the checkpoints, ascending; replaces `n_checkpoints`."""
    checkpoint_dtype: Literal["bf16", "fp32"] = "bf16"
    """Precision of the weights in a checkpoint; what a model must keep in fp32 stays in fp32."""
    state_every_tokens: Count | None = None
    """Save the training state this often; null saves it at every checkpoint."""
    keep_states: Count = 2
    """How many of the newest training states are kept; two, because the newest may turn out damaged."""


class Evaluation(Section):
    validation_tokens: Count = 65_536
    """Held-out tokens that the held-out loss of a checkpoint is measured on."""
    batch_rows: Count = 16
    """Sequences in one forward pass of the held-out loss."""
    tasks: Sources | None = None
    """Evaluation tasks and presets beside the held-out loss; `scaling eval list` shows them."""
    data: FilePath | None = None
    """The folder with the tasks' data, as `scaling eval fetch` fills it."""
    settings: dict[str, dict[str, Any]] = {}
    """Settings of single tasks, by the task's name; docs/evaluations.md describes them."""


class Fit(Section):
    loss: Literal["train_smoothed", "validation"] = "train_smoothed"
    """The loss that is fitted: the smoothed training loss, or the held-out loss of the checkpoints."""
    smoothing_tokens: Count = 50_000
    """Width of the centred mean that smooths the training loss."""
    smoothing_fraction: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Width of that mean as a share of the tokens seen, where this is wider than `smoothing_tokens`."""
    control: Literal["none", "bigram"] = "none"
    """`bigram` subtracts from each batch's loss how much harder than average the batch is for a bigram model."""
    flops: Literal["paper", "exact", "6nd"] = "exact"
    """The convention that compute C is counted in: docs/reading-results.md."""
    optimum: Literal["crossings", "envelope"] = "crossings"
    """What N_opt and D_opt are fitted to: crossings of neighbouring sizes, or points of the envelope."""
    censor: bool = True
    """Leave out points of the envelope that the smallest or largest size owns; the papers keep them."""
    range: Ranges = {}
    """The compute [smallest, largest] that the laws are fitted to, by architecture; one pair stands for all."""
    range_flops: Literal["paper", "exact", "6nd"] | None = None
    """The convention that `range` is stated in; null means the one of `flops`."""
    grid_points: Annotated[Count, Field(ge=3, le=10_000)] = 40
    """Number of compute values at which the envelope of the curves is read."""


_MODEL_TYPES: dict[str, Any] = {  # by the type as ModelConfig and Options write it
    "int": Count,
    "float": Positive,
    "bool": bool,
    "str": str,
    "str | None": str | None,
    "int | None": Count | None,
}


class ModelSection(Section):
    """Changes of a model's fields; `model_changes` gives the class with the fields there are."""


def model_changes() -> type[ModelSection]:
    """The fields of ModelConfig, each optional, with the options of all architectures that are registered by now;
    ModelConfig itself judges their values."""
    return _model_changes(tuple(field_types().items()))


@lru_cache
def _model_changes(fields: tuple[tuple[str, str], ...]) -> type[ModelSection]:
    choices = field_choices()
    typed = {name: Choice if "off" in choices.get(name, ()) else _MODEL_TYPES[kind] for name, kind in fields}
    given: Any = {name: (kind, None) for name, kind in typed.items() if name != "arch"}
    return create_model("ModelChanges", __base__=ModelSection, **given)


def _as_changes(value: Any) -> ModelSection:
    return value if isinstance(value, ModelSection) else model_changes().model_validate(value)


# Judged when a file is read, after its plugins are imported, whose architectures may have options of their own.
ModelChanges = Annotated[SerializeAsAny[ModelSection], PlainValidator(_as_changes)]


class Override(Training):
    """What some of the runs have otherwise: the keys of `training`, of which it changes only those that it names, and a
    `model` of its own."""

    model: ModelChanges = ModelSection()
    """Fields of the model that these runs have otherwise."""


class Overrides(Section):
    by_size: dict[Size, Override] = {}
    """What the runs of a size have otherwise."""
    by_arch: dict[Arch, Override] = {}
    """What the runs of an architecture have otherwise; wins over `by_size`."""
    by_run: dict[RunKey, Override] = {}
    """What the runs of one `arch/size` have otherwise; wins over both."""

    def of(self, arch: str, size: str) -> Iterator[Override]:
        """What applies to one run; a later one wins."""
        for table, key in ((self.by_size, size), (self.by_arch, arch), (self.by_run, f"{arch}/{size}")):
            if key in table:
                yield table[key]


class StudyFile(Section):
    """What a study file may say."""

    name: Name
    """The study's name, and the name of its folder below `out`."""
    plugins: Plugins = []
    """Python modules that register architectures of their own: arch/ADDING.md."""
    out: FilePath = "out"
    """The folder of all studies' output; a relative path counts from the folder where the command runs."""
    corpus: Corpus
    """The text and its tokens."""
    grid: Grid
    """The runs: architectures x sizes x seeds."""
    model: ModelChanges = ModelSection()
    """Changes of the presets, for every architecture of the grid that a field means something to."""
    training: Training = Training()
    """How runs are trained."""
    overrides: Overrides = Overrides()
    """What some of the runs have otherwise."""
    evaluation: Evaluation = Evaluation()
    """What is measured on every checkpoint."""
    fit: Fit = Fit()
    """How the scaling laws are fitted."""
    jobs: Jobs = Jobs()
    """Where runs execute, how many at once, and on what."""
