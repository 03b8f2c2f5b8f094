"""Ten thousand wrong inputs: each plans, or ends with one line on stderr and exit code 2, and none writes anything.

Every case is made from its number alone, so that one that fails can be looked at again:
`python -m tests.scaling.study.test_mutations NUMBER` (a second word shows its files too).
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from jobs.profile import EXAMPLE
from scaling.study.file import PACKAGED

from .mutations import changed_file, changed_words

SEED, CASES = 16, 10_000
LAUNCHERS = {  # variables of launchers and schedulers
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_MEM_PER_CPU"), "3"),
    **{"MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "x", "SLURM_JOB_ID": "7", "LC_ALL": "C", "LANG": "C"},
    **{"OMP_NUM_THREADS": "abc", "SLURM_CPU_BIND": "none", "SBATCH_EXPORT": "NONE", "COLUMNS": "-1"},
}
LIMIT_S = 60.0  # for one case in process; the largest plan takes a fraction of a second, but a first import may not
RICH = """
name: rich
out: out
corpus: {source: [nowhere.txt, "synthetic:0:100000"], tokenizer: bytes, validation_fraction: 0.1, max_bytes: 1e5}
architectures: {mix: {layers: [tnl, hgrn1], label: Mix, color: "#abcdef", hgrn1: {input_gate: own, n_heads: 1}}}
grid:
  archs: [llama, tnl, hgrn1, mix]
  sizes:
    - 14k
    - 25k
    - 30k: {n_layers: 2, d_model: 32, n_heads: 4, d_ffn: 96, tnl: {n_layers: 3, gate_rank: 4}}
    - {from: 60k, to: 90k, count: 2, match: params, head_dim: 16}
  seeds: [0]
  extra_seeds: {14k: [1, 2]}
model: {context_length: 64, lower_bound: off, chunk_size: 16, norm: rms, init_std: 0.1, decay_slopes: fixed}
training:
  n_tokens: 20_480
  batch_tokens: 512
  micro_batch_tokens: 256
  lr: 3e-3
  warmup_tokens: 1e3
  betas: [0.9, 0.95]
  checkpoint_tokens: [512, 4096, 20_480]
  state_every_tokens: 4096
  precision: bf16
overrides:
  by_size: {14k: {lr: 2e-3, n_tokens: 30_720}}
  by_arch: {tnl: {weight_decay: 0, model: {d_ffn: 48}}}
  by_run: {hgrn1/25k: {lr: 1e-3, model: {expand_ratio: 1}}}
evaluation: {validation_tokens: 4096, tasks: [extrapolate], settings: {extrapolate: {}}}
fit: {loss: validation, range: {tnl: [1e6, 1e12]}, grid_points: 9}
jobs:
  parallel: 2
  processes: 2
  cluster: {nodes: 4, cpus_per_node: 16, gpus_per_node: 2, partition: {train: gpu}, setup: [x], environment: {A: b}}
  resources: {14k: {nodes: 1}, tnl: {minutes: 30}, tnl/25k: {memory_gb: 10}, eval: {nodes: 1}}
"""
FILE, PROFILE = "study.yaml", "profile.yaml"
# Of (app, words, how many of them stay): what would train or write is only asked for with --dry-run, of a corpus that
# does not exist.
OF_FILES = [
    ("scaling", ["plan", FILE], 2),
    ("scaling", ["run", "--dry-run", FILE], 3),
    ("scaling", ["train", "--dry-run", FILE, "--json"], 4),
    ("scaling", ["submit", "--dry-run", FILE, "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}"], 4),
    ("scaling", ["status", FILE], 2),
    ("flops", ["study", FILE], 2),
]
OF_PROFILES = ("scaling", ["submit", "--dry-run", FILE, "--explain", "--cluster", PROFILE], 6)
OF_WORDS = [
    ("scaling", ["plan", FILE, "--only", "arch=tnl|llama,size=14k,seed=0", "--set", "training.lr=1e-3"], 1),
    ("scaling", ["plan", "four-architectures", "--set", "grid.archs=[tnl]", "--json", "--out", "elsewhere"], 1),
    ("scaling", ["run", "--dry-run", FILE, "--set", "model.d_ffn=64", "--only", "size=25k"], 2),
    ("scaling", ["train", "--dry-run", FILE, "--set", "corpus.max_bytes=1000", "--set=grid.extra_seeds.14k=[3]"], 2),
    ("scaling", ["eval", "study", "--dry-run", FILE, "--tasks=extrapolate", "--checkpoints=last", "--workers=2"], 2),
    ("scaling", ["eval", "list", "--json"], 2),
    ("scaling", ["eval", "table", FILE], 2),
    ("scaling", ["submit", "--dry-run", FILE, "--explain", "--only", "arch=tnl", "--set", "jobs.processes=1"], 2),
    ("scaling", ["submit", "--dry-run", FILE, "--cluster", PROFILE, "--json"], 2),
    ("scaling", ["status", FILE, "--only", "seed=1", "--json", "--every", "10"], 1),
    ("scaling", ["fit", "study", FILE, "--set", "fit.flops=6nd"], 1),
    ("scaling", ["report", FILE], 1),
    ("scaling", ["generate", "no-checkpoint", "a text", "--tokens", "5", "--temperature", "0", "--top-p", "0.5"], 1),
    ("scaling", ["inspect", "no-checkpoint", "--tokens", "100", "--out", "there"], 1),
    ("scaling", ["export", "no-checkpoint", "there", "--dtype", "bf16"], 1),
    ("flops", ["study", FILE, "--device", "h100", "--mfu", "0.4", "--gpus", "8", "--only", "arch=tnl"], 1),
    ("flops", ["count", "--arch", "hgrn2", "--size", "410m", "--by", "module", "--set", "norm=layer"], 1),
    ("flops", ["count", "--arch", "tnl", "--layers", "4", "--dim", "256", "--heads", "2", "--context", "1024"], 1),
    ("flops", ["memory", "--arch", "tnl", "--size", "1b", "--plain"], 1),
    ("flops", ["size", "--arch", "tnl", "--params", "1.3B"], 1),
    ("flops", ["match", "llama-410m"], 1),
    ("flops", ["ladder", "1M:60M:6", "--by", "flops", "--aspect", "64", "--arch", "tnl"], 1),
    ("flops", ["budget", "--compute", "179pfday"], 1),
    ("flops", ["table", "--as-printed", "--format", "csv"], 1),
]  # fmt: skip


LATIN = os.fsdecode(b"st\xffudy.yaml")  # a name that is no UTF-8


@dataclass(frozen=True)
class Case:
    """A command line, the files that it finds by name, and more of its environment."""

    app: str
    words: list[str]
    files: dict[str, bytes]
    environment: dict[str, str] = field(default_factory=dict)


def case_of(number: int) -> Case:
    """What case `number` is: a changed study file (60%), profile (15%) or command line (25%); one in five under
    variables of a launcher or scheduler."""
    draw = random.Random(f"{SEED}:{number}")
    names = draw.sample(list(LAUNCHERS), draw.randrange(1, 6)) if draw.random() < 0.2 else []
    environment = {name: LAUNCHERS[name] for name in names}
    case = changed_case(draw)
    if FILE in case.words and draw.random() < 0.05:
        words = [LATIN if word == FILE else word for word in case.words]
        case = Case(case.app, words, {LATIN if name == FILE else name: content for name, content in case.files.items()})
    return replace(case, environment=environment)


def changed_case(draw: random.Random) -> Case:
    """A changed study file, profile or command line."""
    study = draw.choice([RICH, RICH, *(path.read_text() for path in sorted(PACKAGED.glob("*.yaml")))])
    files = {FILE: study.encode(), PROFILE: EXAMPLE.encode()}
    kind = draw.random()
    if kind < 0.6:
        app, words, _ = draw.choice(OF_FILES)
        return Case(app, words, files | {FILE: changed_file(draw, study)})
    if kind < 0.75:
        app, words, _ = OF_PROFILES
        return Case(app, words, files | {PROFILE: changed_file(draw, EXAMPLE)})
    app, words, kept = draw.choice(OF_WORDS)
    return Case(app, changed_words(draw, words, kept), files | {FILE: RICH.encode()})


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below `folder` with its size and time of change."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")
    }


def prepare(folder: Path, case: Case) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def judged(case: Case, code: int, error: str, before: object, after: object) -> str:
    """How a case ended, planned or refused; raises AssertionError for anything else."""
    assert before == after, f"wrote something: {set(after) ^ set(before)}"  # type: ignore[call-overload]
    assert "Traceback" not in error, error
    if code == 0:
        return "planned"
    assert code == 2, f"exit code {code}: {error[-500:]}"
    if case.environment:  # what of it is not used is named first
        error = re.sub(r"^warning: the environment's [^\n]+\n", "", error)
    assert re.fullmatch(r"error: [^\n]+\n", error), f"not one line: {error[-2000:]!r}"
    assert len(error) < 4000, f"{len(error)} characters: {error[:300]}"
    return "refused"


class TooLong(Exception):
    pass


def _too_long(number: int, frame: object) -> None:
    raise TooLong


def in_process(case: Case) -> tuple[int, str]:
    """Exit code and stderr of a command line, run by the console script's own function."""
    from scaling.cli import flops as flops_study
    from scaling.cli import main as cli

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")]
    main = cli.main if case.app == "scaling" else flops_study.main
    before = sys.argv, signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGALRM, _too_long)
    sys.argv = [case.app, *case.words]
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with contextlib.ExitStack() as changed:
            changed.enter_context(contextlib.redirect_stdout(streams[0]))
            changed.enter_context(contextlib.redirect_stderr(streams[1]))
            patch = changed.enter_context(pytest.MonkeyPatch.context())
            for name, value in case.environment.items():
                patch.setenv(name, value)
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv = before[0]
        signal.signal(signal.SIGTERM, before[1])
        signal.signal(signal.SIGALRM, before[2])
    streams[1].flush()
    return code, streams[1].buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """In `folder`, without SLURM and without a user's profiles; memory is limited, so that a bomb is a MemoryError."""
    kept, limits, here = dict(os.environ), resource.getrlimit(resource.RLIMIT_AS), Path.cwd()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.gettempdir()  # PyTorch makes it where an architecture is checked
    os.environ |= {"PATH": str(folder), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TMPDIR": str(folder)}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"}
    tempfile.tempdir = None
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        os.chdir(here)
        os.environ.clear()
        os.environ.update(kept)
        tempfile.tempdir = None


def outcome(number: int, folder: Path) -> str:
    case = case_of(number)
    prepare(folder, case)
    before = snapshot(folder)
    code, error = in_process(case)
    return judged(case, code, error, before, snapshot(folder))


def campaign(numbers: range, folder: Path) -> tuple[Counter[str], list[str]]:
    """How many cases ended how, and a line for each that ended badly."""
    counts, bad = Counter[str](), list[str]()
    with alone(folder):
        for number in numbers:
            try:
                counts[outcome(number, folder)] += 1
            except (Exception, TooLong, RecursionError, MemoryError) as error:
                counts["bad"] += 1
                message = "".join(traceback.format_exception_only(error)).strip()[:300]
                bad.append(f"case {number}: {case_of(number).app} {case_of(number).words}: {message}")
    return counts, bad


@pytest.mark.slow
def test_every_wrong_input_plans_or_is_one_line(tmp_path: Path) -> None:
    counts, bad = campaign(range(CASES), tmp_path)
    assert not bad, "\n".join(bad[:20])
    assert counts["planned"] > CASES / 50 and counts["refused"] > CASES / 2  # both are tried


def test_a_few_wrong_inputs(tmp_path: Path) -> None:
    counts, bad = campaign(range(CASES, CASES + 40), tmp_path)
    assert not bad, "\n".join(bad)
    assert counts["planned"] and counts["refused"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        wanted = case_of(int(sys.argv[1]))
        print(wanted.app, wanted.words)
        prepare(Path(place), wanted)
        for shown in wanted.files.values() if len(sys.argv) > 2 else ():
            sys.stdout.write(shown.decode(errors="backslashreplace") + "\n")
        with alone(Path(place)):
            print(in_process(wanted))
