"""A variant of a study's architecture, as `scaling try` takes it, and its runs beside the study's own."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from arch.amounts import count
from arch.config import means, reads
from arch.errors import InputError, nearest
from arch.registry import KNOWN, archs_with
from data.files import write_bytes
from flops import count_params, train_flops_per_token

from ..study.axes import label_of, short
from ..study.file import HINT, given_in, import_plugins, of_rounds, validate
from ..study.model_section import ModelChanges, ModelSection
from ..study.patterns import Patterns, PatternsOfStudy
from ..study.run import RunSpec
from ..study.spec import StudySpec, load_study
from ..study.training import Training
from ..study.types import Arch, Name, Plugins, Section
from ..study.yaml_text import dump, read_mapping
from .request import Request

# what would make other batches, other held-out windows or another length: no pair with the study's runs
MATCHED = {
    "training": ("n_tokens", "max_tokens", "max_steps", "branches", "batch_tokens"),
    "model": ("context_length",),
}
DATA, COMPUTE = "data", "compute"
MATCHES = (DATA, COMPUTE)
UNLIKE = 0.01  # of the parameters without embeddings, from which on a line says that they differ


class Variant(Section):
    """What a variant's file may say."""

    plugins: Plugins = []  # first, since arch is judged after it
    architectures: PatternsOfStudy = Field(default_factory=Patterns)  # likewise
    name: Name
    arch: Arch
    of: str | None = None
    model: ModelChanges = ModelSection()
    training: Training = Training()

    @property
    def baseline(self) -> str:
        """The study's architecture that it is compared with."""
        return self.of or self.arch

    @property
    def is_new_arch(self) -> bool:
        return self.baseline != self.arch

    @property
    def changes(self) -> dict[str, Any]:
        """{"model.norm": "layer", ...}, as given."""
        sections = {"model": given_in(self.model), "training": given_in(self.training)}
        return {f"{name}.{field}": value for name, given in sections.items() for field, value in given.items()}

    @property
    def sets(self) -> list[str]:
        """The changes as --set takes them."""
        return [f"{field}={json.dumps(value)}" for field, value in self.changes.items()]

    @property
    def record(self) -> dict[str, Any]:
        """What identifies it, as try.json holds it."""
        return {"name": self.name, "arch": self.arch, "of": self.baseline, "changes": self.changes}


def read_variant(path: Path) -> Variant:
    """The variant of a file. Raises InputError, one line, for anything wrong."""
    raw = read_mapping(path, "variant", "name, arch, model, training")
    import_plugins(raw, str(path))
    variant: Variant = validate(Variant, raw, str(path), [])
    arch, changes = variant.arch, variant.changes
    for field in changes:
        section, _, key = field.partition(".")
        if key in MATCHED[section]:
            raise InputError(
                f"{path}: {field}: a variant reads the study's own batches and windows, and its tokens follow from "
                f"--match: leave it out"
            )
        if section == "model" and not reads(arch, key):
            raise InputError(
                f"{path}: {field} means nothing to {arch}, only to {', '.join(archs_with(key))}: leave it out"
            )
    if not variant.is_new_arch and all(f.startswith("model.") and not means(arch, short(f)) for f in changes):
        named = f"{', '.join(changes)} changes" if changes else "changes"
        raise InputError(
            f"{path}: {named} nothing of {arch}: give another field of it in model or training, or another arch with of"
        )
    return variant


def study_of_arch(path: Path, variant: Variant) -> dict[str, Any]:
    """The study file at `path` with the variant's new architecture alone, trained as the one that it is a variant of:
    what the file says of that one holds for the new one, what it says of others is left out."""
    raw = read_mapping(path, "study", HINT)
    old, new = variant.baseline, variant.arch

    def renamed(table: Any) -> Any:
        """Keys that name an architecture, alone or as arch/size."""
        if not isinstance(table, dict):
            return table
        kept = {}
        for key, value in table.items():
            arch, slash, size = str(key).partition("/")
            if arch == old or arch not in KNOWN:
                kept[f"{new}{slash}{size}" if arch == old else key] = value
        return kept

    def read_by_new(model: Any) -> Any:
        return {key: value for key, value in model.items() if reads(new, key)} if isinstance(model, dict) else model

    def of_run(section: Any) -> Any:
        """Training or an override, with a model's fields that the new architecture reads, and its law where it lies."""
        kept = dict(section or {})
        kept |= {"model": read_by_new(kept["model"])} if "model" in kept else {}
        if isinstance(kept.get("lr_law"), str):
            kept["lr_law"] = str((path.parent / Path(kept["lr_law"]).expanduser()).resolve())
        return kept

    def of_sizes(sizes: Any) -> Any:
        if isinstance(sizes, list):
            return [of_sizes(size) for size in sizes]
        return {name: renamed(shape) for name, shape in sizes.items()} if isinstance(sizes, dict) else sizes

    named, jobs, fit = raw.get("plugins") or [], raw.get("jobs") or {}, raw.get("fit") or {}
    raw["plugins"] = list(dict.fromkeys([*([named] if isinstance(named, str) else named), *variant.plugins]))
    raw["architectures"] = (raw.get("architectures") or {}) | variant.model_dump()["architectures"]
    raw |= {"training": of_run(raw.get("training")), "model": read_by_new(raw.get("model", {}))}
    raw["grid"] = raw["grid"] | {"archs": [new], "sizes": of_sizes(raw["grid"].get("sizes"))}
    raw |= of_rounds(raw, of_sizes)
    raw["overrides"] = {
        by: {key: of_run(section) for key, section in renamed(table).items()}
        for by, table in (raw.get("overrides") or {}).items()
    }
    raw["fit"] = {key: value for key, value in fit.items() if not key.startswith("range")}
    return raw | {"jobs": jobs | ({"resources": renamed(jobs["resources"])} if "resources" in jobs else {})}


@dataclass(frozen=True)
class Pair:
    """A run of the study, and the variant's of the same size, seed and branch."""

    baseline: RunSpec
    variant: RunSpec

    @property
    def size(self) -> str:
        return self.baseline.size

    def to_dict(self) -> dict[str, Any]:
        """Parameters, tokens and compute of both."""
        return {"size": self.size, "seed": self.baseline.seed} | {
            name: {
                "run_id": run.run_id,
                "n_params_non_embedding": count_params(run.config).non_embedding,
                "n_tokens": run.n_tokens,
                "flops_exact": exact(run) * run.n_tokens,
                "flops_per_token_exact": exact(run),
            }
            for name, run in (("baseline", self.baseline), ("variant", self.variant))
        }

    def check(self, name: str) -> None:
        """Raise InputError where the two runs are the same, or do not read the same batches."""
        run, other = self.baseline, self.variant
        if run.spec_hash == other.spec_hash:
            raise InputError(
                f"variant {name}: changes nothing of {run.run_id}: the study says the same already; change another "
                f"value"
            )
        for what, first, second in (
            ("batch_tokens", run.training.batch_tokens, other.training.batch_tokens),
            ("context_length", run.context_length, other.context_length),
            ("tokenizer", run.corpus.tokenizer, other.corpus.tokenizer),
            ("corpus", run.corpus.model_dump(exclude={"source"}), other.corpus.model_dump(exclude={"source"})),
            ("seed", run.seed, other.seed),
        ):
            if first != second:
                raise InputError(
                    f"variant {name}: {what} of {other.run_id} is {second}, the study's {run.run_id} has {first}: they "
                    f"read other batches, and cannot be paired"
                )


def unlike(pairs: Sequence[Pair]) -> list[str]:
    """A line for each size at which parameters differ."""
    lines = []
    for pair in pairs:
        base, other = (count_params(run.config).non_embedding for run in (pair.baseline, pair.variant))
        if abs(math.log(other / base)) > UNLIKE:
            lines.append(
                f"{pair.size}: the variant has {count(other)} parameters without embeddings, the baseline "
                f"{count(base)} ({other / base - 1:+.1%}): they are not matched"
            )
    return list(dict.fromkeys(lines))


@dataclass(frozen=True)
class Trial:
    """What `scaling try` works on. `study`: the baseline's; `path`: the file that the variant's runs are of."""

    request: Request
    variant: Variant
    match: str
    path: str

    @property
    def study(self) -> StudySpec:
        return self.request.study

    @property
    def folder(self) -> Path:
        return self.study.directory / "tries" / self.variant.name

    @cached_property
    def sizes(self) -> list[str]:
        """The study's sizes, the smallest first. Raises InputError where there are fewer than two, for another
        architecture than the study's, and for several points of its axes."""
        base, path = self.variant.baseline, self.study.path
        if base not in self.study.grid.archs:
            hint = "" if self.variant.is_new_arch else "; of: names the study's architecture that a new one varies"
            raise InputError(f"{path}: has no runs of {base}{nearest(base, list(self.study.grid.archs))}{hint}")
        request = self.baseline(())
        try:
            request.check_rates()
        except InputError as error:
            raise InputError(f"{path}: of {base}, {error}") from None
        points = list(dict.fromkeys(label_of(run.point) for run in request.runs))
        if len(points) > 1:
            raise InputError(
                f"{path}: {base} has {len(points)} runs of each size and seed along the study's axes "
                f"({', '.join(points[:3])}, ...): choose one value of each with --only, as --only lr=1e-3"
            )
        largest = {run.size: count_params(run.config).non_embedding for run in request.runs}
        if len(largest) < 2:
            raise InputError(
                f"{path}: has one size of {base}, {', '.join(largest)}: a variant is tried at two sizes at least: add "
                f"one to grid.sizes"
            )
        return sorted(largest, key=lambda size: largest[size])

    def _only(self, sizes: Sequence[str], arch: str) -> str:
        of_sizes = [f"size={'|'.join(sizes)}"] if sizes else []
        return ",".join([f"arch={arch}", *of_sizes, *([self.request.only] if self.request.only else [])])

    def baseline(self, sizes: Sequence[str]) -> Request:
        """The study's own runs at `sizes`, as a request of their own; () for all sizes."""
        return replace(self.request, only=self._only(sizes, self.variant.baseline), forecast=False)

    def ends(self, sizes: Sequence[str]) -> list[RunSpec]:
        """The study's own runs that have an end to compare: not the trunks of branches."""
        return [run for run in self.baseline(sizes).runs if not run.branches]

    def requests(self, sizes: Sequence[str]) -> list[Request]:
        """The variant's runs at `sizes`: of one request, or of one a size where compute is matched."""
        if self.match == DATA:
            return [self._request(sizes, [])] if sizes else []
        return [self._request([size], self._tokens(size)) for size in sizes]

    def runs(self, sizes: Sequence[str]) -> list[RunSpec]:
        """The variant's runs at `sizes`."""
        return [run for request in self.requests(sizes) for run in request.runs]

    def _request(self, sizes: Sequence[str], more: list[str]) -> Request:
        only = self._only(sizes, self.variant.arch)
        try:
            study = load_study(self.path, [*self.variant.sets, *more], self.study.out, only)
        except InputError as error:
            raise InputError(f"variant {self.variant.name}: {error}") from None
        return Request(study, only, self.request.stream, forecast=False, repair=self.request.repair)

    def _tokens(self, size: str) -> list[str]:
        """The change of n_tokens by which the variant spends what the baseline did, in whole batches."""
        baseline = self.ends([size])
        if any(run.trunk for run in baseline):
            raise InputError(f"--match compute: the study's runs at {size} are branches: use --match data")
        variant = self._request([size], []).runs[0]
        ratio = exact(baseline[0]) / exact(variant)
        tokens = max(1, round(baseline[0].n_steps * ratio)) * variant.training.batch_tokens
        return [] if tokens == baseline[0].n_tokens else [f"training.n_tokens={tokens}"]

    def pairs(self, sizes: Sequence[str]) -> list[Pair]:
        """Every end of the baseline with the variant's. Raises InputError where two do not belong together."""
        variant_runs = {(run.size, run.seed, run.branch): run for run in self.runs(sizes) if not run.branches}
        pairs = []
        for run in self.ends(sizes):
            other = variant_runs.get((run.size, run.seed, run.branch))
            if other is None:
                raise InputError(f"variant {self.variant.name}: has no run that belongs to {run.run_id}")
            pairs.append(Pair(run, other))
            pairs[-1].check(self.variant.name)
        return pairs


@contextmanager
def opened(request: Request, variant: Variant, match: str, dry_run: bool) -> Iterator[Trial]:
    """The trial; a new architecture's study file lies in its folder, or, where nothing is to be written, elsewhere."""
    if match not in MATCHES:
        raise InputError(f"--match: {match!r}{nearest(match, list(MATCHES))}")
    trial = Trial(request, variant, match, request.study.path)
    if not variant.is_new_arch:
        yield trial
        return
    content = dump(study_of_arch(Path(request.study.path), variant)).encode()
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing) if dry_run else trial.folder
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "study.yaml", content)
        yield replace(trial, path=str(folder / "study.yaml"))


def exact(run: RunSpec) -> float:
    """Training FLOP a token, convention exact."""
    return train_flops_per_token(run.config, "exact")
