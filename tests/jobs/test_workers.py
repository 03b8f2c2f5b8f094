"""Processes that serve several tasks: what they are told, what they answer, and what becomes of one that ends."""

import os
import sys
import textwrap
from contextlib import closing

from jobs.local import run_tasks
from jobs.workers import Task
from tests.processes import alive

SERVER = textwrap.dedent("""
    import json, os, sys, time
    for line in sys.stdin:
        told = json.loads(line)
        if told["argv"] == ["unseen"] and os.environ.get("SERVED"):
            sys.exit(9)
        print("stray 5", flush=True)
        print("begun", flush=True)
        with open(told["log"], "a") as log:
            print(os.getpid(), *told["argv"], os.environ.get("WORD"), file=log)
        if told["argv"] == ["dies"]:
            sys.stderr.write("oops")
            sys.exit(7)
        if told["argv"] == ["waits"]:
            time.sleep(600)
        last = told["argv"] == ["last"]
        print(len(told["argv"][0]), *["last"] * last, flush=True)
        os.environ["SERVED"] = "yes"
        if last:
            time.sleep(0.5)  # as a process that leaves its group
            sys.exit(75)
""")


def served(name, folder, **env):
    return Task(name, [name.partition("-")[0]], folder / f"{name}.log", env, [sys.executable, "-c", SERVER])


def ended(tasks, parallel):
    return {event.task.name: event.exit_code for event in run_tasks(tasks, parallel) if event.kind == "finished"}


def pid_and_word(folder, name):
    pid, _, word = (folder / f"{name}.log").read_text().split()[:3]
    return int(pid), word


def test_one_process_serves_tasks_of_one_kind_and_environment(tmp_path):
    names = ["a", "bb", "dies", "ccc", "dddd-x", "eeeee"]
    env = {"eeeee": {"WORD": "hello"}}
    tasks = [served(name, tmp_path, **env.get(name, {})) for name in names]
    plain = Task("plain", [sys.executable, "-c", "print('not served')"], tmp_path / "plain.log")
    found = ended([*tasks, plain], 1)
    assert found == {"a": 1, "bb": 2, "dies": 7, "ccc": 3, "dddd-x": 4, "eeeee": 5, "plain": 0}
    pids = [pid_and_word(tmp_path, name)[0] for name in names]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] != pids[5] and len(set(pids)) == 3
    assert pid_and_word(tmp_path, "eeeee")[1] == "hello" and "oops" in (tmp_path / "a.log").read_text()
    assert not any(alive(pid) for pid in pids)


def test_a_task_that_nobody_began_gets_a_fresh_process(tmp_path):
    """After one that takes no other, and where a process ends before it has read what it is told."""
    names = ["last-1", "aa-2", "last-3", "last-4", "bbb-5", "unseen", "cc"]
    assert ended([served(name, tmp_path) for name in names], 1) == {
        **{"last-1": 4, "aa-2": 2, "last-3": 4, "last-4": 4, "bbb-5": 3, "unseen": 6, "cc": 2}
    }
    pids = [pid_and_word(tmp_path, name)[0] for name in names]
    assert pids[0] != pids[1] == pids[2] != pids[3] != pids[4] != pids[5] == pids[6]


def test_two_slots_have_a_process_each(tmp_path):
    tasks = [served(name, tmp_path) for name in ("aa-1", "aa-2", "aa-3", "aa-4")]
    assert set(ended(tasks, 2).values()) == {2}
    assert len({pid_and_word(tmp_path, task.name)[0] for task in tasks}) == 2


def test_leaving_early_ends_those_at_work_and_those_without(tmp_path):
    tasks = [served(name, tmp_path) for name in ("waits", "aa")]
    with closing(run_tasks(tasks, 2)) as events:
        assert any(event.kind == "finished" for event in events)
        while not (tmp_path / "waits.log").read_text():
            next(events)
        pids = [pid_and_word(tmp_path, task.name)[0] for task in tasks]
        assert alive(pids[0]) and os.getpid() not in pids
    assert not any(alive(pid) for pid in pids)
