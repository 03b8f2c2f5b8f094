"""No bundle that names code or lies runs anything, takes much memory or time, or writes elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Made
from .lies import EVIL, LIES, make

ROOT = Path(__file__).resolve().parents[3]
MOST_MB, MOST_SECONDS = 200, 20

# A process that unpacks bundles, compares them and asks for what was unpacked. argv: a folder to work in, an honest
# bundle, the others. Prints a line of JSON for each bundle: name, lines of error, seconds, MB, what was written. MB: the
# most that it took above what it had before.
READS = """
import json, sys, time
from pathlib import Path
from typer.testing import CliRunner
from arch.errors import InputError
from scaling.cli.main import app

def asked(*words):
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is None or isinstance(found.exception, SystemExit):
        return ""
    assert isinstance(found.exception, InputError), repr(found.exception)
    return str(found.exception)

def memory(key):
    (line,) = (line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) >> 10

folder, honest, *lies = map(Path, sys.argv[1:])
for bundle in [honest, honest, *lies]:  # once for all that is imported
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begun, out, idle = time.perf_counter(), folder / bundle.stem, memory("VmRSS")
    told = [asked("bundle", "unpack", bundle, "--out", out), asked("bundle", "compare", honest, bundle)]
    for study in out.glob("*/bundles/*/*.yaml"):
        told += [asked(word, study, "--out", out) for word in ("status", "fit")]
    took = time.perf_counter() - begun, memory("VmHWM") - idle
    written = [str(path.relative_to(out)) for path in out.rglob("*")] if out.exists() else []
    print(json.dumps([bundle.name, told, *took, written]), flush=True)
"""


def read(folder: Path, honest: Path, lies: list[Path]) -> list[list]:
    (folder / f"{EVIL}.py").write_text("import os\nos.mkdir('IT-RAN')\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READS, str(folder / "out"), str(honest), *map(str, lies)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.fixture(scope="module")
def results(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """What one process found of all bundles, so that its memory is the most that any took."""
    folder = tmp_path_factory.mktemp("lies")
    bundles = {name: make(name, made.bundle, folder) for name in LIES}
    found = read(folder, made.bundle, list(bundles.values()))
    assert len(found) == len(LIES) + 2 and not (folder / "IT-RAN").exists(), "something ran"
    assert {path.name for path in folder.iterdir()} <= {
        "out",
        f"{EVIL}.py",
        "__pycache__",
        *(b.name for b in bundles.values()),
    }
    return dict(zip(LIES, found[2:], strict=True))


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_a_line_or_nothing(results: dict[str, list], name: str) -> None:
    _, told, seconds, more_mb, written = results[name]
    print(f"{name}: {seconds:.1f} s, {more_mb} MB; {told}")
    assert all("\n" not in line and "\x1b" not in line for line in told)
    assert seconds < MOST_SECONDS and more_mb < MOST_MB
    assert not [path for path in written if path.startswith(".git") or ".." in path or path.endswith(".py")]
    if told[0]:
        assert not written, "refused, and something was written"


def test_most_lies_are_refused_before_anything_is_written(results: dict[str, list]) -> None:
    assert sum(bool(found[1][0]) for found in results.values()) >= 35
