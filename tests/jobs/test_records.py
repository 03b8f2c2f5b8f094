"""Submissions on disk, and what the queue says of their runs: no SLURM, its answers are given."""

import contextlib
from dataclasses import replace

import pytest

from arch.errors import InputError
from data.files import write_json
from jobs import records
from jobs.model import ArrayJob, JobPlan, Resources
from jobs.records import Submission, next_path, queue_entries, refuse_changed, submissions
from jobs.slurm import Element
from jobs.status import active_items, active_jobs, job_rows, merge
from tests.wrong_forms import changes

ASKED = Resources(1, 1, 0, 1, None, 10)


def submission(directory, number, ids, elements=(("a", "b"), ("c",)), hashes=None, at_once=1):
    train = ArrayJob("train-0", "train", replace(ASKED, at_once=at_once), elements)
    evaluation = ArrayJob("eval-0", "eval", ASKED, elements, None, (("train-0", "aftercorr"),))
    plan = JobPlan("s", str(directory), (train, evaluation, ArrayJob("finish", "finish", ASKED, ((),))))
    path = directory / "jobs" / f"{number:04d}"
    path.mkdir(parents=True)
    record = {"schema": 1, "plan": plan.to_dict(), "settings": "x"}
    record["spec_hashes"] = hashes or {"a": "1", "b": "2", "c": "3"}
    record["jobs"] = {
        name: {"state": "submitted", "id": ids.get(name), "name": name} for name in ("train-0", "eval-0", "finish")
    }
    made = Submission(path, record)
    made.save()
    return made


def element(job, index, state, reason="", nodes="", restarts=0, name=None):
    name = name or {"8": "eval-0"}.get(job, "train-0")
    return Element(job, index, state, reason, nodes, "0:10", "9:50", restarts, name)


def row(run, state="waiting", step=0, reason=None):
    return {"run_id": run, "state": state, "step": step, "reason": reason, "node": None, "restarts": 0}


def test_a_submission_survives_on_disk(tmp_path):
    made = submission(tmp_path, 1, {"train-0": "7"})
    (stored,) = submissions(tmp_path)
    assert stored.plan == made.plan and stored.ids == {"train-0": "7"} and stored.number == 1
    stored.note("eval-0", records.SUBMITTED, "8")
    assert submissions(tmp_path)[0].ids == {"train-0": "7", "eval-0": "8"}


def test_numbers_go_on_and_a_refused_submissions_folder_is_used_again(tmp_path):
    for name in ("12a", "1b", "0002"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    write_json(tmp_path / "jobs" / "12a" / "submission.json", {"schema": 1})
    assert submissions(tmp_path) == [] and next_path(tmp_path).name == "0001"
    submission(tmp_path, 9, {})
    (tmp_path / "jobs" / "0010").mkdir()  # no record: nothing was submitted
    assert next_path(tmp_path).name == "0010"
    assert len(submissions(tmp_path)) == 1


def test_values_of_another_kind_in_a_record_are_refused_or_harmless(tmp_path):
    """One line, or a record with which all goes on."""
    made = submission(tmp_path, 1, {"train-0": "7"})
    file, refused, waits = made.path / "submission.json", 0, [element("7", 0, "RUNNING"), element("7", 1, "PENDING")]
    for changed in changes(made.record, 1500):
        file.write_bytes(changed)
        try:
            stored = submissions(tmp_path)
        except InputError as error:
            assert "\n" not in str(error) and "submission.json: cannot be read" in str(error), changed
            refused += 1
            continue
        assert active_items(stored, waits, "train") <= {"a", "b", "c", "x", "../../x"}
        assert merge([row("a")], stored, waits) and job_rows(stored, waits) is not None
        assert all(job_id.isdecimal() for job_id in records.job_ids(stored))
        with contextlib.suppress(InputError):
            refuse_changed(stored, {"a": "1"}, "x", {1}, new=False)
    assert refused > 200


def test_where_runs_stand_in_the_queue(tmp_path):
    stored = [submission(tmp_path, 1, {"train-0": "7", "eval-0": "8"}), submission(tmp_path, 2, {})]
    elements = [
        element("7", 0, "RUNNING"),
        element("7", 1, "COMPLETED"),
        element("8", 1, "PENDING"),
        element("99", 0, "RUNNING"),
    ]
    assert [(p.job.name, p.element.index, records.items(p)) for p in queue_entries(stored, elements)] == [
        ("train-0", 0, ("a", "b")),
        ("train-0", 1, ("c",)),
        ("eval-0", 1, ("c",)),
    ]
    assert active_items(stored, elements, "train") == {"a", "b"}
    assert active_items(stored, elements, "eval") == {"c"}
    somebodys = element("7", 0, "RUNNING", name="somebody's")  # another cluster's job of the same id
    assert not list(queue_entries(stored, [somebodys]))
    assert active_jobs(stored, [element("7", 0, "RUNNING"), element("7", 1, "RUNNING")], "train") == ["7"]


def test_the_queue_and_the_directories_together(tmp_path):
    stored = [submission(tmp_path, 1, {"train-0": "7"}, (("a", "b"), ("c",), ("d",), ("e",), ("f",), ("g",)))]
    elements = [
        element("7", 0, "RUNNING", nodes="n1"),
        element("7", 1, "PENDING", "Resources"),
        element("7", 2, "PENDING", "BeginTime", restarts=2),
        element("7", 3, "TIMEOUT", "TimeLimit", "n2"),
        element("7", 4, "FAILED", "NonZeroExitCode"),
        element("7", 5, "COMPLETED", nodes="n3"),
    ]
    rows = [row("a", "interrupted", 4), row("b"), row("c"), row("d", "interrupted", 9, "stopped by USR1")]
    rows += [row("e", "interrupted", 8, "1 step was skipped")]
    rows += [row("f", "failed", 3, "loss is nan"), row("g", "done", 10), row("h")]
    shown = {row["run_id"]: row for row in merge(rows, stored, elements)}
    assert {run: (row["state"], row["reason"]) for run, row in shown.items()} == {
        "a": ("running", None),
        "b": ("queued", "waits for a in the same job"),
        "c": ("queued", "Resources"),
        "d": ("requeued", "BeginTime"),
        "e": ("interrupted", "1 step was skipped; job TIMEOUT (TimeLimit)"),
        "f": ("failed", "loss is nan"),
        "g": ("done", None),
        "h": ("waiting", None),
    }
    assert shown["a"]["job"] == "7_0" and shown["a"]["node"] == "n1" and shown["a"]["limit_left"] == "9:50"
    assert shown["h"]["job"] is None
    assert shown["a"]["state"] != merge(rows, stored, [])[0]["state"] == "interrupted"  # without a queue
    later = merge([row("a", "done", 10), row("b")], stored, elements[:1])  # its element goes on with the next
    assert [run["state"] for run in later] == ["done", "running"]


def test_what_runs_of_an_element_side_by_side(tmp_path):
    stored = [submission(tmp_path, 1, {"train-0": "7"}, (("a", "b", "c", "d"),), at_once=2)]
    shown = merge(
        [row("a", "done", 9), row("b"), row("c", "interrupted"), row("d")], stored, [element("7", 0, "RUNNING")]
    )
    assert [run["state"] for run in shown] == ["done", "running", "running", "queued"]


def test_the_newest_submission_counts(tmp_path):
    stored = [submission(tmp_path, 1, {"train-0": "7"}), submission(tmp_path, 2, {"train-0": "9"})]
    elements = [element("7", 1, "TIMEOUT"), element("9", 1, "PENDING", "Priority")]
    (shown,) = merge([row("c")], stored, elements)
    assert (shown["job"], shown["state"]) == ("9_1", "queued")
    (shown,) = merge([row("c")], stored, [element("7", 1, "RUNNING"), element("9", 1, "PENDING")])
    assert (shown["job"], shown["state"]) == ("9_1", "queued")
    (shown,) = merge([row("c")], stored, [element("7", 1, "RUNNING"), element("9", 1, "CANCELLED")])
    assert (shown["job"], shown["state"]) == ("7_1", "running")
    (shown,) = merge([row("c")], stored, [element("7", 1, "TIMEOUT"), element("9", 1, "CANCELLED")])
    assert (shown["job"], shown["reason"]) == ("9_1", "job CANCELLED")


def test_a_changed_study_is_refused(tmp_path):
    stored = [submission(tmp_path, 3, {"train-0": "7"})]
    same = {"a": "1", "b": "2", "new": "9"}
    refuse_changed(stored, same, "x", set(), new=False)
    with pytest.raises(InputError, match=r"changed since submission 0003 \(run b and 1 more\).*--new"):
        refuse_changed(stored, {"a": "1", "b": "3", "c": "4"}, "x", set(), new=False)
    refuse_changed(stored, {"b": "3"}, "x", set(), new=True)
    with pytest.raises(InputError, match=r"0003 still has jobs of the study as it was.*scaling cancel"):
        refuse_changed(stored, {"b": "3"}, "x", {3}, new=True)
    refuse_changed(stored, same, "other", set(), new=False)
    with pytest.raises(InputError, match="evaluation or fit"):
        refuse_changed(stored, same, "other", {3}, new=False)
