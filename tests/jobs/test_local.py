"""Local processes: how many at once, what they are given, and that none outlives its parent."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.local import Task, at_once, core_slots, describe_use, gpu_slots, run_tasks, visible_gpus
from tests.commands import alive

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG and cores are Linux' own")


def python(code, name, folder, **env):
    return Task(name, [sys.executable, "-c", textwrap.dedent(code)], folder / f"{name}.log", env)


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_exit_codes_logs_and_environment(tmp_path):
    (tmp_path / "a.log").write_text("before\n")
    tasks = [
        python(
            "import os, sys; print(os.environ['WORD']); print('oops', file=sys.stderr)", "a", tmp_path, WORD="hello"
        ),
        python("raise SystemExit(3)", "b", tmp_path),
        python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "c", tmp_path),
    ]
    events = list(run_tasks(tasks, 1))
    ended = {event.task.name: event.exit_code for event in events if event.kind == "finished"}
    assert ended == {"a": 0, "b": 3, "c": -9}
    assert [event.task.name for event in events if event.kind == "started"] == ["a", "b", "c"]
    assert sorted((tmp_path / "a.log").read_text().split()) == ["before", "hello", "oops"]


def test_as_many_at_once_as_asked_for_and_no_more(tmp_path):
    """0 and 1 end only once both have come, then 2 and 3: each prints how many it saw at work."""
    code = f"""
        import os, pathlib, time
        folder, me = pathlib.Path({str(tmp_path)!r}), int(os.environ['ME'])
        (folder / f'{{me}}.here').touch()
        (folder / f'{{me}}.came').touch()
        most, deadline = 1, time.monotonic() + 120
        while time.monotonic() < deadline and not (folder / f'{{me ^ 1}}.came').exists():
            time.sleep(0.01)
        for _ in range(30):
            most = max(most, len(list(folder.glob('*.here'))))
            time.sleep(0.01)
        print(most if (folder / f'{{me ^ 1}}.came').exists() else 'alone')
        (folder / f'{{me}}.here').unlink()
    """
    list(run_tasks([python(code, f"t{i}", tmp_path, ME=str(i)) for i in range(4)], 2))
    output = [(tmp_path / f"t{i}.log").read_text().strip() for i in range(4)]
    assert set(output) <= {"1", "2"} and "2" in output[:2] and "2" in output[2:], output


@linux
def test_workers_have_their_own_cores(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: nothing to share out")
    code = "import os, time; print(sorted(os.sched_getaffinity(0))); time.sleep(0.3)"
    list(run_tasks([python(code, name, tmp_path) for name in "ab"], 2))
    first, second = (set(json.loads((tmp_path / f"{name}.log").read_text())) for name in "ab")
    assert first and second and not first & second and first | second <= set(cores)
    assert core_slots(len(cores) + 1) == [None] * (len(cores) + 1)  # more workers than cores: nobody is pinned


PARENT = """
    import sys
    from pathlib import Path
    from jobs.local import Task, run_tasks
    folder = Path(sys.argv[1])
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    tasks = [Task(n, [sys.executable, "-c", code, str(folder / (n + ".pid"))], folder / "log") for n in ("a", "b")]
    for event in run_tasks(tasks, 2):
        pass
"""


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_die_with_their_parent(tmp_path, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    files = [tmp_path / "a.pid", tmp_path / "b.pid"]
    try:
        assert wait_for(lambda: all(file.exists() and file.read_text() for file in files))
        pids = [int(file.read_text()) for file in files]
        assert all(alive(pid) for pid in pids)
        assert {os.getpgid(pid) for pid in pids} == {parent.pid}  # a kill of the group reaches them too
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # what Ctrl-C does
        else:
            os.kill(parent.pid, number)
        parent.wait(120)
        assert wait_for(lambda: not any(alive(pid) for pid in pids))
    finally:
        parent.kill()
        parent.wait()


SAVING = """
    import os, time
    from scaling.trainer.stop import StopRequest
    stop = StopRequest()
    stop.listen()
    print(os.getpid(), flush=True)
    while stop.name is None:
        time.sleep(0.01)
    time.sleep(float(os.environ["SECONDS"]))
    print("saved after", stop.name, flush=True)
"""


def saving(folder, seconds):
    """A task that takes `seconds` to end when it is asked to, and what it says."""
    return python(SAVING, "a", folder, PYTHONPATH=str(ROOT), SECONDS=str(seconds)), folder / "a.log"


def ready(events, log):
    return wait_for(lambda: next(events) and log.exists() and log.read_text().strip())


@pytest.mark.parametrize("heard", [True, False])
def test_ctrl_c_waits_for_what_the_children_save(tmp_path, heard):
    """Whether they heard it too, long before, or not."""
    task, log = saving(tmp_path, 1)
    with pytest.raises(KeyboardInterrupt), closing(run_tasks([task], 1, tick_s=0.01)) as events:
        pid = int(ready(events, log))
        if heard:
            os.kill(pid, signal.SIGINT)
            time.sleep(0.5)
        raise KeyboardInterrupt
    assert log.read_text().splitlines() == [str(pid), f"saved after {'SIGINT' if heard else 'SIGTERM'}"]


def test_another_ctrl_c_does_not_wait(tmp_path, capfd):
    task, log = saving(tmp_path, 600)

    def interrupt():
        shown = ""
        while "waiting for 1 process" not in shown:
            time.sleep(0.02)
            shown += capfd.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), closing(run_tasks([task], 1, tick_s=0.01)) as events:
        pid = int(ready(events, log))
        threading.Thread(target=interrupt, daemon=True).start()
        raise KeyboardInterrupt
    assert log.read_text().splitlines() == [str(pid)] and not alive(pid)


def test_a_child_that_was_stopped_goes_on_and_saves(tmp_path):
    """SIGSTOP, Ctrl-Z or a debugger: it heard no SIGTERM, and its parent waited ten minutes for it."""
    task, log = saving(tmp_path, 0)
    with closing(run_tasks([task], 1, tick_s=0.01)) as events:
        pid = int(ready(events, log))
        os.kill(pid, signal.SIGSTOP)
        assert wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T")
        begun = time.monotonic()
    assert time.monotonic() - begun < 60 and not alive(pid)
    assert log.read_text().splitlines() == [str(pid), "saved after SIGTERM"]


def test_a_child_that_does_not_end_is_killed_and_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("jobs.local.PATIENCE_S", 0.2)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
    task, log = python(code, "a", tmp_path), tmp_path / "a.log"
    with closing(run_tasks([task], 1, tick_s=0.01)) as events:
        ready(events, log)
    output = capfd.readouterr().err.splitlines()
    assert output[0] == "waiting for 1 process to save its state; Ctrl-C again kills all at once"
    assert len(output) == 2 and re.fullmatch(r"killed process \d+, which did not end in 0 s; .*", output[1])


def test_as_many_runs_at_once_as_there_are_gpus_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert gpu_slots(3) == ["4", "5", "4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert gpu_slots(2) == ["0,1", "2,3"] and gpu_slots(1) == [None]
    assert [at_once(None, processes) for processes in (1, 2, 3, 8)] == [4, 2, 1, 1]
    assert at_once(3, 1) == 3
    assert describe_use(None, 1) == "4 GPUs: 4 runs at once, 1 process each"
    assert describe_use(None, 2) == "4 GPUs: 2 runs at once, 2 processes each"
    assert describe_use(1, 1) == "4 GPUs: 1 run at once, 1 process each (jobs.parallel; 3 GPUs without work)"
    assert describe_use(8, 1) == "4 GPUs: 8 runs at once, 1 process each (jobs.parallel; more than one on a GPU)"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert at_once(None, 1) == 1 and at_once(2, 1) == 2 and describe_use(None, 1) is None
    assert gpu_slots(2) == [None, None]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [*((none, []) for none in ("-1", "", "none")), ("1,-1,0", ["1"]), ("GPU-5a, MIG-77", ["GPU-5a", "MIG-77"])],
)
def test_gpus_are_seen_up_to_the_first_entry_that_is_none(monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == gpus


def test_what_comes_after_a_skipped_task_is_skipped_too(tmp_path):
    tasks = [python("raise SystemExit(3)", "a", tmp_path)]
    tasks += [replace(python("pass", name, tmp_path), after=after) for name, after in (("c", "b"), ("b", "a"))]
    shown = [(event.kind, event.task.name) for event in run_tasks(tasks, 1) if event.task]
    assert shown == [("started", "a"), ("finished", "a"), ("skipped", "b"), ("skipped", "c")]
