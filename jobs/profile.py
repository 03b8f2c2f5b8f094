"""Cluster profiles: what one cluster is like, in YAML, so that studies need not repeat it.

A profile is `<config>/linear-scaling/clusters/NAME.yaml` (config: XDG_CONFIG_HOME, else ~/.config), any file, or the
mapping `jobs.cluster` of a study. Its keys are scaling.study.jobs_schema.Cluster; EXAMPLE explains them.
"""

from __future__ import annotations

import os
from pathlib import Path

from arch.errors import InputError, nearest
from scaling.study.file import came_with_others, validate
from scaling.study.jobs_schema import Cluster
from scaling.study.yaml_text import read_mapping

# Of sbatch: a second value of these would take runs out of an array, or logs and signals away.
OWN_OPTIONS = (
    "--array",
    "-a",
    "--requeue",
    "--no-requeue",
    "--output",
    "-o",
    "--open-mode",
    "--job-name",
    "-J",
    "--signal",
)

EXAMPLE = """\
# A cluster profile of `scaling submit`. Only nodes and cpus_per_node are required; the values here are an example.
nodes: 8                    # the most that one job may have
gpus_per_node: 8            # 0, the default: runs train on CPUs
cpus_per_node: 128
memory_gb_per_node: 2000    # 10^9 bytes; left out: the partition's default memory is not overridden
gpu: h100                   # h100, h200, a100 (or cpu): its peak and memory, for times and sizes
# memory_gb_per_gpu: 40     # where it is not the 80 (h100, a100) or 141 (h200) of that kind
# gpu_type: h100            # as SLURM calls it, where a job must say it
# ask_gpus: gres            # --gres=gpu:N instead of --gpus-per-node=N
# whole_nodes: true         # the site gives nodes as a whole: runs that need a part of one share it

partition: gpu
# account: my-project
# qos: normal
# constraint: infiniband
# sbatch: [--exclusive]     # more options of sbatch
# srun: [--gpu-bind=closest]  # more options of srun, such as pyxis' --container-image; Python then starts by srun alone
by_kind:                    # what one kind of job (corpus, train, eval, finish) has instead
  corpus: {partition: cpu, sbatch: []}
  finish: {partition: cpu, sbatch: []}
  # eval: {partition: shared, whole_nodes: false, max_hours: 4}  # other nodes and limits too

setup: [module load cuda]   # shell lines before anything else; a job ends where they fail
environment: {NCCL_SOCKET_IFNAME: ib0}
# container: [apptainer, exec, --nv, image.sif]  # words before python
# python: /opt/venv/bin/python                   # default: the Python that submits

mfu: 0.4                    # share of the peak, assumed until runs have finished; left out on CPUs: as measured
target_hours: 24            # a run gets GPUs until it is expected to take no longer
max_hours: 24               # the partition's time limit; a longer run saves its state and is queued again
time_factor: 1.5            # a time limit over what is expected
pack_minutes: 15            # short runs share an array element up to so long; 0: one run each
eval_elements: 100          # evaluations are spread over at most so many array elements
# max_array_size: 1001      # default: SLURM's own
# max_running: 16           # array elements of a submission at once; default: no limit
max_restarts: 5             # of one array element, in a row and without a newer saved state
requeue: true               # false: the site forbids it; submit again where a time limit ended a run
signal_s: 180               # notice before the time limit, to save the state
# stage: $TMPDIR            # of each node: the corpus is copied there before runs train on it
# templates: ~/templates    # your own batch templates, looked into first: docs/clusters.md
"""


def profile_folder() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "linear-scaling" / "clusters"


def load_profile(named: str | None, of_study: Cluster | str | None, study_file: str | None = None) -> Cluster:
    """The profile that the command line (a name or a file) or else the study in `study_file` names.

    Raises InputError, one line, where there is none, where it cannot be read, for anything wrong in it, and for that of
    a study file that came with a bundle: a profile is shell lines.
    """
    chosen = named if named is not None else of_study
    if named is None and chosen is not None and study_file is not None and came_with_others(Path(study_file)):
        raise InputError(
            f"{study_file}: jobs.cluster: came with a bundle, and a profile is code: give --cluster, or copy the study "
            f"file to make it yours"
        )
    if isinstance(chosen, Cluster):
        return _checked(chosen, "jobs.cluster")
    if chosen is None:
        raise InputError(
            f"no cluster is named: give --cluster NAME_OR_FILE or jobs.cluster in the study "
            f"({_known()}; `scaling submit --example-profile` prints one), or run here with `scaling run`"
        )
    path = _find(chosen)
    raw = read_mapping(path, "profile", "`scaling submit --example-profile`")
    return _checked(validate(Cluster, raw, str(path), []), str(path))


def _find(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    named = profile_folder() / f"{name}.yaml"
    if os.sep not in name and named.is_file():
        return named
    if path.is_dir():
        raise InputError(f"{path}: is a directory, not a cluster profile")
    if os.sep in name or name.endswith((".yaml", ".yml")):
        raise InputError(f"{path}: no such cluster profile; `scaling submit --example-profile > {name}` starts one")
    valid = _names()
    hint = nearest(name, valid) if valid else ""
    raise InputError(
        f"no cluster profile {name!r} in {profile_folder()}{hint}; "
        f"`scaling submit --example-profile > {named}` starts one"
    )


def _names() -> list[str]:
    return sorted(path.stem for path in profile_folder().glob("*.yaml"))


def _known() -> str:
    names = _names()
    return f"profiles in {profile_folder()}: {', '.join(names) if names else 'none'}"


def _checked(profile: Cluster, where: str) -> Cluster:
    """`profile` where its keys go together, for every kind of job."""
    for kind in profile.by_kind:
        _checked(profile.of_kind(kind).model_copy(update={"by_kind": {}}), f"{where}: by_kind.{kind}")
    if profile.gpus_per_node and profile.gpu == "cpu":
        raise InputError(
            f"{where}: gpus_per_node={profile.gpus_per_node} and gpu: cpu; name the GPU, or leave out one of the two"
        )
    gpu_keys = sorted({"gpu", "gpu_type", "ask_gpus", "memory_gb_per_gpu"} & profile.model_fields_set)
    if gpu_keys and "gpus_per_node" not in profile.model_fields_set and profile.gpu != "cpu":
        raise InputError(
            f"{where}: {gpu_keys[0]} without gpus_per_node, so that runs would train on CPUs: give gpus_per_node"
        )
    if profile.gpus_per_node > profile.cpus_per_node:
        raise InputError(
            f"{where}: cpus_per_node={profile.cpus_per_node} is less than gpus_per_node={profile.gpus_per_node}: every "
            f"GPU's process needs a core"
        )
    for option in profile.sbatch:
        if option.partition("=")[0] in OWN_OPTIONS:
            raise InputError(f"{where}: sbatch: {option}: every script sets this itself; leave it out")
    if profile.signal_s >= profile.max_hours * 3600:
        raise InputError(f"{where}: signal_s={profile.signal_s} is no less than max_hours={profile.max_hours:g}")
    if profile.python is not None and not profile.python.strip():
        raise InputError(f"{where}: python: is empty; name an interpreter, or leave it out")
    if profile.templates is not None and not Path(profile.templates).expanduser().is_dir():
        raise InputError(f"{where}: templates: {profile.templates} is no folder; name one, or leave it out")
    return profile
