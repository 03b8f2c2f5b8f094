"""A whole SLURM cluster in a temporary directory: one slurmctld, a slurmd a node, munged, all of this machine.

The scheduler is the real one and the nodes differ by port and loopback address alone; a job's processes are ours. Ready
in about a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from jobs.model import ArrayJob
from jobs.plan import elements_text
from jobs.render import ScriptContext, render
from scaling.cli.main import main
from tests.commands import in_this_process

PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins shellcheck"
INSTALL = f"apt-get install -y --no-install-recommends {PACKAGES}"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
MISSING = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
needs_slurm = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here: {INSTALL}")
START_S, STOP_S = 120.0, 60.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37
LIBC = ctypes.CDLL(None)

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge/sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=10000,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobcomp.txt
ReturnToService=2
SlurmdTimeout=600
SlurmctldTimeout=600
MessageTimeout=60
BatchStartTimeout=120
KillWait=60
MinJobAge=3600
MaxArraySize=1001
JobRequeue=1
SlurmdParameters=config_overrides
{gpus}PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.[11-{last_address}] Port=[{first_port}-{last_port}] \
CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mb}{more} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE \
GraceTime=60 State={state}
PartitionName=high Nodes=ALL MaxTime=INFINITE DefaultTime=10 PriorityTier=10 PreemptMode=OFF State=UP
{partitions}"""


class Cluster:
    """A running cluster of nodes n1, n2, ...; `environment` makes SLURM's commands speak to it."""

    def __init__(
        self,
        root: Path,
        nodes: int = 2,
        cpus: int = 64,
        gpus: int = 0,
        state: str = "UP",
        memory_mb: int = 500_000,
        features: Sequence[str] = (),
        partitions: Sequence[str] = (),
    ) -> None:
        """`gpus` > 0, of each node and of type a100, needs root: their files are made by mknod. `state`: of the
        partition debug, from here because a controller that starts again forgets what scontrol said of it.
        `partitions`: more of them."""
        self.root, self.nodes = root, [f"n{i}" for i in range(1, nodes + 1)]
        self.environment = os.environ | {"SLURM_CONF": str(root / "slurm.conf"), "PATH": PATH}
        for name in [name for name in self.environment if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))]:
            if name != "SLURM_CONF":  # of a job that this test runs in
                del self.environment[name]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for folder in ("munge", "state", "spool", "run", "log", "dev"):
            (root / folder).mkdir(mode=0o755, parents=True)
        self._ports = hold_ports(nodes + 1)
        port, host = self._ports[0].getsockname()[1], socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(
            host=host,
            root=root,
            user=pwd.getpwuid(os.getuid()).pw_name,
            port=port,
            nodes=nodes,
            cpus=cpus,
            first_port=port + 1,
            last_port=port + nodes,
            last_address=10 + nodes,
            gpus="GresTypes=gpu\n" if gpus else "",
            more=(f" Gres=gpu:a100:{gpus}" if gpus else "") + (f" Feature={','.join(features)}" if features else ""),
            memory_mb=memory_mb,
            partitions="".join(f"PartitionName={name} Nodes=ALL MaxTime=INFINITE State=UP\n" for name in partitions),
            state=state,
        )
        (root / "slurm.conf").write_text(text, encoding="utf-8")
        if gpus:
            for i in range(gpus):
                os.mknod(root / "dev" / f"gpu{i}", 0o20666, os.makedev(1, 3))
            devices = f"Name=gpu Type=a100 Count={gpus} File={root}/dev/gpu[0-{gpus - 1}]\n"
            (root / "gres.conf").write_text("AutoDetect=off\n" + devices, encoding="utf-8")
        key = root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def start(self) -> None:
        """Start everything and wait until all nodes are idle. Raises TimeoutError with the end of the logs."""
        munge = self.root / "munge"
        options = ["--force", f"--key-file={munge}/key", f"--socket={munge}/sock", f"--pid-file={munge}/pid"]
        options += [f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--num-threads=2"]
        self._start("munged", ["munged", "-F", *options])
        self._wait(lambda: (munge / "sock").exists(), START_S, "munged")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_for_nodes()

    def start_controller(self) -> None:
        """Start it and wait until it answers."""
        self._start("slurmctld", ["slurmctld", "-D"])
        self._wait(lambda: "UP" in self.run("scontrol", "ping", check=False), START_S, "slurmctld")

    def start_node(self, node: str) -> None:
        (self.root / "spool" / node).mkdir(exist_ok=True)
        self._start(node, ["slurmd", "-D", "-N", node])

    def kill(self, name: str) -> None:
        """kill -9 of a node's slurmd, or of "slurmctld"; its jobs' processes live on."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def lose(self, node: str) -> None:
        """kill -9 of a node's slurmd; the controller, which would take its time to see that, is informed."""
        self.kill(node)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def restart_controller(self, away_s: float = 0.0) -> None:
        """End the controller in good order and start it `away_s` later; wait until it has heard of its nodes again:
        until then it refuses jobs ("Requested node configuration is not available")."""
        self._end("slurmctld")
        time.sleep(away_s)
        self.start_controller()
        self._wait(self._nodes_answer, START_S, "nodes that answer the new controller")

    def stop(self) -> None:
        """Cancel all jobs and end everything that belongs to the cluster, within bounded time."""
        if "slurmctld" in self._processes and "munged" in self._processes:
            with suppress(subprocess.SubprocessError):
                self.run("scancel", "-f", "-u", str(os.getuid()), check=False, timeout=30)
                deadline = time.monotonic() + STOP_S / 2
                while self.run("squeue", "-h", "-t", "R,CG", check=False, timeout=30).strip():
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.1)
        for name in [*self.nodes, "slurmctld", "munged"]:
            self._end(name)
        deadline = time.monotonic() + STOP_S
        killed: set[int] = set()
        while strays := self.strays():  # what a job left behind, above all on a node whose slurmd was killed
            for pid in strays:
                killed.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of the cluster outlive it: {strays}")
            time.sleep(0.05)
        _reap(killed)
        for port in self._ports:
            port.close()

    def run(self, *command: str, check: bool = True, timeout: float = 180.0, **more: Any) -> str:
        """The output of a command that speaks to this cluster. Raises CalledProcessError with its stderr shown."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False, **more
        )
        if check and done.returncode:
            print(done.stdout, done.stderr)
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def scaling(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """What `scaling` does with these words in this process, where it speaks to this cluster."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (self.environment | environment).items():
                patch.setenv(name, value)
            return in_this_process(main, *words)

    def submit(self, context: ScriptContext, job: ArrayJob) -> str:
        """The id of this job, whose script and elements are written to its submission's folder."""
        folder, script = context.paths.submission, context.paths.script(job)
        (folder / "logs").mkdir(parents=True)
        script.write_text(render(context, job), encoding="utf-8")
        context.paths.elements(job).write_text(elements_text(job), encoding="utf-8")
        return self.run("sbatch", "--parsable", script.name, cwd=folder).strip()

    def idle_nodes(self) -> int:
        counts = self.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).split()
        return sum(map(int, counts))

    def wait_for_nodes(self) -> None:
        """Until all are idle: one that resumes from DRAIN is not so at once."""
        self._wait(lambda: self.idle_nodes() == len(self.nodes) and self._nodes_answer(), START_S, "all nodes idle")

    def _nodes_answer(self) -> bool:
        """Whether every node with a slurmd has a state, without the asterisk of one that does not answer."""
        output = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).split("\n")
        states = dict(line.split() for line in output if line.strip())
        heard = {node for node, state in states.items() if not state.startswith("unk") and not state.endswith("*")}
        return heard >= {node for node in self.nodes if node in self._processes}

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs the controller knows, an array's elements one by one, as squeue's JSON has them."""
        return list(json.loads(self.run("squeue", "--json", "-t", "all", "-r"))["jobs"])

    def wait_for_jobs(self, done: Callable[[list[dict[str, Any]]], bool], seconds: float, what: str = "jobs") -> None:
        self._wait(lambda: done(self.jobs()), seconds, what)

    def pids(self, *words: str) -> dict[int, dict[str, str]]:
        """{pid: environment} of this cluster's job processes whose command line holds all `words`."""
        environments = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            if environment.get("SLURM_CONF") == str(self.root / "slurm.conf") and set(words) <= set(arguments):
                environments[int(folder.name)] = environment
        return environments

    def processes_of(self, job_id: str) -> list[int]:
        """All of a job: its script, srun, tasks, and the slurmstepds that hold them.

        A slurmstepd writes its title over its environment, and another cluster of this machine may have a job of the
        same number: the slurmd's log that it holds open says whose it is.
        """
        pids = [pid for pid, environment in self.pids().items() if environment.get("SLURM_JOB_ID") == job_id]
        logs = f"{self.root}/log/"
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (folder / "cmdline").read_bytes().startswith(f"slurmstepd: [{job_id}.".encode()) and any(
                    os.readlink(file).startswith(logs) for file in (folder / "fd").iterdir()
                ):
                    pids.append(int(folder.name))
        return sorted(set(pids))

    def hang(self, job_id: str) -> list[int]:
        """Stop all processes of a job, as on a node that hangs; they are returned for `kill_hung`."""
        pids = self.processes_of(job_id)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    @staticmethod
    def kill_hung(pids: list[int]) -> None:
        """kill -9 of them: srun first, what holds the others last.

        A stopped process whose parents are gone gets SIGHUP and goes on, and an srun then cancels the step of its
        number: by now that of the job's next start, on another node.
        """
        for pid in sorted(pids, key=lambda pid: (name(pid) != "srun", name(pid) == "slurmstepd")):
            os.kill(pid, signal.SIGKILL)

    def strays(self) -> list[int]:
        """Processes, zombies apart, that carry this cluster's SLURM_CONF."""
        return [pid for pid in self.pids() if pid != os.getpid()]

    def tail(self) -> str:
        logs = sorted((self.root / "log").glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace', encoding='utf-8')[-1500:]}" for log in logs)

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.root / "log" / f"{name}.out", "ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # it dies with this process
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s\n{self.tail()}")
            time.sleep(0.1)


def name(pid: int) -> str:
    """Of a process's program, as /proc has it."""
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()


def hold_ports(count: int) -> list[socket.socket]:
    """`count` ports in a row that nobody has, below those the kernel gives to connections: bound here, so that nobody
    else finds them free, whatever is started and stopped there meanwhile; SLURM's own sockets may listen there."""
    start = 10_000 + (os.getpid() * 97) % 20_000
    for first in [*range(start, 32_000 - count, 67), *range(10_000, start, 67)]:
        held = [socket.socket() for _ in range(count)]
        try:
            for i, listener in enumerate(held):
                listener.bind(("", first + i))  # fails beside any other
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # and now suffers one that says so too
            return held
        except OSError:
            for listener in held:
                listener.close()
    raise OSError("no free ports")


@contextmanager
def cluster(nodes: int = 2, **options: Any) -> Iterator[Cluster]:
    """A started cluster, ended and removed afterwards. Its folder has a short name: sockets' paths are limited."""
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    root.chmod(0o755)  # munged refuses a folder that others cannot enter
    made = Cluster(root, nodes, **options)
    before = ctypes.c_int()
    LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))  # 1 inside another cluster's time
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to us: not every PID 1 reaps them
    try:
        made.start()
        yield made
    finally:
        made.stop()
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, before.value)
        shutil.rmtree(root, ignore_errors=True)


def _reap(killed: set[int]) -> None:
    """Collect the ended orphans that came to this process: slurmstepds, and those in `killed`."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid, _, rest = (folder / "stat").read_text(encoding="utf-8").partition(" (")
        except OSError:
            continue
        name, _, fields = rest.rpartition(") ")
        state, parent = fields.split()[:2]
        if state == "Z" and int(parent) == os.getpid() and (name == "slurmstepd" or int(pid) in killed):
            with suppress(ChildProcessError):
                os.waitpid(int(pid), os.WNOHANG)
