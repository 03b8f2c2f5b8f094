"""StudySpec: a study file with the changes of the command line, and the runs that follow from it.

Every key is checked: an unknown one, a wrong type or an impossible size is an error that names file, key and remedy
(file.py turns pydantic's errors into that one line).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.amounts import counted
from arch.config import ARCHS, PATTERN, ModelConfig, means, reads
from arch.errors import InputError
from arch.outside import modules_of
from arch.registry import archs_with, in_family, kinds_of, plugins_of
from data.labelled_sources import facts_of
from data.vocabulary import vocabulary as vocabulary_of
from flops import count_params, train_flops_per_token

from .axes import Point, fields_of, label_of, points_of, section_of, short
from .file import STUDY_FILE, came_with_others, find_study, given_in, read_study, suffix_of
from .model_section import ModelChanges, ModelSection
from .only import chosen, of_branches
from .recipe import WEIGHT_DECAY
from .run import LawRate, RunSpec, each_once, same_model, same_trunk, with_branches
from .schedule import planned_steps
from .schema import FORECAST, OF_LENGTH, Cell, Forecast, Objective, StudyFile
from .sizes import Sizes
from .training import Training
from .training_rules import (
    LAW,
    Keys,
    Resolved,
    Sized,
    check_parts,
    check_read,
    horizon_of,
    or_default,
    resolve_training,
    schedule_of,
)


class StudySpec(StudyFile):
    """A study file with the changes of the command line. Made by load_study."""

    path: str
    published: Path | None = None  # the folder that it was published in, which has its tables and no runs
    file_archs: tuple[str, ...] = ()  # the grid's, and those that --set took out of it
    sets: tuple[str, ...] = ()
    set_results: dict[str, Any] = {}  # of fit and grid: what results follow from
    set_model: ModelChanges = ModelSection()
    set_training: Training = Training()
    live: bool = False  # whether results and report are those that are drawn while it trains

    @property
    def directory(self) -> Path:
        """Where its files go; beside its own of a study that was published, whose folder nothing is written to."""
        return Path(self.out).expanduser() / (f"{self.name}-published" if self.published else self.name)

    @property
    def results(self) -> Path:
        """Where fits and tables go; those of a fit or grid that --set changed lie beside the study's own."""
        return self.directory / f"results{suffix_of(self.set_results)}{'-live' * self.live}"

    @property
    def report(self) -> Path:
        """Where the report goes, as `results`."""
        return self.directory / f"report{suffix_of(self.set_results)}{'-live' * self.live}"

    @property
    def law_files(self) -> list[str]:
        """The law files that runs may follow, as the file and --set name them."""
        overrides = (override for _, table in self.overrides for override in table.values())
        named = [section.lr_law for section in (self.training, self.set_training, *overrides)]
        varied = fields_of(self.grid.axes).get("training.lr_law", [])
        return list(dict.fromkeys([*(law for law in named if law is not None), *varied]))

    @property
    def modules(self) -> list[str]:
        """The modules from outside that it names: its plugins, and those of its evaluation tasks."""
        return list(dict.fromkeys([*self.plugins, *modules_of(self.evaluation.tasks or ())]))

    @property
    def origin(self) -> str:
        """Where the settings come from, for messages: the file, and the changes of the command line."""
        return " --set ".join((self.path, *self.sets))

    @property
    def is_variant(self) -> bool:
        """Whether a change of --set made a run another than the file's, or cannot be made to every run of the grid."""
        try:
            return bool(self.sets) and any(run.sets for run in self.runs())
        except InputError:
            return True

    @property
    def rounds(self) -> list[Forecast]:
        """The rounds of the section `forecast`."""
        return [] if self.forecast is None else self.forecast.rounds

    @property
    def sizes(self) -> Sizes:
        """The sizes of the grid and of the section `forecast`."""
        more = {name: shape for round in self.rounds for name, shape in round.sizes.shapes.items()}
        return Sizes({**more, **self.grid.sizes.shapes})

    def run_directory(self, run: RunSpec) -> Path:
        return self.directory / "runs" / run.run_id

    def runs(self, only: str | None = None) -> list[RunSpec]:
        """The grid's runs in file order, a trunk before its branches; `only` keeps some, as
        "arch=hgrn2|tnl,size=98k,seed=0".

        Raises InputError where nothing matches, where the settings of a run that is kept do not go together, or where a
        change of the model means nothing to any of the architectures that it is for.
        """
        return self._expanded(list(self.grid.cells(self._fixed)), only)

    def all_runs(self, only: str | None = None) -> list[RunSpec]:
        """The grid's runs, and those of the section `forecast` after them. Raises InputError as `runs` does, and where
        one is both."""
        cells = list(self.grid.cells(self._fixed))
        if self.forecast is not None:
            cells += self.forecast.cells(self.grid, self._fixed)
        return self._expanded(cells, only)

    def forecast_runs(self, round: int | None = None) -> list[RunSpec]:
        """The runs of one round of the section `forecast`, the first being 0, or of all rounds."""
        runs = self.all_runs() if self.forecast is not None else []
        return [run for run in runs if run.is_forecast and round in (None, run.round)]

    def runs_at(self, arch: str, size: str, point: Point, seed: int) -> list[RunSpec]:
        """What is trained of any point, whether the grid has it or not."""
        return self._runs_of(Cell(arch, size, seed, point))(seed)

    def _expanded(self, cells: list[Cell], only: str | None) -> list[RunSpec]:
        self.architectures.register()
        branches: list[str] | None = None
        if only is not None:
            cells, branches = chosen(cells, only, self.path)
        self._check_model_changes(list(dict.fromkeys(cell.arch for cell in cells)))
        families, kinds = list[list[RunSpec]](), dict[str, Callable[[int], list[RunSpec]]]()
        for cell in cells:
            kind = repr(cell._replace(seed=0))  # values of a point may be lists
            if kind not in kinds:
                kinds[kind] = self._runs_of(cell)
            families.append(kinds[kind](cell.seed))
        runs = [run for family in families for run in family]
        several = bool(self.grid.axes) or any(len(family) > 1 for family in families)
        try:
            _check_forecast(runs, alike=bool(self.sets))
            if several:
                runs = each_once(families)
                _check_trunks(runs)
            _check_runs(runs)
        except ValueError as error:
            raise InputError(f"{self.origin}: {error}") from None
        return runs if branches is None else of_branches(runs, branches, f"--only {only}")

    @property
    def _fixed(self) -> dict[str, Any]:
        """Values of fields of the axes that --set gave, which win over the axes."""
        given = {f"training.{field}": value for field, value in given_in(self.set_training).items()}
        given |= {f"model.{field}": value for field, value in given_in(self.set_model).items()}
        return {field: value for field, value in given.items() if field in self.grid.axes}

    def _point_of_file(self, arch: str, point: Point) -> dict[str, Any]:
        """The point itself where the file's grid has it, else one that --set made this of."""
        fixed = self._fixed
        if not fixed:
            return dict(point)
        of_file = list(points_of(self.grid.axes, arch, {}))
        alike = (
            candidate
            for candidate in of_file
            if all(at == value for at, value in zip(candidate, point, strict=True) if at[0] not in fixed)
        )
        return dict(point if point in of_file else next(alike))

    def _model_changes(self, chosen: list[str]) -> Iterator[tuple[str, list[str], Iterable[str]]]:
        """(where it is given, the architectures that it is for, the fields) of every change of a model; those of --set
        are for the `chosen` ones."""
        of_file = list(self.file_archs)
        yield "model", of_file, given_in(self.model)
        yield "model", chosen, given_in(self.set_model)
        yield "grid.axes.model", of_file, [short(f) for f in fields_of(self.grid.axes) if f.startswith("model.")]
        for by, table in self.overrides:
            for key, change in table.items():
                archs = of_file if by == "by_size" else [key.partition("/")[0]]
                yield f"overrides.{by}.{key}.model", archs, given_in(change.model)

    def _check_model_changes(self, chosen: list[str]) -> None:
        for where, archs, fields in self._model_changes(chosen):
            for field in fields:
                if not any(reads(arch, field) for arch in archs):
                    raise InputError(
                        f"{self.origin}: {where}.{field} means nothing to {', '.join(archs)}, only to "
                        f"{', '.join(archs_with(field))}: leave it out"
                    )

    def _runs_of(self, cell: Cell) -> Callable[[int], list[RunSpec]]:
        """What is trained of a cell, by its seed: a run, or a trunk and its branches."""
        arch, size, point = cell.arch, cell.size, cell.point
        where = ", ".join(filter(None, (f"{arch}/{size}", label_of(dict(point)))))
        training, file_model = given_in(self.training), given_in(self.model)
        for change in self.overrides.of(arch, size):
            override = given_in(change)
            file_model |= override.pop("model", {})
            training |= override
        at = self._point_of_file(arch, point)
        training |= section_of(at, "training")
        set_training = given_in(self.set_training)
        if cell.role == FORECAST:
            training = self.rounds[cell.round].length(training)
            set_training = {key: value for key, value in set_training.items() if key not in OF_LENGTH}
        of_file = Training(**training)
        training |= set_training

        # a change reaches the architectures that it means something to; the others' runs stay what they are
        def read(fields: dict[str, Any]) -> dict[str, Any]:
            return {field: value for field, value in fields.items() if reads(arch, field)}

        of_corpus = self._fields_of_corpus()
        vocabulary = of_corpus["vocab_size"]
        file_model = of_corpus | read(file_model)
        axes_model, set_model = read(section_of(at, "model")), read(given_in(self.set_model))
        try:
            stated = file_model | axes_model | set_model
            if stated["vocab_size"] < vocabulary:
                raise InputError(
                    f"model.vocab_size={stated['vocab_size']} is smaller than the {vocabulary} tokens of "
                    f"{self.corpus.tokenizer}: leave it out"
                )
            if "context_length" in of_corpus:
                _check_row(of_corpus["context_length"], [self.sizes.own(arch, size), stated], self.corpus.source[0])
            config = self.sizes.config(arch, size, file_model, axes_model | set_model)
        except InputError as error:
            raise InputError(f"{self.origin}: {where}: {error}") from None

        def n_params() -> int:
            return count_params(config).non_embedding

        def flops_per_token() -> float:
            return train_flops_per_token(config, "exact")

        in_parts = self.jobs.sequence_processes
        sharing = self.jobs.processes // in_parts
        sized = Sized(config.context_length, sharing, n_params, flops_per_token, where, in_parts)
        changes, rules = section_of(at, "training") | set_training, dict[str, str]()
        try:
            given = training
            if self.recipe is not None:
                given, rules = self.recipe.fill(training, sized)
            check_read(given, changes, where)
            rate = self._law_rate(given, sized, rules)
            resolved = resolve_training(given, sized)
            if in_parts > 1:
                check_parts(config, resolved.training, in_parts, where)
            _check_target(self.corpus.target_tokens, resolved, where)
        except InputError as error:
            raise InputError(f"{self.origin}: {error}") from None
        off_target = self.sizes.off_target(arch, size, file_model, n_params)
        # what the file says already makes no other run
        if set_model:
            set_model = _differing(set_model, config, self._model_of_file(arch, size, file_model, axes_model))
        set_training = _differing(set_training, Training(**training), of_file)
        new = {f"training.{field}" for field in set_training} | {f"model.{field}" for field in set_model}
        named = {short(field): value for field, value in point}
        suffix = suffix_of(named | set_training | set_model)
        shared = RunSpec(
            plugins=plugins_of(kinds_of(arch)),
            study=self.name,
            run_id=f"{arch}-{size}",
            arch=arch,
            size=size,
            seed=0,
            role=cell.role,
            round=cell.round,
            point=dict(point),
            model=config.to_dict(),
            corpus=self.corpus,
            training=resolved.training,
            recompute=self.jobs.recompute,
            sequence_processes=in_parts,
            cuda_graphs=self.jobs.cuda_graphs and not any(map(in_family, kinds_of(arch))),
            checked=self.jobs.checked or arch in ARCHS,
            tracking=self.tracking,
            sets=[change for change in self.sets if change.partition("=")[0].strip() in new],
            rate=rate,
            rules=rules,
            notes=[*resolved.notes, *(f"{where}: {note}" for note in off_target)],
        )

        def of_seed(seed: int) -> list[RunSpec]:
            run_id = f"{arch}-{size}-c{config.context_length}-s{seed}{suffix}"
            run = shared.model_copy(update={"run_id": run_id, "seed": seed})
            return with_branches(run, resolved.branches) if resolved.branches else [run]

        return of_seed

    def _fields_of_corpus(self) -> dict[str, Any]:
        """The fields of all models that follow from the corpus."""
        if not (source := self.corpus.settings().labelled):
            return {"vocab_size": vocabulary_of(self.corpus.tokenizer)}
        try:
            facts = facts_of(source, self.directory / "corpus")
        except InputError as error:
            raise InputError(f"{self.origin}: corpus.source: {str(error).removeprefix('corpus.source: ')}") from None
        if self.corpus.augment is not None and not facts.encoded:
            raise InputError(
                f"{self.origin}: corpus.augment: is of folders of images, and {source} is none: leave it out"
            )
        encoder = {
            "n_classes": facts.n_classes,
            "padding_id": facts.padding_id,
            "documents": facts.documents_per_example,
            "image": facts.image,
            **(self.objective or Objective()).model_dump(),
        }
        return {"vocab_size": facts.vocab_size, "context_length": facts.row, "encoder": encoder}

    def _law_rate(self, given: Keys, model: Sized, rules: dict[str, str]) -> LawRate | None:
        """What the run asks of the law that it follows; None where its rate is a number."""
        if given.get("lr_law") is not None and "lr" not in given:
            raise InputError(f"training.lr_law of {model.where} is used with lr: law alone: add that, or leave it out")
        horizon = horizon_of(given, model)
        if given.get("lr") != LAW or horizon is None:
            return None
        if given.get("lr_law") is None and self.sweep is None:
            raise InputError(
                f"training.lr: law of {model.where} needs the law's file: add training.lr_law, or a section sweep that "
                f"makes it"
            )
        beyond = or_default(given, "lr_law_beyond")
        tau = None
        if self.recipe is not None and WEIGHT_DECAY in rules:
            tau = self.recipe.tau(model.n_params(), horizon)
        law, schedule = given.get("lr_law"), schedule_of(given)
        return LawRate(law=law, horizon=horizon, beyond=beyond, schedule=schedule, timescale=tau)

    def _model_of_file(self, arch: str, size: str, file: Keys, axes: Keys) -> ModelConfig | None:
        """The model of the file without --set; None where the file alone is wrong, and --set mends it."""
        try:
            return self.sizes.config(arch, size, file, axes)
        except InputError:
            return None


def _differing(changes: Keys, section: Any, other: Any) -> Keys:
    """The changes to fields that two sections or configurations do not agree on; all where there is no other."""
    if other is None:
        return changes
    pairs = list(zip(_by_kind(section), _by_kind(other), strict=True))
    return {
        field: value
        for field, value in changes.items()
        if any(first.get(field) != second.get(field) for first, second in pairs)
    }


def _by_kind(section: Any) -> list[dict[str, Any]]:
    """The fields of a section, or of each kind of a model's layers."""
    kinds = section.kinds if isinstance(section, ModelConfig) else [section]
    return [kind.to_dict() if isinstance(kind, ModelConfig) else kind.model_dump() for kind in kinds]


def _check_row(row: int, given: Sequence[Mapping[str, Any]], source: Any) -> None:
    """Raise InputError where fields of a model state another context than the rows of its labelled set."""
    for fields in given:
        if (stated := fields.get("context_length", row)) != row:
            raise InputError(
                f"model.context_length={stated} is not the {row} ids of a row of {source}, from which it follows: "
                f"leave it out"
            )


def _check_target(target: int | None, resolved: Resolved, where: str) -> None:
    """Raise InputError for a run that is longer than the one that the laws are for, and for branches, whose trunk
    would read as much text for each of them."""
    n_tokens = resolved.training.n_tokens
    if target is not None and resolved.branches:
        raise InputError(
            f"corpus.target_tokens of {where} with training.branches: runs of several lengths read several shares of "
            f"the text, so they share no trunk; give training.n_tokens in place of branches"
        )
    if target is not None and isinstance(n_tokens, int) and n_tokens > target:
        raise InputError(
            f"corpus.target_tokens: {target:,} are fewer than the {n_tokens:,} tokens of {where}: plan fewer, or give "
            f"the tokens of a longer target"
        )


def _check_forecast(runs: Sequence[RunSpec], alike: bool = False) -> None:
    """Raise ValueError where a forecast run is one of the grid too, or (unless sizes may be made alike, by --set) is
    another run by its shape and seed, whatever its size is called: a fit would see what it predicts."""
    of_grid = {run.run_id for run in runs if not run.is_forecast}
    if twice := next((run.run_id for run in runs if run.is_forecast and run.run_id in of_grid), None):
        raise ValueError(f"forecast: {twice} is a run of the grid: give another size or seed")
    if alike or not any(run.is_forecast for run in runs):
        return
    first_of: dict[str, RunSpec] = {}
    for run in runs:
        # chunks are a way to compute the same model
        of_model = {key for key in run.model if key in PATTERN or (key != "chunk_size" and means(run.arch, key))}
        shape = {key: run.model[key] for key in sorted(of_model)}
        first = first_of.setdefault(repr((run.arch, run.seed, run.point, shape)), run)
        if run.is_forecast and first.size != run.size:
            raise ValueError(
                f"forecast: {run.run_id} has the shape and the seed of {first.run_id}: give another size or seed"
            )


def _check_trunks(runs: Sequence[RunSpec]) -> None:
    if twice := same_trunk(runs):
        raise ValueError(
            f"{twice[0]} and {twice[1]} are one trunk, trained twice: an axis beside branches must be read before the "
            f"rate falls; give it one value, or training.n_tokens in place of branches"
        )


def _check_runs(runs: Sequence[RunSpec]) -> None:
    """Raise ValueError for a run whose losses are written at its checkpoints alone, and for two of one name."""
    has_patterns = any("layers" in run.model for run in runs)  # others of one mixer are of plugins: scaling.check
    if has_patterns and (same := next(same_model(runs), None)):
        raise ValueError(f"{same[0]} and {same[1]} are the same model: leave out one of the two architectures")
    names = set[str]()
    for run in runs:
        every, steps = run.training.log_every, planned_steps(run.training)
        if every > steps and run.trunk is None:
            raise ValueError(
                f"training.log_every={every} of {run.run_id} is more than its {counted(steps, 'step')}: no loss would "
                f"be written between its checkpoints; give fewer steps"
            )
        if run.run_id in names:
            raise ValueError(f"two runs would be called {run.run_id}: their values are too alike to be named")
        names.add(run.run_id)


def load_study(
    path: str | Path,
    sets: list[str] | None = None,
    out: str | Path | None = None,
    only: str | None = None,
    published: bool = False,
    own: bool = False,
) -> StudySpec:
    """The study of a YAML file (or of a bare name like `quickstart`), changed by `sets` and `out`; with `published` of
    a folder that `scaling publish` wrote too. own: the user named it, so that plugins and tasks from outside that its
    file names may be imported, unless it came with a published folder or a bundle.

    `only`: the runs that the changes are for, as of StudySpec.runs; they may be such as suit no other.

    Changes of training and model come after all overrides and name their runs (`-lr0.001`); changes of corpus,
    evaluation, fit, grid and jobs replace what the file says. Raises InputError, one line, for anything wrong,
    including settings of single runs that do not go together.
    """
    folder = Path(path) if published and os.path.isfile(Path(path) / STUDY_FILE) else None
    file = folder / STUDY_FILE if folder else find_study(path)
    may = own and folder is None and not came_with_others(file)
    study = StudySpec.model_construct(**read_study(file, list(sets or []), out, may), published=folder)
    study.all_runs(only if sets else None)
    return study
