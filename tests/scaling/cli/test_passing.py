"""Lines that pass: throttled, replaced on a terminal, and gone from it at the end."""

from __future__ import annotations

import io
import time

import pytest

from scaling.cli import passing
from scaling.cli.passing import CLEARED, Passing
from scaling.cli.request import Request
from scaling.cli.training import SHOWN, Progress, Watched
from scaling.rundir.directory import RunDir
from scaling.study.spec import load_study


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "every"), [(io.StringIO(), 10.0), (Terminal(), 0.5)])
def test_lines_come_after_a_while_and_are_made_where_they_are_due(
    stream: io.StringIO, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made = 0.0, list[int]()
    monkeypatch.setattr(passing.time, "monotonic", lambda: now)
    with Passing(stream) as progress:
        for i in range(10):
            now = i * every / 4
            progress.show(lambda i=i: made.append(i) or f"{i} of 10")
        shown = stream.getvalue()
    assert made == [4, 8]
    if stream.isatty():
        assert shown == "".join(f"{CLEARED}{i} of 10" for i in made) and stream.getvalue() == shown + CLEARED
    else:
        assert shown == stream.getvalue() == "4 of 10\n8 of 10\n"


def test_nothing_is_printed_of_what_is_quick() -> None:
    stream = Terminal()
    with Passing(stream) as progress:
        progress.show_bytes("packed", 1, 2)
    assert stream.getvalue() == ""


STUDY = """
name: wide
corpus: {source: "synthetic:0:60000"}
grid: {archs: [llama], sizes: [6k], seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
model: {context_length: 64}
training: {n_tokens: 2560, batch_tokens: 256, lr: 3e-3}
"""


def test_the_progress_of_many_runs_names_a_few_and_counts_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(passing, "PLAIN_EVERY_S", 0.0)
    (tmp_path / "wide.yaml").write_text(STUDY)
    request = Request(load_study(tmp_path / "wide.yaml"), stream=io.StringIO())
    watched = [Watched(run, RunDir(tmp_path / run.run_id), 1.0) for run in request.runs]
    progress = Progress(watched, request)
    for item in watched[: SHOWN + 3]:
        progress.started(item.run.run_id)
    progress.tick()
    line = request.stream.getvalue().splitlines()[-1]
    assert line.count("starting") == SHOWN and line.endswith("; 3 more runs at work")


def test_the_time_left_is_at_the_pace_of_late(tmp_path, monkeypatch):
    """Half of the work was done in 30 minutes, the last tenth of that in the last ten, when others used the machine."""
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    (tmp_path / "wide.yaml").write_text(STUDY)
    request = Request(load_study(tmp_path / "wide.yaml"), stream=io.StringIO())
    progress = Progress([Watched(run, RunDir(tmp_path / run.run_id), 1.0) for run in request.runs], request)
    for minute in range(31):
        clock = 60.0 * minute
        for item in progress.watched.values():
            item.done = 0.45 * minute / 20 if minute <= 20 else 0.45 + 0.05 * (minute - 20) / 10
        text = progress._overall()
    assert text == "0/10 runs, 1.67 h left"  # at the pace from the start it would be half an hour
