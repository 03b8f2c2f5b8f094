"""The command beside the packages of others: its numbers of ours, and what it says of absent ones."""

import json
import subprocess
import sys

from benchmarks import fits as bench


def test_ours_beside_nothing(capsys):
    bench.main(["--tables", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ours, huber, 2 drawn tables: root mean square error E ")
    assert lines[-1] == "others: absent: no --python given"


def test_packages_that_are_not_there_are_said_to_be_absent():
    done = subprocess.run(
        [sys.executable, str(bench.PEERS)], input=json.dumps({"tables": []}), capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    assert all(reason.startswith("absent: No module named") for reason in result.values()) and len(result) == 2


def test_both_objectives_at_given_parameters():
    points = bench.drawn_tables(1)[0]
    result = bench.objectives(bench.ours(points, bench.HUBER)["params"], points)
    truth = bench.objectives(bench.TRUTH.to_dict(), points)
    assert result["huber"] < truth["huber"] and truth["squares"] > 0
