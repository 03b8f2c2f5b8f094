"""The sections of a study file, and the whole. `training` and `overrides`, `model`, `jobs`, the sizes and the axes of
`grid` have modules of their own.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from arch.encoder import POOLINGS, POSITIONS, SCANS
from arch.errors import InputError, nearest, shown
from data.settings import CorpusSettings, Weighted
from data.vocabulary import IDS, SETS, misspelt, names_set

from .axes import AxesOfGrid, By, Point, check_nuisance, fields_of, points_of
from .fit_section import Fit as Fit
from .jobs_schema import Jobs
from .model_section import ModelChanges, ModelSection
from .patterns import Patterns, PatternsOfStudy
from .recipe import TrainingRecipe
from .sizes import SizesOfStudy
from .training import Overrides, Training
from .types import (
    Amount,
    Arch,
    Count,
    Distinct,
    FilePath,
    Name,
    Number,
    Plugins,
    Positive,
    Section,
    Seed,
    Size,
    Sources,
    Steps,
    Tokenizer,
    Tokens,
    different,
    one_of,
    refuse_at,
    section_at,
)

TEXTS = TypeAdapter(Sources)
SOURCE_FORMS = "write texts, or {source: ..., weight: ...} for each source of a mixture"


class WeightedSource(Section):
    """A source of a mixture."""

    source: Sources
    """The text: as `corpus.source` without weights."""
    weight: Positive
    """The share of this source in the training tokens, relative to the weights of the others."""
    text_key: str | None = None
    """The key of its records; null takes the corpus' `text_key`."""
    name: str = ""
    """A short name for tables and files, of letters, digits and `-`; by default it is made of the path."""

    def settings(self) -> Weighted:
        source = self.source[0] if len(self.source) == 1 else tuple(self.source)
        return Weighted(source, self.weight, self.text_key, self.name)


def _sources(value: Any) -> list[str] | list[WeightedSource]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("must name at least one")
    if not any(isinstance(item, (dict, WeightedSource)) for item in items):
        return TEXTS.validate_python(items)
    for item in items:
        if not isinstance(item, (dict, WeightedSource)):
            raise ValueError(f"{shown(item)} has no weight and other sources have one: {SOURCE_FORMS}")
    return [section_at(WeightedSource, item, i) for i, item in enumerate(items)]


def _plain(sources: list[str] | list[WeightedSource]) -> list[Any]:
    return [source if isinstance(source, str) else source.model_dump() for source in sources]


CorpusSources = Annotated[
    list[str] | list[WeightedSource],
    PlainValidator(_sources),
    PlainSerializer(_plain),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}),
]


class Augment(Section):
    """Of a folder of images: how training changes them, drawn by the seed, the step and the row. The defaults are
    DeiT's; it needs the extra `images`."""

    policy: str | None = "rand-m9-mstd0.5-inc1"
    """Operations on an image, as timm's `auto_augment` names them; null: none beside cutting and flipping."""
    erase: Annotated[Number, Field(ge=0, le=1)] = 0.25
    """The share of the images of which a rectangle becomes noise."""
    mixup: Annotated[Number, Field(ge=0)] = 0.8
    """Two images and their classes are mixed, with a share from Beta(`mixup`, `mixup`); 0: never."""
    cutmix: Annotated[Number, Field(ge=0)] = 1.0
    """A rectangle of one image is put into another, with a share from Beta(`cutmix`, `cutmix`); 0: never. Beside
    `mixup`, either has half of the steps."""
    smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    """The share of a target that is spread over all classes."""


class Corpus(Section):
    source: CorpusSources
    """Where the text comes from: a file (text, JSONL, Parquet, Arrow), a folder, `hf:NAME`, `stdlib:`, `packages:`,
    `synthetic:SEED:BYTES`, one of known entropy such as `powerlaw:SEED:BYTES`, or a list of these. A mixture is a list
    of `{source: TEXT, weight: 2}`: docs/corpus.md. In place of text: a labelled set, whose classes the models learn, as
    `labelled:FOLDER`, `listops:SEED` or `images:FOLDER:CLASSES:SIZE`: docs/classification.md."""
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
    augment: Augment | None = None
    """Of a folder of images: how training changes them; null: it reads their middle, as validation does."""
    target_tokens: Amount | None = None
    """The tokens of the run that the laws are for: each run of D tokens reads only the first D / `target_tokens` of
    every source, in its seed's order, so that all runs repeat text as often as that run will."""

    @model_validator(mode="before")
    @classmethod
    def _ids_of_a_labelled_set(cls, raw: Any) -> Any:
        """A labelled set has ids of its own."""
        source = raw.get("source") if isinstance(raw, dict) else None
        first = source[0] if isinstance(source, list) and source else source
        if not (isinstance(first, str) and names_set(first)):
            return raw
        if raw.get("tokenizer", IDS) != IDS:
            raise ValueError("tokenizer: a labelled set has ids of its own: leave it out")
        return {**raw, "tokenizer": IDS}

    @model_validator(mode="before")
    @classmethod
    def _tokens_instead(cls, raw: Any) -> Any:
        """A number of tokens replaces the fraction's default."""
        if isinstance(raw, dict) and raw.get("validation_tokens") is not None:
            return {"validation_fraction": None} | raw
        return raw

    @property
    def names(self) -> list[str]:
        """The sources, those of a mixture too."""
        return [name for item in self.source for name in ([item] if isinstance(item, str) else item.source)]

    @model_validator(mode="after")
    def _ids_are_of_a_labelled_set(self) -> Corpus:
        sets = [name for name in self.names if ":" in name and names_set(name)]
        if sets and self.source != sets[:1]:
            refuse_at(f"{shown(sets[0])} is a labelled set, which stands alone: name one source", "source")
        if self.tokenizer == IDS and not all(isinstance(item, str) and names_set(item) for item in self.source):
            self.check_names(set_wanted=True)
            raise ValueError(f"tokenizer: {IDS} is of labelled sets, and source is text: choose another")
        return self

    def check_names(self, set_wanted: bool, *place: str) -> None:
        """Raise ValidationError, at a place, for what is no labelled set and meant as one."""
        for name in self.names:
            if hint := misspelt(name, set_wanted):
                refuse_at(f"{shown(name)} is no labelled set{hint}", *place, "source")

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
        return CorpusSettings(
            source=source, **self.model_dump(exclude={"source", "epochs", "augment", "target_tokens"})
        )


MOST_RUNS = 10_000
Role = Literal["grid", "forecast"]  # of a run
OF_GRID: Role = "grid"
FORECAST: Role = "forecast"


class Cell(NamedTuple):
    """What one run of a grid is of; round: of a forecast run, its place among the rounds."""

    arch: str
    size: str
    seed: int
    point: Point = ()
    role: Role = OF_GRID
    round: int = 0


def role_text(role: str, round: int | None) -> str:
    """What follows the name of a run in tables; round: of a forecast run, from 1 on."""
    later = f", round {round}" if round and round > 1 else ""
    return f" (forecast{later})" if role == FORECAST else ""


class Grid(Section):
    archs: Annotated[list[Arch], Distinct]
    """The architectures; every architecture is trained at every size."""
    sizes: SizesOfStudy
    """The sizes: names of presets, such as `98k`, `410m` or `mamba-130m`; shapes,
    `12m: {n_layers: 8, d_model: 384, n_heads: 6, d_ffn: 1024}`, read as presets are, changed below an architecture's
    name; ladders, `{from: 1M, to: 60M, count: 6}`, with `match`, `aspect`, `head_dim` and `layers`. See Sizes."""
    seeds: Annotated[list[Seed], AfterValidator(different)] = [0]
    """Seeds of every cell; a seed decides the initial weights and the order of the training text. `[]` where every size
    has its own in `extra_seeds`."""
    extra_seeds: dict[Size, Annotated[list[Seed], AfterValidator(different)]] = {}
    """More seeds for some sizes; intervals of the fits need seeds that were repeated somewhere."""

    axes: AxesOfGrid = {}
    """Fields of `training` and `model` with several values each, such as `training.lr: [1e-3, 2e-3]`: every run is
    trained at all of them, crossed. Fields that vary together are points with names:
    `ablation: {hgrn: {}, no_gate: {model.output_gate: false}}`. Values win over `overrides`."""
    nuisance: dict[str, By] = {}
    """Axes that make no groups of fits, as the others do: `best` keeps the value of the lowest loss, for every size."""

    @model_validator(mode="after")
    def _every_size_has_seeds(self) -> Grid:
        if not self.seeds and (bare := [size for size in self.sizes if not self.extra_seeds.get(size)]):
            raise ValueError(f"seeds: must name at least one, or extra_seeds must name seeds of {', '.join(bare)} too")
        return self

    @model_validator(mode="after")
    def _runs_are_few(self) -> Grid:
        points = math.prod(map(len, self.axes.values()))
        cells = len(self.archs) * sum(len(self.seeds) + len(self.extra_seeds.get(size, ())) for size in self.sizes)
        if cells * points > MOST_RUNS:
            raise ValueError(
                f"asks for {cells * points:,} runs, and at most {MOST_RUNS:,} make a study: make it smaller"
            )
        return self

    @model_validator(mode="after")
    def _nuisance_is_of_axes(self) -> Grid:
        check_nuisance(self.axes, self.nuisance)
        return self

    def cells(self, fixed: Mapping[str, Any] | None = None) -> Iterator[Cell]:
        """What every run is of, in file order. fixed: values by field that win over the axes."""
        for arch in self.archs:
            points = list(points_of(self.axes, arch, fixed or {}))
            for size in self.sizes:
                for seed in dict.fromkeys([*self.seeds, *self.extra_seeds.get(size, [])]):
                    for point in points:
                        yield Cell(arch, size, seed, point)


OF_LENGTH = ("n_tokens", "max_tokens", "branches")  # of training, which the section's n_tokens replaces


class Forecast(Section):
    """Runs larger than those of the grid, of all its architectures, by the study's other settings."""

    sizes: SizesOfStudy
    """The sizes, as `grid.sizes`; names may be those of the grid, and `{from: 55M, to: 55M, count: 1}` is one size of a
    ladder."""
    n_tokens: Tokens
    """Tokens that each run trains on, as `training.n_tokens`; replaces every other length in the file."""
    seeds: Annotated[list[Seed], Distinct]
    """Seeds of every size, other than those of the grid at that size."""
    level: Annotated[Number, Field(gt=0, lt=1)] = 0.9
    """How often the predictive intervals are to hold a new run's loss."""
    then: Forecast | None = None
    """The next round, of still larger runs, predicted from fits of the grid and of all rounds before once these are
    trained. It has the same fields."""

    @property
    def rounds(self) -> list[Forecast]:
        """This section and those below it, in the order in which they are predicted."""
        return [self, *(self.then.rounds if self.then else [])]

    def cells(self, grid: Grid, fixed: Mapping[str, Any]) -> Iterator[Cell]:
        """What every run of every round is of: the architectures and points of the grid, in its order."""
        for at, round in enumerate(self.rounds):
            for arch in grid.archs:
                for size in round.sizes:
                    for seed in round.seeds:
                        for point in points_of(grid.axes, arch, fixed):
                            yield Cell(arch, size, seed, point, FORECAST, at)

    def check(self, grid: Grid) -> None:
        """Raise ValueError where the section and the grid do not go together."""
        if grid.nuisance:
            raise ValueError(
                f"forecast: goes with no grid.nuisance ({', '.join(grid.nuisance)}), whose values are chosen by runs "
                f"that are trained: leave out one of the two"
            )
        if lengths := [field for field in fields_of(grid.axes) if field in {f"training.{name}" for name in OF_LENGTH}]:
            raise ValueError(f"forecast: n_tokens takes the place of the axis {lengths[0]}: leave out one of the two")
        shape_of, runs = {name: ("grid.sizes", shape) for name, shape in grid.sizes.shapes.items()}, dict[Any, str]()
        for at, round in enumerate(self.rounds):
            place = "forecast" + ".then" * at
            for name, shape in round.sizes.shapes.items():
                where, other = shape_of.setdefault(name, (f"{place}.sizes", shape))
                if other != shape:
                    raise ValueError(
                        f"{place}.sizes: {name} is another size in {where}: give it by its name there, or another name"
                    )
            for run in ((name, seed) for name in round.sizes for seed in round.seeds):
                if (first := runs.setdefault(run, place)) != place:
                    raise ValueError(f"{place}: {run[0]} with seed {run[1]} is a run of {first}: give another seed")

    def length(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `given` says of training, with the section's length in the place of its own."""
        return {key: value for key, value in given.items() if key not in OF_LENGTH} | {"n_tokens": self.n_tokens}


EVERY = ""  # the key of rates for the sizes that have none of their own
LEAST_RATES = 3  # rates: fewer have no parabola


class RateLadder(Section):
    """Rates from the first one up."""

    first: Positive
    factor: Annotated[Number, Field(gt=1)]
    count: Annotated[Count, Field(ge=LEAST_RATES, le=50)]

    @property
    def rates(self) -> list[float]:
        try:
            rates = [float(f"{self.first * self.factor**step:.6g}") for step in range(self.count)]
        except OverflowError:
            rates = [math.inf]
        if not math.isfinite(rates[-1]):
            raise ValueError(f"first x factor^{self.count - 1} is no finite rate: write smaller numbers")
        if len(set(rates)) < len(rates):
            raise ValueError(f"a factor of {self.factor:.9g} makes equal rates, to six digits: write a larger one")
        return rates


class RateList(Section):
    rates: Annotated[list[Positive], Field(min_length=LEAST_RATES), Distinct]


def _rates(raw: Any) -> dict[str, list[float]]:
    """{size, or EVERY: rates, ascending}."""
    if isinstance(raw, list) or (isinstance(raw, dict) and set(raw) & set(RateLadder.model_fields)):
        return {EVERY: _rates_of(raw)}
    if isinstance(raw, dict) and raw and all(isinstance(key, str) for key in raw):
        return {key: _rates_of(value) for key, value in raw.items()}
    raise ValueError(
        f"must be a list of rates, {{first: 1e-3, factor: 2, count: 5}}, or these by size, not {shown(raw)}"
    )


def _rates_of(raw: Any) -> list[float]:
    try:
        if isinstance(raw, list):
            rates = sorted(RateList.model_validate({"rates": raw}).rates)
            if len({f"{rate:.6g}" for rate in rates}) < len(rates):
                raise ValueError("rates are equal to six digits: write distinct ones")
            return rates
        ladder = RateLadder.model_validate(raw)
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if first["type"] == "extra_forbidden":
            message = f"unknown key{nearest(place, list(RateLadder.model_fields))}"
        raise ValueError(
            f"{place}: {message}: write a list of at least {LEAST_RATES} rates, or {{first: 1e-3, factor: 2, count: 5}}"
        ) from None
    return ladder.rates


def _listed(raw: Any) -> Any:
    return raw if isinstance(raw, list) else [raw]


RatesOfSweep = Annotated[dict[str, list[float]], PlainValidator(_rates)]
USUAL_RATES = {EVERY: RateLadder(first=1e-3, factor=2.0, count=5).rates}


class Objective(Section):
    """Of a study of a labelled set, whose models are encoders: how they read a row."""

    pooling: Annotated[str, one_of("pooling", POOLINGS)] = "mean"
    """What the head reads of the positions that are no padding: their `mean`, the `first` or the `last`."""
    positions: Annotated[str, one_of("kind of positions", POSITIONS)] = "none"
    """Added to the embedding: `learned`, a vector for each position, or `sines`, which are fixed."""
    patch: Count | None = None
    """Of images: pixels on a side of the squares that are a position each; null: every number of a row is one."""
    scan: Annotated[str, one_of("scan", SCANS)] = "line"
    """Linear recurrences read all positions as one `line`, or of square images in patches the `axes`: each row and each
    column as a line of its own. Both ways, added up; softmax layers read all positions in any case."""


class Sweep(Section):
    """Short runs over learning rates, for every architecture of the grid alike."""

    sizes: Annotated[list[Size], Distinct] | None = None
    """The sizes of the grid that are swept; null takes the three smallest."""
    tokens: Annotated[list[Tokens], BeforeValidator(_listed), Distinct] = ["10N", "40N"]
    """The lengths of the runs, as `training.n_tokens`; a law's term in tokens needs two."""
    rates: RatesOfSweep = USUAL_RATES
    """The rates: a list, or `{first: 1e-3, factor: 2, count: 5}`, or either by size. A cell whose best rate is its
    first or last gets up to two more on that side."""
    seeds: Annotated[list[Seed], Distinct] = [0]
    """Seeds of every rate."""
    batch_tokens: Annotated[list[Count], Distinct] | None = None
    """Batches, for a law with a term in the batch; null takes that of `training`."""
    share: Positive | None = 0.2
    """The most FLOP that the sweep's first rates may cost, as a share of the study's runs; null sets no limit."""

    @property
    def decisive(self) -> dict[str, Any]:
        """What decides the sweep's runs, for its law file."""
        return self.model_dump(mode="json", exclude={"share"})


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
    published: dict[str, Number] = {}
    """What others have published, by any name, to stand beside the study's own: test accuracies, in percent; of text
    the perplexity a token of the last task `perplexity` or `perplexity-NAME`."""


TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


class StudyFile(Section):
    """What a study file may say."""

    name: Name
    """The study's name, and the name of its folder below `out`."""
    plugins: Plugins = []
    """Python modules that register architectures of their own: docs/adding.md."""
    architectures: PatternsOfStudy = Field(default_factory=Patterns)
    """Architectures whose layers are of several kinds, by name: `layers` names the architecture of each layer of a
    period, which every depth repeats (a list of all layers is one period); below an architecture's name stand the
    fields of its layers; `label` and `color` (#rrggbb) are for tables and plots. See Hybrids."""
    out: FilePath = "out"
    """The folder of all studies' output; a relative path counts from the folder where the command runs."""
    corpus: Corpus
    """The text and its tokens."""
    objective: Objective | None = None
    """Of a labelled set: how its encoders read it; null: each at its default."""
    grid: Grid
    """The runs: architectures x sizes x seeds."""
    model: ModelChanges = ModelSection()
    """Changes of the presets, for every architecture of the grid that has the field."""
    training: Training = Training()
    """How runs are trained."""
    recipe: TrainingRecipe | None = None
    """Rules from a run's parameters and tokens to its rate, batch, beta2, weight decay and schedule; a key that
    `training`, `overrides` or an axis gives wins: docs/rates.md."""
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
    tracking: Annotated[list[Annotated[str, one_of("tracker", TRACKERS)]], Distinct] = []
    """Where the rows of every run are shown too while it trains, each with its extra of pip: docs/watching.md."""

    @model_validator(mode="after")
    def _range_has_its_flops(self) -> StudyFile:
        if self.fit.range_flops is not None and not self.fit.range:
            raise ValueError(
                "fit.range_flops: is the convention of fit.range, which is not given: add it, or leave this out"
            )
        return self

    @model_validator(mode="after")
    def _objective_has_its_set(self) -> StudyFile:
        labelled = self.corpus.tokenizer == IDS
        if not labelled:
            self.corpus.check_names(bool(self.corpus.augment or self.objective), "corpus")
        text = f"and corpus.source is text ({shown(self.corpus.names[0])}): leave it out, or name"
        if self.corpus.augment is not None and not labelled:
            raise ValueError(f"corpus.augment: is of folders of images, {text} images:FOLDER:CLASSES:SIZE")
        if self.objective is not None and not labelled:
            raise ValueError(f"objective: is of labelled sets, {text} one of {', '.join(SETS)}")
        if labelled and self.training.reset_at_documents:
            raise ValueError("training.reset_at_documents: a labelled set has no documents in a row: leave it out")
        return self

    @model_validator(mode="after")
    def _published_can_be(self) -> StudyFile:
        is_text = self.corpus.tokenizer != IDS
        least, most, what = (
            (1, math.inf, "perplexity: write at least 1") if is_text else (0, 100, "percentage, 0 to 100")
        )
        for name, number in self.evaluation.published.items():
            if not least <= number <= most:
                refuse_at(f"{number:g} is no {what}", "evaluation", "published", name)
        return self

    @model_validator(mode="after")
    def _forecast_is_beside_the_grid(self) -> StudyFile:
        if self.forecast is not None:
            self.forecast.check(self.grid)
        return self
