"""RunSpec: one run, resolved. It holds everything that decides the run's numbers, and their hash; where results go and
how many runs go at once is not part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from arch.config import ModelConfig, means
from arch.errors import InputError
from arch.registry import ARCHITECTURES, Architecture, register_pattern
from data.share import share_of
from data.vocabulary import portable

from .axes import label_of
from .rate_law import Term
from .schedule import FIELDS, SCHEDULES, decay_start, planned_steps
from .schema import FORECAST, OF_GRID, Corpus, Role
from .training import BatchSplit, Training, split_batch
from .training_rules import BATCH_KEYS, LAW, LAW_KEYS
from .types import Arch, Parallel, Plugins, Section, Seed, Share, Size

# of a training: what it is to a run's end, or leaves on disk
ENDINGS = {"n_tokens", "max_steps", "n_checkpoints", "checkpoint_tokens", "checkpoint_dtype"}
ENDINGS |= {"state_every_tokens", "keep_states", "log_every", *FIELDS}
LATER = ("checked", "sequence_processes", "tracking", "round", "role", "rules")  # of a record: not at their defaults
GONE_INTO_OTHERS = ("max_tokens", "branches", *LAW_KEYS, *BATCH_KEYS)  # fields of training


@lru_cache(maxsize=8192)
def _config(architecture: Architecture | None, kinds: tuple[type, ...], *fields: tuple[str, Any]) -> ModelConfig:
    """The configuration of a model's fields and their types (True is no 1), kept because the runs of a study share few.
    `architecture` is the one registered now: a plugin may register another."""
    return ModelConfig.from_dict(dict(fields))


class FollowedLaw(Section):
    """What a law gave a run. low, high: the interval of its rate at the law's level; outside: how many times N, D or
    the batch lie outside of what was swept; swept_model: fields of the model that the swept runs had otherwise."""

    law_sha256: str
    low: float
    high: float
    level: float
    outside: dict[Term, float]
    corpus_fingerprint: str | None
    swept_model: dict[str, Any] = {}


class LawRate(Section):
    """The learning rate of a run with `lr: law`. law: the law's file, None of the study's own sweep; horizon: tokens
    that the rate is chosen for; beyond: how far outside of the swept ones it may lie; schedule: by name with its
    fields, which a trunk has of its branches; timescale: of the section recipe, from which its weight decay follows.
    While there is no rate, `pending` says why, and `swept` whether another
    sweep would not give it either."""

    law: str | None
    horizon: float
    beyond: float
    schedule: dict[str, Any]
    timescale: float | None = None
    pending: str = ""
    swept: bool = False
    followed: FollowedLaw | None = None


class RunSpec(Section):
    """One run, resolved: everything that decides its numbers."""

    plugins: Plugins = []  # the one that has the architecture; first, since arch is judged after it
    study: str
    run_id: str
    arch: Arch
    size: Size
    seed: Seed
    role: Role = OF_GRID  # of the latter no fit sees anything; decides no number
    round: int = 0  # of a forecast run: its place among the rounds of the forecast; decides none either
    point: dict[str, Any] = {}  # of the grid's axes, by field: where it has values of training and model from
    model: dict[str, Any]  # ModelConfig.to_dict()
    corpus: Corpus
    training: Training
    recompute: Share = False  # jobs.recompute: decides no number, but for rounding on Hopper
    sequence_processes: Parallel = 1  # jobs.sequence_processes: decides none, but for rounding
    cuda_graphs: bool = True  # jobs.cuda_graphs: decides none either
    checked: bool = True  # jobs.checked: neither
    tracking: list[str] = []  # of the study: nor does it
    sets: list[str] = []  # the --set changes that made this variant, for the reader
    trunk: str | None = None  # of a branch: the run from whose state it begins; the numbers are those without one
    branches: dict[str, int] = {}  # of a trunk: {run id: the step after which it begins}
    notes: list[str] = []  # for the reader: branches that are one, a law's limits
    rate: LawRate | None = None  # of a run with lr: law
    rules: dict[str, str] = {}  # of the section recipe, in words: what batch, betas and weight decay followed

    @model_validator(mode="before")
    @classmethod
    def _registers_its_pattern(cls, raw: Any) -> Any:
        """A record holds the whole of a pattern, which the process that reads it may not know."""
        model = raw.get("model") if isinstance(raw, dict) else None
        if isinstance(model, dict) and "layers" in model and raw.get("arch") not in ARCHITECTURES:
            with suppress(InputError, TypeError, AttributeError):  # then arch is not known
                register_pattern(raw["arch"], model["layers"], model["kinds"])
        return raw

    @model_serializer(mode="wrap")
    def _without_the_usual_role(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The record of a run names a role and a round only where it is a forecast's, rules and trackers only where it
        has some, and only where this was asked for that its architecture was not checked or processes read parts of
        sequences."""
        usual = {name for name in LATER if getattr(self, name) == RunSpec.model_fields[name].default}
        return {key: value for key, value in dump(self).items() if key not in usual}

    @property
    def is_forecast(self) -> bool:
        return self.role == FORECAST

    @property
    def round_number(self) -> int | None:
        """Of a forecast run, the number of its round, from 1 on."""
        return self.round + 1 if self.is_forecast else None

    @property
    def spec_hash(self) -> str:
        """16 hex digits over what decides the numbers: not over names, paths, evaluation or fit. Fields at their
        default are left out, so that a new one changes no hash. The text itself counts by the corpus' fingerprint,
        wherever it lies."""
        canonical = json.dumps(self._decisive(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def _decisive(self) -> dict[str, Any]:
        """What decides the run's numbers, without what is at its default."""
        parts = self.model_dump(mode="json", include={"arch", "size", "seed"})
        parts["corpus"] = self.corpus.model_dump(mode="json", exclude={"source"}, exclude_defaults=True)
        parts["corpus"]["tokenizer"] = portable(self.corpus.tokenizer)
        if mixture := self.corpus.settings().identity().get("mixture"):
            parts["corpus"]["mixture"] = mixture
        parts["model"] = self.config.identity()
        parts["training"] = decisive(self.training)
        if self.is_pending and self.rate is not None:
            parts["law"] = self.rate.law
        if self.plugins:
            parts["plugins"] = self.plugins
        return parts

    @property
    def is_pending(self) -> bool:
        """Whether it has no learning rate: it follows a law (scaling.study.rates.resolve). It may be planned, not
        trained."""
        return self.training.lr == LAW

    @property
    def config(self) -> ModelConfig:
        try:
            return _config(ARCHITECTURES.get(self.arch), tuple(map(type, self.model.values())), *self.model.items())
        except TypeError:  # a stored value that is none of a model's
            return ModelConfig.from_dict(self.model)

    @property
    def kind(self) -> tuple[str, ...]:
        """(architecture, size, point, branch): what runs share that differ by their seed alone."""
        return self.arch, self.size, label_of(self.point), self.branch or ""

    @property
    def where(self) -> str:
        """What messages call the runs of its kind: arch/size and its point."""
        return ", ".join(filter(None, (f"{self.arch}/{self.size}", label_of(self.point))))

    @property
    def context_length(self) -> int:
        return int(self.model["context_length"])

    def batch_split(self, processes: int) -> BatchSplit:
        """How a batch of this run splits over so many processes."""
        return split_batch(self.training, self.context_length, processes, sequence=self.sequence_processes)

    @property
    def n_steps(self) -> int:
        """Optimizer steps: the planned tokens rounded up to whole batches, fewer under max_steps."""
        steps = planned_steps(self.training)
        return min(steps, self.training.max_steps or steps)

    @property
    def n_tokens(self) -> int:
        """Tokens this run trains on: n_steps whole batches."""
        return self.n_steps * self.training.batch_tokens

    @property
    def text_share(self) -> Fraction:
        """The share of every source that this run reads: corpus.target_tokens."""
        planned = planned_steps(self.training) * self.training.batch_tokens
        return share_of(planned, self.corpus.target_tokens)

    @property
    def branch(self) -> str:
        """`trunk` of a trunk, the ending of its id of a branch (d5m), "" of any other run."""
        if self.trunk is not None:
            return self.run_id.removeprefix(f"{self.trunk}-")
        return "trunk" if self.branches else ""

    @property
    def begins_after(self) -> int:
        """The step after which this run itself trains: 0, or of a branch the last step of the constant rate."""
        return 0 if self.trunk is None else decay_start(self.training)

    @property
    def trained_steps(self) -> int:
        """Steps that this run itself makes: of a branch those of the decay."""
        return self.n_steps - self.begins_after

    @property
    def trained_tokens(self) -> int:
        return self.trained_steps * self.training.batch_tokens

    @property
    def branch_steps(self) -> set[int]:
        """The steps of a trunk after which a branch begins."""
        return set(self.branches.values())

    @property
    def beginning(self) -> str:
        """Equal of runs that have the same numbers as long as their rates are: they differ in their lengths, their
        checkpoints and what the rate does at the end."""
        parts = self._decisive()
        endings = ENDINGS - ({"n_tokens"} if self.corpus.target_tokens else set())  # it decides the text
        parts["training"] = {key: value for key, value in parts["training"].items() if key not in endings}
        return json.dumps(parts, sort_keys=True)

    @property
    def checkpoint_steps(self) -> list[int]:
        """1-based steps after which a checkpoint is written, ascending; the last step is always one of them."""
        assert self.training.checkpoint_tokens is not None
        steps = {math.ceil(tokens / self.training.batch_tokens) for tokens in self.training.checkpoint_tokens}
        return sorted({step for step in steps if self.begins_after < step < self.n_steps} | {self.n_steps})

    @property
    def state_steps(self) -> list[int]:
        """Steps after which the training state is saved, ascending: a trunk's also where a branch begins."""
        every, batch = self.training.state_every_tokens, self.training.batch_tokens
        if every is None:
            return sorted({*self.checkpoint_steps, *self.branch_steps})
        every = max(every, batch)
        steps = (-(-tokens // batch) for tokens in range(every, self.n_tokens, every))
        return sorted({step for step in steps if step > self.begins_after} | {self.n_steps} | self.branch_steps)


def with_branches(trunk: RunSpec, branches: dict[str, Training]) -> list[RunSpec]:
    """`trunk` and its branches, by the endings of their ids."""
    runs = [
        trunk.model_copy(update={"run_id": f"{trunk.run_id}-{label}", "training": training, "trunk": trunk.run_id})
        for label, training in branches.items()
    ]
    begin = {run.run_id: run.begins_after for run in runs}
    return [trunk.model_copy(update={"branches": begin}), *runs]


def each_once(families: Sequence[Sequence[RunSpec]]) -> list[RunSpec]:
    """The runs of `families` (each a run, or a trunk and its branches) without those that are another one to the bit:
    a whole family, and branches of one trunk that end at the same step. Notes say which run takes their place."""
    kept: dict[tuple[str, ...], list[RunSpec]] = {}
    for family in families:
        run_of_end: dict[tuple[bool, int], RunSpec] = {}
        notes = []
        for run in family:
            if (first := run_of_end.setdefault((run.trunk is None, run.n_steps), run)) is not run:
                notes.append(f"{run.run_id} is {first.run_id} to the bit: one run")
        hashes = tuple(run.spec_hash for run in run_of_end.values())
        if (kept_family := kept.get(hashes)) is None:
            kept[hashes] = kept_family = list(run_of_end.values())
        else:
            notes = [f"{family[0].run_id} is {kept_family[0].run_id} to the bit: one run"]
        if notes:
            names = {run.run_id for run in kept_family}
            branches = {name: step for name, step in kept_family[0].branches.items() if name in names}
            kept_family[0] = kept_family[0].model_copy(
                update={"notes": [*kept_family[0].notes, *notes], "branches": branches}
            )
    return [run for family in kept.values() for run in family]


def same_trunk(runs: Sequence[RunSpec]) -> tuple[str, str] | None:
    """The ids of two trunks that are one run as far as both go, where there are such."""
    seen: dict[str, str] = {}
    for run in runs:
        if run.branches and (first := seen.setdefault(run.beginning, run.run_id)) != run.run_id:
            return first, run.run_id
    return None


def decisive(training: Training) -> dict[str, Any]:
    """What of a resolved section `training` identifies a run, as JSON: not what has gone into its other fields, what
    its schedule does not read, or what is at its default. ZeRO stages from 1 on are one: a run may change among them
    as it may change its number of processes (stage 0 clips gradients by its own arithmetic)."""
    unread = {*GONE_INTO_OTHERS, *FIELDS} - {"schedule", *SCHEDULES[training.schedule].reads}
    fields = training.model_dump(mode="json", exclude=unread, exclude_defaults=True)
    return fields | ({"zero_stage": 1} if training.zero_stage else {})


def arch_of_run(run_id: str) -> str:
    """The architecture with which a run's name begins; a pattern's name may have a dash."""
    archs = [arch for arch in ARCHITECTURES if run_id.startswith(f"{arch}-")]
    return max(archs, key=len, default=run_id.partition("-")[0])


def same_model(runs: Iterable[RunSpec], name: Callable[[str], Any] = str) -> Iterator[tuple[str, str]]:
    """The ids of runs whose architectures differ in their names alone. name: what a kind of layers is known by."""
    seen: dict[Any, RunSpec] = {}
    for run in runs:
        # chunks are a way to compute the same model
        kinds = {
            kind.arch: (name(kind.arch), *(item for item in kind.to_dict().items() if _decides(kind.arch, item[0])))
            for kind in run.config.kinds
        }
        model = tuple(kinds[arch] for arch in run.config.layers or (run.arch,))
        first = seen.setdefault((run.size, run.seed, label_of(run.point), run.branch, model), run)
        if first.arch != run.arch:
            yield first.run_id, run.run_id


def _decides(arch: str, field: str) -> bool:
    return field not in ("arch", "chunk_size") and means(arch, field)
