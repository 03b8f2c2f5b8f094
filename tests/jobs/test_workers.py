"""Processes that serve several tasks: what they are sent, what they answer, and what becomes of one that ends."""

import os
import sys
import textwrap
from contextlib import closing

from jobs.local import run_tasks
from jobs.workers import Task
from tests.commands import alive

SERVER = textwrap.dedent("""
    import json, os, sys, time
    for line in sys.stdin:
        request = json.loads(line)
        if request["argv"] == ["unseen"] and os.environ.get("SERVED"):
            sys.exit(9)
        print("stray 5", flush=True)
        print(request["task"], "begun", flush=True)
        with open(request["log"], "a") as log:
            print(os.getpid(), *request["argv"], os.environ.get("WORD"), file=log)
        if request["argv"] == ["dies"]:
            sys.stderr.write("oops")
            sys.exit(7)
        if request["argv"] == ["waits"]:
            time.sleep(600)
        last = request["argv"] == ["last"]
        print(request["task"], len(request["argv"][0]), *["last"] * last, flush=True)
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
    codes = ended([*tasks, plain], 1)
    assert codes == {"a": 1, "bb": 2, "dies": 7, "ccc": 3, "dddd-x": 4, "eeeee": 5, "plain": 0}
    pids = [pid_and_word(tmp_path, name)[0] for name in names]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] != pids[5] and len(set(pids)) == 3
    assert pid_and_word(tmp_path, "eeeee")[1] == "hello" and "oops" in (tmp_path / "a.log").read_text()
    assert not any(alive(pid) for pid in pids)
    tasks = [served(name, tmp_path) for name in ("aa-1", "aa-2", "aa-3", "aa-4")]  # a process for each of two slots
    assert set(ended(tasks, 2).values()) == {2}
    assert len({pid_and_word(tmp_path, task.name)[0] for task in tasks}) == 2


def test_a_task_that_did_not_begin_gets_a_fresh_process(tmp_path):
    """After one that takes no other, and where a process ends before it has read what it is sent."""
    names = ["last-1", "aa-2", "last-3", "last-4", "bbb-5", "unseen", "cc"]
    assert ended([served(name, tmp_path) for name in names], 1) == {
        **{"last-1": 4, "aa-2": 2, "last-3": 4, "last-4": 4, "bbb-5": 3, "unseen": 6, "cc": 2}
    }
    pids = [pid_and_word(tmp_path, name)[0] for name in names]
    assert pids[0] != pids[1] == pids[2] != pids[3] != pids[4] != pids[5] == pids[6]


def test_leaving_early_ends_those_at_work_and_those_without(tmp_path):
    tasks = [served(name, tmp_path) for name in ("waits", "aa")]
    with closing(run_tasks(tasks, 2)) as events:
        assert any(event.kind == "finished" for event in events)
        while not (tmp_path / "waits.log").read_text():
            next(events)
        pids = [pid_and_word(tmp_path, task.name)[0] for task in tasks]
        assert alive(pids[0]) and os.getpid() not in pids
    assert not any(alive(pid) for pid in pids)


SHARED = textwrap.dedent("""
    import json, os, sys
    at_work, many = [], int(os.environ["MANY"])
    for line in sys.stdin:
        request = json.loads(line)
        at_work.append(request)
        print(request["task"], "begun", flush=True)
        again = os.path.exists(request["log"]) and os.path.getsize(request["log"])
        with open(request["log"], "a") as log:
            print(os.getpid(), len(at_work), file=log)
        if len(at_work) < many and request["argv"] != ["alone"] and not again:
            continue  # until as many are here at the same time
        if any(work["argv"] == ["dies"] for work in at_work):
            sys.exit(7)
        for work in at_work:
            print(work["task"], 0, flush=True)
        at_work = []
""")


def shared(name, folder, share, **env):
    argv = [name.partition("-")[0]]
    return Task(name, argv, folder / f"{name}.log", env, [sys.executable, "-c", SHARED], share=share)


def pids_and_company(folder, name):
    return [tuple(map(int, line.split())) for line in (folder / f"{name}.log").read_text().splitlines()]


def test_tasks_whose_shares_fit_are_at_work_in_one_process_at_the_same_time(tmp_path):
    """Three of a third each end only together; one that takes all of it waits for them, and those behind it do too."""
    tasks = [shared(f"t-{n}", tmp_path, 1 / 3, MANY="3") for n in range(3)]
    tasks += [
        shared("alone", tmp_path, 1.0, MANY="3"),
        *(shared(f"u-{n}", tmp_path, 1 / 3, MANY="3") for n in range(3)),
    ]
    assert set(ended(tasks, 1).values()) == {0}
    shown = {task.name: pids_and_company(tmp_path, task.name) for task in tasks}
    assert len({pid for lines in shown.values() for pid, _ in lines}) == 1
    assert {name: [n for _, n in lines] for name, lines in shown.items()} == {
        **{"t-0": [1], "t-1": [2], "t-2": [3], "alone": [1], "u-0": [1], "u-1": [2], "u-2": [3]}
    }


def test_who_loses_its_process_to_another_task_gets_one_of_its_own(tmp_path):
    """Nobody knows which of three has ended it: each is begun again alone, and one of them ends it again."""
    tasks = [shared(name, tmp_path, 1 / 4, MANY="3") for name in ("t-0", "dies", "t-1", "alone")]
    events = list(run_tasks(tasks, 1))
    codes = {event.task.name: event.exit_code for event in events if event.kind == "finished"}
    assert codes == {"t-0": 0, "dies": 7, "t-1": 0, "alone": 0}
    shown = {name: pids_and_company(tmp_path, name) for name in codes}
    first = {name: lines.pop(0) for name, lines in shown.items() if name != "alone"}  # which nobody had begun
    assert len({pid for pid, _ in first.values()}) == 1 and [n for _, n in first.values()] == [1, 2, 3]
    assert all([n for _, n in lines] == [1] for lines in shown.values())
    assert shown["dies"] != shown["t-1"] and first["dies"][0] not in {
        pid for lines in shown.values() for pid, _ in lines
    }
    assert sum(event.kind == "started" for event in events) == 4 + 4
    assert {event.task.name for event in events if event.kind == "lost"} == {"t-0", "dies", "t-1", "alone"}


def test_lost_tasks_hold_up_no_other(tmp_path):
    """Begun with others, they come after those that were waiting."""
    tasks = [shared(name, tmp_path, 1 / 2, MANY="2") for name in ("t-0", "dies")]
    tasks += [shared(f"alone-{n}", tmp_path, 1 / 2, MANY="2") for n in range(3)]
    ends = [event.task.name for event in run_tasks(tasks, 1) if event.kind == "finished"]
    assert sorted(ends[:3]) == ["alone-0", "alone-1", "alone-2"] and ends[3:] == ["t-0", "dies"]
