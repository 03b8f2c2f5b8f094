"""The section `jobs` of a study file, and cluster profiles: what each may say, and its defaults.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from flops.hardware import DEVICES

from .types import (
    Count,
    FilePath,
    Flag,
    Gigabytes,
    Hours,
    Index,
    Line,
    Number,
    Parallel,
    ResourceKey,
    Section,
    Share,
    Together,
    Variable,
    Word,
    one_of,
)

KINDS = ("corpus", "train", "eval", "finish")  # of jobs on a cluster
Kind = Annotated[str, one_of("kind of job", KINDS)]


class JobOptions(Section):
    """What jobs ask SLURM for and how they start: of a profile, or of one kind of job."""

    partition: Word | None = None
    """SLURM partition."""
    account: Word | None = None
    """SLURM account."""
    qos: Word | None = None
    """SLURM quality of service."""
    constraint: Word | None = None
    """SLURM constraint on nodes."""
    sbatch: list[Word] = []
    """More options for sbatch, such as `--exclusive`."""
    srun: list[Line] = []
    """More options for srun, such as `--gpu-bind=closest` or pyxis' `--container-image=FILE`. With them every Python
    of a job is started by srun."""
    setup: list[Line] = []
    """Shell lines that run before anything else, such as `module load cuda`; the job ends where a line fails."""
    environment: dict[Variable, Line] = {}
    """Environment variables of every job, such as `NCCL_SOCKET_IFNAME`."""
    container: list[Line] = []
    """Words before python, such as `[apptainer, exec, --nv, image.sif]`."""


class Partition(JobOptions):
    """What jobs of a kind ask for, and the nodes that they get."""

    nodes: Count = 1
    """The largest number of nodes of a job."""
    cpus_per_node: Count = 1
    """CPU cores of a node."""
    gpus_per_node: Index = 0
    """GPUs of a node; with 0 runs train on CPUs."""
    memory_gb_per_node: Gigabytes | None = None
    """Memory of a node; null leaves the partition's default as it is."""
    gpu: Annotated[str, one_of("device", tuple(DEVICES))] = "h100"
    """The kind of GPU: its peak and its memory decide times and sizes."""
    memory_gb_per_gpu: Gigabytes | None = None
    """Memory of a GPU, where its kind comes with several; null takes the kind's."""
    gpu_type: Word | None = None
    """The GPU's name in SLURM, where a job must give it."""
    ask_gpus: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """Whether a job asks by `--gpus-per-node=N` or by `--gres=gpu:N`."""
    whole_nodes: Flag = False
    """Whether the site gives nodes as a whole: runs, and evaluations, that need a part of one are then side by side on
    it."""
    max_hours: Hours = 24.0
    """The partition's time limit; a longer run saves its state and is queued again."""


class Cluster(Partition):
    """A cluster profile: its file, or `jobs.cluster` of a study. `scaling submit --example-profile` explains it."""

    nodes: Count
    """The largest number of nodes of a job."""
    cpus_per_node: Count
    """CPU cores of a node."""
    python: Line | None = None
    """The Python of the jobs; null takes the one that submits."""
    mfu: Annotated[Number, Field(ge=1e-6, le=1)] = 0.4
    """Assumed share of the GPU's peak, under the convention `exact`, until finished runs of the study give a
    measured speed."""
    target_hours: Hours = 24.0
    """A run gets more GPUs until it is expected to finish within this time."""
    time_factor: Annotated[Number, Field(ge=1, le=1000)] = 1.5
    """A job's time limit, as a multiple of the expected time."""
    pack_minutes: Index = 15
    """Short runs share an array element up to this expected time; 0 gives every run its own."""
    eval_elements: Count = 100
    """The largest number of array elements that evaluations are spread over."""
    max_array_size: Count | None = None
    """The largest size of a job array; null asks SLURM."""
    max_running: Count | None = None
    """The largest number of elements of all arrays of a submission that run at once, not of runs (by `whole_nodes`
    several share an element): each array at least one, the rest by their expected time; null sets no limit."""
    max_restarts: Index = 5
    """How often in a row an element may start again without a newer training state before it is given up."""
    signal_s: Annotated[Count, Field(ge=30)] = 180
    """How long before the time limit a job gets the signal to save its state."""
    requeue: Flag = True
    """Whether jobs may be queued again; false, where a site forbids it: a job that reaches its time limit ends with its
    state saved, and `scaling submit` continues it."""
    stage: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./${}-]+$")] | None = None
    """A folder on each node's own disk, such as `$TMPDIR`: the first run on a node copies the corpus there, and kernels
    are compiled there; null reads the corpus where it is."""
    templates: FilePath | None = None
    """A folder of your own batch templates, which are taken first; docs/clusters.md lists their names."""
    by_kind: dict[Kind, Partition] = {}
    """Options and nodes of one kind of job (corpus, train, eval, finish) in place of the profile's, such as
    `corpus: {partition: cpu, constraint: null, container: []}` or `eval: {partition: shared, whole_nodes: false}`."""

    def of_kind(self, kind: str) -> Cluster:
        """The profile as jobs of a kind see it."""
        own = self.by_kind.get(kind)
        return (
            self if own is None else self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
        )


# The tags keep pydantic's findings to the one that was meant; file.py leaves them out of messages.
NamedCluster = Annotated[
    Annotated[Cluster, Tag("[profile]")] | Annotated[FilePath, Tag("[name]")],
    Discriminator(lambda value: "[name]" if isinstance(value, str) else "[profile]"),
]


class ResourceRequest(Section):
    """What a study asks for some runs: what is left out is estimated."""

    nodes: Count | None = None
    """Nodes."""
    gpus_per_node: Count | None = None
    """GPUs of each node."""
    tasks_per_node: Count | None = None
    """Processes of each node, for runs on CPUs."""
    cpus_per_task: Count | None = None
    """CPU cores of each process."""
    memory_gb: Gigabytes | None = None
    """Memory of each node."""
    minutes: Count | None = None
    """Time limit."""


class Jobs(Section):
    parallel: Parallel | None = None
    """Runs at once on this machine; null takes as many as its GPUs hold, or 1 without GPUs."""
    processes: Parallel = 1
    """Processes of each run, started by torchrun: one for each GPU of a run."""
    sequence_processes: Parallel = 1
    """How many of a run's processes read a part of every sequence each, for contexts too long for one GPU; it divides
    `processes`. The numbers are the same up to rounding: docs/large-models.md."""
    runs_per_gpu: Together | None = None
    """Small runs that a process trains on its GPU at the same time, at most 8; 1: one after another. null takes 4 or 8
    where a pass is too small to fill a GPU, and 1 where `parallel` is beyond the GPUs, so that processes share them.
    The numbers are the same."""
    recompute: Share = False
    """Compute the layers' activations again in the backward pass, of all layers or of this share of them (rounded up):
    less memory, more time, the same numbers (on a Hopper GPU up to rounding: at widths up to 256 other kernels run)."""
    checked: Flag = True
    """Whether architectures that are not of this package, patterns among them, must pass the checks of their causality,
    costs, gradients and state before they train; false: they need not, and their runs record it."""
    cuda_graphs: Flag = True
    """Replay a training step on GPUs, at ZeRO stage 0, instead of launching each kernel of it: the same numbers."""
    cluster: NamedCluster | None = None
    """The cluster profile of `scaling submit`: a name, a file, or the profile itself."""
    resources: dict[ResourceKey, ResourceRequest] = {}
    """Resources of some jobs on a cluster, by size, architecture, `arch/size`, or `corpus`, `eval`, `finish`."""

    @model_validator(mode="after")
    def _sequences_have_processes(self) -> Jobs:
        if self.processes % self.sequence_processes:
            raise ValueError(f"sequence_processes={self.sequence_processes} must divide processes={self.processes}")
        return self

    def resources_of(self, arch: str, size: str) -> ResourceRequest:
        """What `resources` says of one run's training."""
        entries = [self.resources[key] for key in (size, arch, f"{arch}/{size}") if key in self.resources]
        return ResourceRequest(
            **{key: value for entry in entries for key, value in entry.model_dump(exclude_unset=True).items()}
        )

    def of_kind(self, kind: str) -> ResourceRequest:
        """What `resources` says of corpus, eval or finish jobs."""
        return self.resources.get(kind, ResourceRequest())
