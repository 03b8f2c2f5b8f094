"""StudySpec: a study file with the changes of the command line, and the runs that follow from it.

Every key is checked: an unknown one, a wrong type or an impossible size is an error that names file, key and remedy
(file.py turns pydantic's findings into that one line).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from arch.config import ModelConfig, means, reads
from arch.errors import InputError
from arch.registry import archs_with, plugin_of
from data.vocabulary import vocabulary as vocabulary_of
from flops import count_params

from .axes import Point, fields_of, label_of, points_of, section_of, short
from .batch_rule import BATCH_KEYS, too_few_steps, with_batch, with_betas
from .branches import branched
from .changes import check_logged, check_read, check_target, differing, given_in
from .file import read_study, suffix_of
from .find import STUDY_FILE, came_with_others, find_study
from .forecast_section import OF_LENGTH, Forecast
from .grid import FORECAST, OF_GRID, Cell, Role
from .law_file import LAW, OWN_KEYS, horizon_of, rate_request
from .merging import merged_after
from .model_section import ModelChanges, ModelSection
from .only import chosen, of_branches
from .run import RunSpec, each_once, resolved_training, same_trunk, with_branches
from .schema import StudyFile
from .sizes import Sizes
from .training import Training


class StudySpec(StudyFile):
    """A study file with the changes of the command line. Made by load_study."""

    path: str
    published: Path | None = None  # the folder that it was published in, which has its tables and no runs
    file_archs: tuple[str, ...] = ()  # the grid's, and those that --set took out of it
    sets: tuple[str, ...] = ()
    set_results: dict[str, Any] = {}  # of fit and grid: what results follow from
    set_model: ModelChanges = ModelSection()
    set_training: Training = Training()

    @property
    def directory(self) -> Path:
        """Where its files go; beside its own of a study that was published, whose folder nothing is written to."""
        return Path(self.out).expanduser() / (f"{self.name}-published" if self.published else self.name)

    @property
    def results(self) -> Path:
        """Where fits and tables go; those of a fit or grid that --set changed lie beside the study's own."""
        return self.directory / f"results{suffix_of(self.set_results)}"

    @property
    def report(self) -> Path:
        """Where the report goes, as `results`."""
        return self.directory / f"report{suffix_of(self.set_results)}"

    @property
    def law_files(self) -> list[str]:
        """The law files that runs may follow, as the file and --set name them."""
        sections = [
            self.training,
            self.set_training,
            *(override for _, table in self.overrides for override in table.values()),
        ]
        varied = fields_of(self.grid.axes).get("training.lr_law", [])
        return list(dict.fromkeys([section.lr_law for section in sections if section.lr_law is not None] + varied))

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

    @property
    def rounds(self) -> list[Forecast]:
        """The rounds of the section `forecast`."""
        return [] if self.forecast is None else self.forecast.rounds

    def _expanded(self, cells: list[Cell], only: str | None) -> list[RunSpec]:
        branches: list[str] | None = None
        if only is not None:
            cells, branches = chosen(cells, only, self.path)
        for where, archs, fields in self._model_changes(list(dict.fromkeys(cell.arch for cell in cells))):
            for field in fields:
                if not any(reads(arch, field) for arch in archs):
                    raise InputError(
                        f"{self.origin}: {where}.{field} means nothing to {', '.join(archs)}, only to "
                        f"{', '.join(archs_with(field))}: leave it out"
                    )
        families, kinds = list[list[RunSpec]](), dict[str, Callable[[int], list[RunSpec]]]()
        for arch, size, seed, point, role, at in cells:
            kind = repr((arch, size, point, role, at))  # values of a point may be lists
            if kind not in kinds:
                kinds[kind] = self._runs_of(arch, size, point, role, at)
            families.append(kinds[kind](seed))
        try:
            _check_forecast([run for family in families for run in family], alike=bool(self.sets))
        except ValueError as error:
            raise InputError(f"{self.origin}: {error}") from None
        several = bool(self.grid.axes) or any(len(family) > 1 for family in families)
        runs = each_once(families) if several else [run for family in families for run in family]
        if several and (twice := same_trunk(runs)):
            raise InputError(
                f"{self.origin}: {twice[0]} and {twice[1]} are one trunk, trained twice: an axis beside branches "
                f"must be read before the rate falls; give it one value, or training.n_tokens in place of branches"
            )
        check_logged(runs, self.origin)
        names = [run.run_id for run in runs]
        if len(set(names)) < len(names):
            again = next(name for i, name in enumerate(names) if name in names[:i])
            raise InputError(f"{self.origin}: two runs would be called {again}: their values are too alike to be named")
        return runs if branches is None else of_branches(runs, branches, f"--only {only}")

    @property
    def _fixed(self) -> dict[str, Any]:
        """Values of fields of the axes that --set gave, which win over the axes."""
        fields = {field for axis in self.grid.axes.values() for field in axis}
        given = {f"training.{field}": value for field, value in given_in(self.set_training).items()}
        given |= {f"model.{field}": value for field, value in given_in(self.set_model).items()}
        return {field: value for field, value in given.items() if field in fields}

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
        axes = [short(field) for field in fields_of(self.grid.axes) if field.startswith("model.")]
        yield "grid.axes.model", of_file, axes
        for by, table in self.overrides:
            for key, change in table.items():
                archs = of_file if by == "by_size" else [key.partition("/")[0]]
                yield f"overrides.{by}.{key}.model", archs, given_in(change.model)

    def runs_at(self, arch: str, size: str, point: Point, seed: int) -> list[RunSpec]:
        """What is trained of any point, whether the grid has it or not."""
        return self._runs_of(arch, size, point)(seed)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the grid and of the section `forecast`."""
        more = {name: shape for round in self.rounds for name, shape in round.sizes.shapes.items()}
        return Sizes({**more, **self.grid.sizes.shapes})

    def _runs_of(
        self, arch: str, size: str, point: Point, role: Role = OF_GRID, place: int = 0
    ) -> Callable[[int], list[RunSpec]]:
        """What is trained of a cell, by its seed: a run, or a trunk and its branches; place: of a forecast's round."""
        training, file = given_in(self.training), given_in(self.model)
        for change in self.overrides.of(arch, size):
            override = given_in(change)
            file |= override.pop("model", {})
            training |= override
        training |= section_of(at := self._point_of_file(arch, point), "training")
        axes = {field: value for field, value in section_of(at, "model").items() if reads(arch, field)}
        set_training = given_in(self.set_training)
        if role == FORECAST:
            training = self.rounds[place].length(training)
            set_training = {key: value for key, value in set_training.items() if key not in OF_LENGTH}
        of_file = Training(**training)
        training |= set_training
        vocabulary = vocabulary_of(self.corpus.tokenizer)
        # a change reaches the architectures that it means something to; the others' runs stay what they are
        set_model = {field: value for field, value in given_in(self.set_model).items() if reads(arch, field)}
        file = {"vocab_size": vocabulary} | {field: value for field, value in file.items() if reads(arch, field)}
        vocab_size = (file | axes | set_model)["vocab_size"]
        plugin, where = plugin_of(arch), ", ".join(filter(None, (f"{arch}/{size}", label_of(dict(point)))))
        try:
            if vocab_size < vocabulary:
                raise InputError(
                    f"model.vocab_size={vocab_size} is smaller than the {vocabulary} tokens of "
                    f"{self.corpus.tokenizer}: leave it out"
                )
            config = self.sizes.config(arch, size, file, axes | set_model)
        except InputError as error:
            raise InputError(f"{self.origin}: {where}: {error}") from None

        def n_params() -> int:
            return count_params(config).non_embedding

        def resolve(given: dict[str, Any]) -> Training:
            return resolved_training(Training(**given), config.context_length, self.jobs.processes, where, n_params)

        try:
            check_read(training, section_of(at, "training") | set_training, where)
            training_keys, rate = self._with_rules(training, config, n_params, where)
            split = branched(training_keys, resolve, n_params, where) if training.get("branches") else None
            resolved = split.trunk if split else resolve(training_keys)
            check_target(self.corpus.target_tokens, resolved, bool(split), where)
        except InputError as error:
            raise InputError(f"{self.origin}: {error}") from None
        notes = too_few_steps(training, resolved.batch_tokens, n_params)
        notes += self.sizes.off_target(arch, size, file, n_params)
        notes = [f"{where}: {note}" for note in notes]
        # what the file says already makes no other run
        set_model = differing(set_model, config, self._of_file(arch, size, file, axes)) if set_model else {}
        set_training = differing(set_training, Training(**training), of_file)
        new = {f"training.{field}" for field in set_training} | {f"model.{field}" for field in set_model}
        named = {short(field): value for field, value in point}
        suffix, model = suffix_of(named | set_training | set_model), config.to_dict()
        sets = [change for change in self.sets if change.partition("=")[0].strip() in new]

        def of_seed(seed: int) -> list[RunSpec]:
            run = RunSpec(
                plugins=[plugin] if plugin else [],
                study=self.name,
                run_id=f"{arch}-{size}-c{config.context_length}-s{seed}{suffix}",
                arch=arch,
                size=size,
                seed=seed,
                role=role,
                round=place,
                point=dict(point),
                model=model,
                corpus=self.corpus,
                training=resolved,
                recompute=self.jobs.recompute,
                cuda_graphs=self.jobs.cuda_graphs,
                sets=sets,
                rate=rate,
                notes=notes,
            )
            if split:
                return with_branches(run, split.branches, [*split.notes, *notes])
            merged = merged_after(run.checkpoint_steps, resolved)
            return [run.model_copy(update={"merged_after": merged}) if merged else run]

        return of_seed

    def _with_rules(
        self, given: dict[str, Any], config: ModelConfig, n_params: Callable[[], int], where: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`given` with the batch and the betas that follow from its rules, and what the run asks of the law that it
        follows (RunSpec.rate), {} where its rate is a number."""
        given = with_betas(with_batch(given, config.context_length, self.jobs.processes, n_params))
        training_keys = {key: value for key, value in given.items() if key not in (*OWN_KEYS, *BATCH_KEYS)}
        if given.get("lr_law") is not None and "lr" not in given:
            raise InputError(f"training.lr_law of {where} is used with lr: law alone: add that, or leave it out")
        horizon = horizon_of(given, n_params)
        if given.get("lr") != LAW or horizon is None:
            return training_keys, {}
        if given.get("lr_law") is None and self.sweep is None:
            raise InputError(
                f"training.lr: law of {where} needs the law's file: add training.lr_law, or a section sweep that makes "
                f"it"
            )
        return training_keys, rate_request(given, horizon)

    def _of_file(self, arch: str, size: str, file: dict[str, Any], axes: dict[str, Any]) -> ModelConfig | None:
        """The model of the file without --set; None where the file alone is wrong, and --set mends it."""
        try:
            return self.sizes.config(arch, size, file, axes)
        except InputError:
            return None


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
        shape = {key: value for key, value in run.model.items() if key != "chunk_size" and means(run.arch, key)}
        first = first_of.setdefault(repr((run.arch, run.seed, run.point, shape)), run)
        if run.is_forecast and first.size != run.size:
            raise ValueError(
                f"forecast: {run.run_id} has the shape and the seed of {first.run_id}: give another size or seed"
            )


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
