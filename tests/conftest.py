"""Set before any test imports torch or numpy: one thread (the number of threads changes bits), and no accelerator is
assumed."""

import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import chdir
from pathlib import Path

import hypothesis
import pytest

from scaling.cli.main import fix_bits
from tests import surroundings
from tests.registries import as_registered

surroundings.enter()
fix_bits()
# Tests start hundreds of commands: this project is compiled once, as Python does by default, not by each of them where
# the site keeps Python from writing what it has compiled; and so are the tests, which pytest changes before it does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, by torch among others

# What tests write lies in memory where there is enough: they make and remove thousands of small files, each synced.
if os.access("/dev/shm", os.W_OK):
    memory = os.statvfs("/dev/shm")
    if memory.f_bavail * memory.f_frsize > 8e9 and not memory.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# Pictures are tested by themselves (the fixture `browser`); for every report a browser would take seconds.
OWN_BROWSER = "TESTS_BROWSER_PATH"  # what BROWSER_PATH was: processes that share the tests inherit both
os.environ.setdefault(OWN_BROWSER, os.environ.get("BROWSER_PATH", ""))
os.environ["BROWSER_PATH"] = str(Path(__file__).with_name("no browser"))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell's background jobs ignore ctrl-c and hand that on to what they start, where tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however slow the machine: a test that fails must fail for whoever tries it again.
hypothesis.settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")

ROOT = Path(__file__).resolve().parents[1]
RANKS = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # tiktoken's cache name: SHA-1 of the address of cl100k_base's file


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn where this machine has a browser."""
    if browser_path := os.environ[OWN_BROWSER]:
        monkeypatch.setenv("BROWSER_PATH", browser_path)
    else:
        monkeypatch.delenv("BROWSER_PATH")


@pytest.fixture(scope="session", autouse=True)
def own_folder() -> Iterator[None]:
    """Tests, and what they start, work in an empty folder: commands write to `out` there by default."""
    with chdir(surroundings.WORK):
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """What a command in the tests' process starts to train and evaluate on one core is spared its imports; a command in
    a process of its own starts it as for users."""
    import jobs.workers
    from jobs.local import visible_gpus
    from tests.scaling.forks import ForWorkers

    with pytest.MonkeyPatch.context() as patch:
        if not visible_gpus():
            patch.setattr(jobs.workers, "subprocess", ForWorkers)
        yield


@pytest.fixture(autouse=True)
def nothing_stays(own_folder: None) -> Iterator[None]:
    """No test finds what another left. A process group's variables would make it start runs that wait for others."""
    yield
    assert not {"RANK", "WORLD_SIZE"} & os.environ.keys(), "join a process group in a process of its own"
    assert not os.listdir(surroundings.WORK), "write to tmp_path"


def pytest_unconfigure() -> None:
    surroundings.leave()


# The files that take longest, the longest first: processes that share the tests begin with them, so that none is left
# alone with one at the end. pytest-xdist's own order, by the number of tests, has a file of one long test last.
LONG = (
    "scaling/trainer/test_engine_parity.py",
    "scaling/cli/test_study.py",
    "golden/test_laws.py",
    "analysis/test_stage.py",
    "scaling/cli/test_forecast.py",
    "scaling/trainer/test_loop.py",
    "jobs/test_slurm_plugin.py",
    "arch/ops/test_compile_ops.py",
    "arch/model/test_compile.py",
    "scaling/cli/test_evaluate.py",
    "scaling/checkpoints/test_export.py",
    "scaling/study/test_plugin.py",
    "scaling/cli/test_design.py",
    "analysis/notebooks/test_study.py",
    "scaling/cli/test_fit_study.py",
    "scaling/cli/test_try.py",
    "scaling/bundle/test_lies.py",
    "scaling/cli/test_damage.py",
    "scaling/trainer/test_server.py",
    "scaling/trainer/test_store.py",
    "scaling/cli/test_fit_public.py",
    "analysis/fits/test_parametric_coverage.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs more GPUs than there are, and marks what runs on one where it can. Where several processes share
    the tests: LONG first, then the files with the most tests."""
    for item in items:
        if item.path.name.startswith("test_triton"):
            item.add_marker("kernels")
        for mark in item.iter_markers("gpu"):
            needed = mark.kwargs.get("n", 1)
            if needed > _n_gpus():
                what = "a GPU" if needed == 1 else f"{needed} GPUs"
                item.add_marker(pytest.mark.skip(reason=": ".join((f"needs {what}", *mark.args))))
    if not hasattr(config, "workerinput"):
        return
    number = Counter(item.path for item in items)
    rank = {ROOT / "tests" / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: (rank.get(item.path, len(LONG)), -number[item.path]))  # stable: a file stays together


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the search for garbage: what the tests' modules make stays, and to look through it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _n_gpus() -> int:
    import torch  # the modules of such tests have imported it

    return torch.cuda.device_count()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference tables and real texts beside a checkout; not part of the repository."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("no ../shared folder: reference tables and texts are not part of the repository")
    return path


def rank_folder() -> Path | None:
    """Where cl100k_base's rank file lies: in TIKTOKEN_CACHE_DIR, or beside the checkout where that is not set."""
    folder = Path(os.environ.get("TIKTOKEN_CACHE_DIR") or ROOT.parent / "shared" / "data" / "tiktoken")
    return folder if (folder / RANKS).is_file() else None


@pytest.fixture(scope="module")
def ranks() -> Iterator[Path]:
    """The folder of cl100k_base's rank file, as TIKTOKEN_CACHE_DIR for this module's tests."""
    folder = rank_folder()
    if folder is None:
        pytest.skip(f"no rank file {RANKS} in TIKTOKEN_CACHE_DIR or, where that is not set, ../shared/data/tiktoken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """A test that draws from torch's own generator draws the same whatever this process ran before, and no earlier
    training's way with denormals is left."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="module", autouse=True)
def architectures() -> Iterator[None]:
    """A plugin's architecture is known to the module that loaded it, and to no test after that."""
    with as_registered():
        yield


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers, no other test knows."""
    with as_registered():
        yield
