"""`scaling status`: how long runs have left where they share GPUs."""

from __future__ import annotations

import pytest

from jobs import local
from scaling.cli.status import _shared
from scaling.rundir.owner import this_host


@pytest.mark.parametrize(("gpus", "seconds"), [([], 10.0), (["0"], 40.0), (["0", "1"], 20.0), (list("01234567"), 10.0)])
def test_four_runs_that_share_the_gpus_here_take_longer_than_a_single(
    gpus: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    row = {"state": "running", "node": this_host(), "seconds_left": 10.0}
    others = [row | {"state": "done", "seconds_left": None}, row | {"node": "elsewhere"}]
    rows = _shared([dict(row) for _ in range(3)] + [row | {"seconds_left": None}, *others])
    assert [run["seconds_left"] for run in rows] == [seconds] * 3 + [None, None, 10.0]
