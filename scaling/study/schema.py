"""A study file: its sections that no other module of this folder has, and the whole.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from arch.errors import InputError
from data.settings import CorpusSettings

from .fit_section import Fit as Fit
from .forecast_section import Forecast
from .grid import Grid
from .jobs_schema import Jobs
from .model_section import ModelChanges, ModelSection
from .sources import CorpusSources
from .sweep_section import Sweep
from .training import Overrides, Training
from .types import (
    Amount,
    Count,
    FilePath,
    Name,
    Number,
    Plugins,
    Positive,
    Section,
    Seed,
    Sources,
    Steps,
    Tokenizer,
)


class Corpus(Section):
    source: CorpusSources
    """Where the text comes from: a file (text, JSONL, Parquet, Arrow), a folder, `hf:NAME`, `stdlib:`, `packages:`,
    `synthetic:SEED:BYTES`, one of known entropy such as `powerlaw:SEED:BYTES`, or a list of these. A mixture is a list
    of `{source: TEXT, weight: 2}`: docs/corpus.md."""
    tokenizer: Tokenizer = "bytes"
    """How text becomes token ids: `bytes`; an encoding of tiktoken, as `cl100k_base`, whose rank file tiktoken keeps;
    `bpe:V`, trained on this corpus, with V ids in all; or the path of a `tokenizer.json`: docs/corpus.md."""
    text_key: str = "text"
    """The key of a JSONL record that holds its text."""
    validation_fraction: Annotated[Number, Field(gt=0, lt=1)] | None = 0.03
    """The share of the documents that is held out from training; at least one document is held out."""
    validation_tokens: Amount | None = None
    """Instead of a share: whole documents are held out until they have this many tokens."""
    max_bytes: Amount | None = None
    """Take at most this many bytes of UTF-8 text, in the order of the sources; the last document is cut."""
    seed: Seed = 0
    """Seed of the choice of held-out documents."""
    clean: Steps = []
    """What leaves documents out before the split: `near_duplicates` keeps of nearly equal documents (Jaccard similarity
    of their 5-grams at least 0.8, or another: `near_duplicates:0.9`) the first by id."""
    epochs: Positive = 1.0
    """How many times a run may read the training text, of a mixture each source; a run that plans more tokens is
    refused."""
    target_tokens: Amount | None = None
    """The tokens of the run that the laws are for: each run of D tokens reads only the first D / `target_tokens` of
    every source, in its seed's order, so that all runs repeat text as often as that run will."""

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
        sources = tuple(source if isinstance(source, str) else source.settings() for source in self.source)
        source = sources[0] if len(sources) == 1 and isinstance(sources[0], str) else sources
        return CorpusSettings(source=source, **self.model_dump(exclude={"source", "epochs", "target_tokens"}))


class Evaluation(Section):
    validation_tokens: Amount = 65_536
    """Held-out tokens that the held-out loss of a checkpoint is measured on."""
    batch_rows: Count = 16
    """Sequences in one forward pass of the held-out loss."""
    tasks: Sources | None = None
    """Evaluation tasks and presets beside the held-out loss; `scaling eval list` shows them."""
    data: FilePath | None = None
    """The folder with the tasks' data, as `scaling eval fetch` fills it."""
    settings: dict[str, dict[str, Any]] = {}
    """Settings of single tasks, by the task's name; docs/evaluations.md describes them."""


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
    """Changes of the presets, for every architecture of the grid that has the field."""
    training: Training = Training()
    """How runs are trained."""
    overrides: Overrides = Overrides()
    """Changes of training and model for some of the runs."""
    sweep: Sweep | None = None
    """Short runs over learning rates; a law of the best rate is fitted to them, which the study's runs may follow."""
    forecast: Forecast | None = None
    """Larger runs, whose losses are predicted before they are trained; no fit contains them: docs/forecasts.md."""
    evaluation: Evaluation = Evaluation()
    """What is measured on every checkpoint."""
    fit: Fit = Fit()
    """How the scaling laws are fitted."""
    jobs: Jobs = Jobs()
    """Where runs execute, how many at once, and on what."""

    @model_validator(mode="after")
    def _range_has_its_flops(self) -> StudyFile:
        if self.fit.range_flops is not None and not self.fit.range:
            raise ValueError(
                "fit.range_flops: is the convention of fit.range, which is not given: add it, or leave this out"
            )
        return self

    @model_validator(mode="after")
    def _forecast_is_beside_the_grid(self) -> StudyFile:
        if self.forecast is not None:
            self.forecast.check(self.grid)
        return self
