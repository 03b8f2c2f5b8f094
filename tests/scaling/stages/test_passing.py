"""Lines that pass: throttled, replaced on a terminal, and gone from it at the end."""

from __future__ import annotations

import io

import pytest

from scaling.stages import passing
from scaling.stages.passing import CLEARED, Passing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "every"), [(io.StringIO(), 10.0), (Terminal(), 0.5)])
def test_lines_come_after_a_while_and_then_now_and_again(
    stream: io.StringIO, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(passing.time, "monotonic", lambda: now)
    with Passing(stream) as progress:
        for i in range(10):
            now = i * every / 4
            progress.tell_bytes("packed", i * 1000, 10_000)
        shown = stream.getvalue()
    lines = ["packed: 40% of 10 kB", "packed: 80% of 10 kB"]
    if stream.isatty():
        assert shown == "".join(CLEARED + line for line in lines) and stream.getvalue() == shown + CLEARED
    else:
        assert shown == stream.getvalue() == "".join(f"{line}\n" for line in lines)


def test_nothing_is_printed_of_what_is_quick() -> None:
    stream = Terminal()
    with Passing(stream) as progress:
        progress.tell("half")
        progress.tell_bytes("packed", 0, 0)
    assert stream.getvalue() == ""


def test_what_makes_a_line_is_called_where_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made, stream = 0.0, list[float](), io.StringIO()
    monkeypatch.setattr(passing.time, "monotonic", lambda: now)

    def line() -> str:
        made.append(now)
        return f"at {now:g}"

    with Passing(stream) as progress:
        for i in range(8):
            now = 4.0 * i
            progress.tell(line)
    assert made == [12.0, 24.0] and stream.getvalue() == "at 12\nat 24\n"
