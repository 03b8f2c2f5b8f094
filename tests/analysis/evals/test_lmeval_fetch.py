"""Fetching data: whole files with checksums, once; a failure is reported and the rest goes on."""

import json
import zipfile

import pytest
from typer.testing import CliRunner

from analysis.evals.lmeval.fetch import RECORD, data_sets, fetch, missing, rows_of_archive
from analysis.evals.lmeval.rows import read_rows
from analysis.evals.lmeval.sets import DATA, SCROLLS, TASKS
from arch.errors import InputError
from scaling.cli.main import app

ROW = {"goal": "wärmen", "sol1": "a", "sol2": "b", "label": 0}


def hub(calls, broken=()):
    def download(data):
        calls.append(data.file)
        if data.file in broken:
            raise ConnectionError("no\n  network")
        return [ROW, ROW], "f00d"

    return download


def test_a_second_fetch_downloads_what_is_missing_or_damaged(tmp_path):
    calls, lines = [], []
    names = ["piqa", "boolq", "qasper"]
    first = fetch(tmp_path, names, lines.append, hub(calls, broken=[DATA["boolq"].file]))
    assert [(fetched.name, fetched.state, fetched.rows) for fetched in first] == [
        ("piqa", "fetched", 2),
        ("boolq", "failed", None),
        ("qasper", "fetched", 2),
    ]
    assert first[1].reason == "ConnectionError: no network" and any("no network" in line for line in lines)
    assert read_rows(tmp_path / DATA["piqa"].file, "piqa", "piqa") == [ROW, ROW]
    assert json.loads((tmp_path / RECORD).read_text())[DATA["piqa"].file]["revision"] == "f00d"
    assert missing(tmp_path, names) == ["boolq"]
    with open(tmp_path / DATA["qasper"].file, "a") as handle:
        handle.write("{}\n")
    assert missing(tmp_path, names) == ["boolq", "qasper"]
    calls.clear()
    again = fetch(tmp_path, names, lines.append, hub(calls))
    assert [fetched.state for fetched in again] == ["there", "fetched", "fetched"]
    assert calls == [DATA["boolq"].file, DATA["qasper"].file] and missing(tmp_path, names) == []


def test_names():
    assert data_sets(None) == list(DATA)
    assert data_sets(["scrolls"]) == [TASKS[name].data for name in SCROLLS]
    assert data_sets(["arc-easy", "boolq", "superglue"])[:2] == ["boolq", "arc_easy"]
    with pytest.raises(InputError, match=r"'hellaswagg' is unknown .*hellaswag"):
        data_sets(["hellaswagg"])


def test_rows_lie_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "qasper.zip", "w") as archive:
        archive.writestr("qasper/validation.jsonl", json.dumps(ROW) + "\n\n" + json.dumps(ROW) + "\n")
    assert rows_of_archive(tmp_path / "qasper.zip", "qasper/validation.jsonl") == [ROW, ROW]
    assert all((DATA[TASKS[name].data].archive or "").endswith("/validation.jsonl") for name in SCROLLS)


def test_a_damaged_record_and_an_empty_split(tmp_path):
    (empty,) = fetch(tmp_path, ["piqa"], print, lambda data: ([], "f00d"))
    assert (empty.state, empty.reason) == ("failed", "the split validation of baber/piqa is empty at the hub")
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(InputError, match=r"fetched\.json: cannot be read"):
        fetch(tmp_path, ["piqa"], print, hub([]))


def test_commands(tmp_path):
    run = CliRunner().invoke
    assert run(app, ["eval", "fetch", str(tmp_path), "--tasks", "ppl", "--dry-run"]).output == (
        "would fetch 2 of 2: wikitext, lambada\n"
    )
    needle = run(app, ["eval", "fetch", str(tmp_path), "--tasks", "csr,niah"])
    assert isinstance(needle.exception, InputError)
    assert "the text of niah is yours: leave it out, and put .txt files into FOLDER/needle" in str(needle.exception)
    listed = json.loads(run(app, ["eval", "list", "--json"]).output)
    assert {task["task"] for task in listed["tasks"]} >= set(TASKS) and listed["presets"]["csr"][0] == "boolq"
    untrained = run(app, ["eval", "table", "four-architectures", "--out", str(tmp_path)])
    assert isinstance(untrained.exception, InputError) and "no checkpoints yet" in str(untrained.exception)
