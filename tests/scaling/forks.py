"""Processes that are forked from one which has imported what trainings import: each is spared the seconds of that.

As a program, `python -m tests.scaling.forks FD`, the one they are forked from. It serves a session of tests.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from scaling.trainer.process import PR_SET_PDEATHSIG, end_with

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    *("scaling.trainer.loop", "deepspeed.module_inject.auto_ep_layer", "safetensors.torch"),
    *("scaling.cli.evaluate", "scaling.cli.evaluation", "analysis.evals.worker", "analysis.evals.losses"),
)


@functools.cache
def _server() -> socket.socket:
    """Where requests are sent; the process ends with this one, which holds the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words, files = command(__name__, str(theirs.fileno())), [theirs.fileno()]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.Popen(words, env=environment, pass_fds=files, stdin=subprocess.DEVNULL, process_group=0)
    theirs.close()
    return ours


class Forked:
    """A process that does what `python -m WORDS` does, in a session of its own; what subprocess.Popen has of it."""

    def __init__(
        self,
        words: list[str],
        environment: dict[str, str],
        folder: Path,
        out: IO[bytes],
        err: IO[bytes],
        given: IO[bytes] | None = None,
    ) -> None:
        """given: its standard input, else none."""
        self.returncode: int | None = None
        self._out, self._err = out, err
        reports, of_keeper = os.pipe()
        self._reports = os.fdopen(reports, encoding="utf-8")
        request = json.dumps([words, environment, str(folder.resolve())]).encode()
        with open(os.devnull, "rb") as nothing:
            files = [(given or nothing).fileno(), out.fileno(), err.fileno(), of_keeper]
            socket.send_fds(_server(), [request], files)
        os.close(of_keeper)
        self.pid = int(self._reports.readline())

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._reports.readline())
            self._reports.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.printed()

    def printed(self) -> tuple[str, str]:
        """On stdout and stderr until now."""
        out, err = (
            os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
            for file in (self._out, self._err)
        )
        return out, err


class ForkedWorker(Forked):
    """A process of jobs.workers, with the ends of its pipes."""

    def __init__(self, words: list[str], environment: dict[str, str], streams: dict[str, Any]) -> None:
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        given, out, err = (streams[name] for name in ("stdin", "stdout", "stderr"))
        if given == subprocess.PIPE:
            (given, self.stdin), (self.stdout, out) = _pipe(), _pipe()
            super().__init__(words, environment, Path(), out, err, given)
            given.close()
            out.close()
        else:
            super().__init__(words, environment, Path(), out, out)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb"), os.fdopen(writer, "wb")


class ForWorkers:
    """`subprocess` as jobs.workers knows it, but that what trains and evaluates on one core is forked."""

    PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT

    @staticmethod
    def Popen(argv: list[str], preexec_fn: Any, env: dict[str, str], **streams: Any) -> Any:
        commands = ("scaling", "scaling.trainer.server", "scaling.trainer.process")
        if argv[:2] != [sys.executable, "-m"] or argv[2] not in commands or env.get("OMP_NUM_THREADS") != "1":
            return subprocess.Popen(argv, preexec_fn=preexec_fn, env=env, **streams)
        process = ForkedWorker(argv[2:], env, streams)
        if cores := inspect.getclosurevars(preexec_fn).nonlocals["cores"]:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        return process


def start(*words: str, processes: int = 1, folder: Path = Path(), **environment: str) -> list[Forked]:
    """`python -m WORDS`, in as many processes of one group, which print to the same files."""
    out, err = (os.fdopen(os.memfd_create("output"), "rb") for _ in range(2))
    ranks: list[dict[str, str]] = [{}]
    if processes > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        world = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        ranks = [address | world | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)]
    common = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return [Forked([*words], common | rank, folder, out, err) for rank in ranks]


def command(*words: str, processes: int = 1) -> list[str]:
    """As users start it, several of them by torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *(torchrun if processes > 1 else []), "-m", *words]


def run(
    *words: str, processes: int = 1, folder: Path = Path(), fresh: bool = False, **environment: str
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of them. Where one fails, the others are stopped, and the code is the first one's.

    fresh: by an interpreter of their own, as users start them, see `command`.
    """
    if fresh:
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | environment
        done = subprocess.run(
            command(*words, processes=processes),
            env=env,
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            timeout=600,
        )
        return done.returncode, done.stdout, done.stderr
    started = start(*words, processes=processes, folder=folder, **environment)
    until, failed = time.monotonic() + 600, list[int]()
    while not failed and any(process.poll() is None for process in started):
        failed = [process.returncode for process in started if process.returncode]
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired(words, 600)
        time.sleep(0.01)
    for process in started if failed else ():
        process.send_signal(signal.SIGKILL)
    codes = [process.wait() for process in started]
    return next(iter(failed or filter(None, codes)), 0), *started[0].communicate()


def serve(requests: socket.socket) -> None:
    import torch

    from arch.no_compiler import keep_from_the_compiler
    from scaling.trainer.engine import load_deepspeed

    keep_from_the_compiler()
    load_deepspeed("cpu")
    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    del sys.modules["scaling.trainer.process"], sys.modules["scaling.trainer"].process  # its clock starts at its import
    gc.freeze()
    while True:
        message, files, *_ = socket.recv_fds(requests, 1 << 20, 4)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            return
        if not _fork():
            pid = _fork()
            if not pid:
                requests.close()
                become(*json.loads(message), *files)
            *streams, reports = files
            for file in streams:  # or a reader does not see that the process closed them
                os.close(file)
            os.write(reports, b"%d\n" % pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(reports, b"%d\n" % code)
            os._exit(0)
        for file in files:
            os.close(file)


def _fork() -> int:
    """A child that ends with this process."""
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return pid


def become(words: list[str], environment: dict[str, str], folder: str, *files: int) -> NoReturn:
    """files: its standard streams, and what its end is reported to."""
    os.setsid()
    for place, file in enumerate(files[:3]):
        os.dup2(file, place)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = list(words)

    def as_main() -> int:
        if "GATE" in environment:
            importlib.import_module("tests.gate.sitecustomize")
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return 0

    end_with(as_main)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
