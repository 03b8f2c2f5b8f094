"""The runs of a trial: the study's own, by size, and the variant's that are paired with them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arch.amounts import count
from arch.errors import InputError, nearest
from data.files import write_bytes
from flops import cost_table, count_params

from ..study.axes import label_of
from ..study.run import RunSpec
from ..study.spec import StudySpec, load_study
from ..study.variant import Variant, study_of_arch
from ..study.yaml_text import dump
from .request import Request

DATA, COMPUTE = "data", "compute"
MATCHES = (DATA, COMPUTE)
UNLIKE = 0.01  # of the parameters without embeddings, from which on a line says that they differ


@dataclass(frozen=True)
class Pair:
    """A run of the study, and the variant's of the same size, seed and branch."""

    baseline: RunSpec
    variant: RunSpec

    @property
    def size(self) -> str:
        return self.baseline.size


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

    def sizes(self) -> list[str]:
        """The study's sizes, the smallest first. Raises InputError where there are fewer than two."""
        largest = {run.size: count_params(run.config).non_embedding for run in self._all()}
        if len(largest) < 2:
            raise InputError(
                f"{self.study.path}: has one size of {self.variant.baseline}, {', '.join(largest)}: a variant is tried "
                f"at two sizes at least: add one to grid.sizes"
            )
        return sorted(largest, key=lambda size: largest[size])

    def _all(self) -> list[RunSpec]:
        """The baseline's runs. Raises InputError for another architecture than the study's, and for several points."""
        base = self.variant.baseline
        if base not in self.study.grid.archs:
            hint = "" if self.variant.is_new_arch else "; of: names the study's architecture that a new one varies"
            raise InputError(
                f"{self.study.path}: has no runs of {base}{nearest(base, list(self.study.grid.archs))}{hint}"
            )
        request = self.baseline(())
        try:
            request.check_rates()
        except InputError as error:
            raise InputError(f"{self.study.path}: of {base}, {error}") from None
        points = list(dict.fromkeys(label_of(run.point) for run in request.runs))
        if len(points) > 1:
            raise InputError(
                f"{self.study.path}: {base} has {len(points)} runs of each size and seed along the study's axes "
                f"({', '.join(points[:3])}, ...): choose one value of each with --only, as --only lr=1e-3"
            )
        return request.runs

    def only(self, sizes: Sequence[str] = (), arch: str | None = None) -> str:
        of_sizes = [f"size={'|'.join(sizes)}"] if sizes else []
        only_words = [self.request.only] if self.request.only else []
        return ",".join([f"arch={arch or self.variant.baseline}", *of_sizes, *only_words])

    def baseline(self, sizes: Sequence[str]) -> Request:
        """The study's own runs at `sizes`, as a request of their own."""
        return replace(self.request, only=self.only(sizes), forecast=False)

    def ends(self, sizes: Sequence[str]) -> list[RunSpec]:
        """The study's own runs that have an end to compare: not the trunks of branches."""
        return [run for run in self.baseline(sizes).runs if not run.branches]

    def requests(self, sizes: Sequence[str]) -> list[Request]:
        """The variant's runs at `sizes`: of one request, or of one a size where compute is matched."""
        if self.match == DATA:
            return [self._request(sizes, [])]
        return [self._request([size], self._tokens(size)) for size in sizes]

    def _request(self, sizes: Sequence[str], more: list[str]) -> Request:
        only, sets = self.only(sizes, self.variant.arch), [*self.variant.sets, *more]
        try:
            study = load_study(self.path, sets, self.study.out, only)
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

    def pairs(self, requests: Sequence[Request], sizes: Sequence[str]) -> list[Pair]:
        """Every end of the baseline with the variant's. Raises InputError where two do not belong together."""
        variant_runs = {
            (run.size, run.seed, run.branch): run for request in requests for run in request.runs if not run.branches
        }
        pairs = []
        for run in self.ends(sizes):
            other = variant_runs.get((run.size, run.seed, run.branch))
            if other is None:
                raise InputError(f"variant {self.variant.name}: has no run that belongs to {run.run_id}")
            check_pair(self.variant.name, Pair(run, other))
            pairs.append(Pair(run, other))
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
    return float(cost_table(run.config)["flops_per_token_train"]["exact"])


def check_pair(name: str, pair: Pair) -> None:
    """Raise InputError where the two runs are one, or do not read the same batches."""
    run, other = pair.baseline, pair.variant
    if run.spec_hash == other.spec_hash:
        raise InputError(
            f"variant {name}: changes nothing of {run.run_id}: the study says the same already; change another value"
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


def described(pairs: Sequence[Pair]) -> tuple[list[dict[str, Any]], list[str]]:
    """Parameters, tokens and compute of both at every size, and a line where parameters differ."""
    rows, warnings = [], []
    for pair in pairs:
        row: dict[str, Any] = {"size": pair.size, "seed": pair.baseline.seed}
        for name, run in (("baseline", pair.baseline), ("variant", pair.variant)):
            row[name] = {
                "run_id": run.run_id,
                "n_params_non_embedding": count_params(run.config).non_embedding,
                "n_tokens": run.n_tokens,
                "flops_exact": exact(run) * run.n_tokens,
                "flops_per_token_exact": exact(run),
            }
        rows.append(row)
        sizes = [row[name]["n_params_non_embedding"] for name in ("baseline", "variant")]
        if abs(math.log(sizes[1] / sizes[0])) > UNLIKE:
            warnings.append(
                f"{pair.size}: the variant has {count(sizes[1])} parameters without embeddings, the baseline "
                f"{count(sizes[0])} ({sizes[1] / sizes[0] - 1:+.1%}): they are not matched"
            )
    return rows, list(dict.fromkeys(warnings))
