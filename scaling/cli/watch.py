"""`scaling watch`: a study in the terminal while it trains, and its report as far as it is."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from arch.amounts import count, counted
from arch.errors import InputError
from flops.tables import duration

from ..rundir.lock import is_locked, study_lock
from .fitting import check_results, runs_at_stored_rates
from .options import RunsOptions
from .request import Request
from .status import InQueue, look, print_status, show_jobs, status_lines

if TYPE_CHECKING:
    from rich.console import Group

FIRST = ("running", "failed", "damaged", "interrupted", "other settings", "requeued", "queued", "waiting", "done")
AROUND = 6  # lines of a terminal beside those of runs
REPORT_EVERY_S, REST = 60.0, 9  # between two drawings of the report, and as a multiple of the time that one takes


def watch(
    study: RunsOptions,
    report: Annotated[
        bool, typer.Option("--report", help="Draw the report too while runs train: report-live/.")
    ] = False,
    every: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds between two updates.")] = 5.0,
) -> None:
    """Watch a study while it trains. In a pipe, and with --json, it is what `status` prints."""
    request = study.request()
    now, page = look(request), LiveReport(request) if report else None
    if not sys.stdout.isatty() or study.as_json:
        print_status(request, now, study.as_json)
        return page.follow(every) if page else None
    from rich.live import Live

    drawing = threading.Thread(target=page.follow, args=(every,), daemon=True) if page else None
    if drawing:
        drawing.start()
    with Live(auto_refresh=False) as live:
        while True:
            live.update(_view(request, now, page.line if page else "", live.console.height), refresh=True)
            if not now.at_work and not is_locked(request.study.directory):  # as while the corpus is made
                break
            time.sleep(every)
            now = look(request)
    if page and drawing:
        drawing.join()
        print(page.line)
    study.say_next("status")


def _view(request: Request, now: InQueue, report: str, height: int) -> Group:
    """Runs by what deserves a look first, as many as a terminal of this height holds, and lines around them."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines = [*show_jobs(now.jobs).split("\n"), *status_lines(request, now), now.warning or "", report]
    lines = [line for line in lines if line]
    by_state = Counter(row["state"] for row in now.runs)
    states = ", ".join(f"{number} {state}" for state, number in by_state.items())
    rows = sorted(now.runs, key=lambda row: FIRST.index(row["state"]) if row["state"] in FIRST else 1)
    shown = rows[: max(1, height - AROUND - len(lines))]
    table = Table(box=None, pad_edge=False)
    numbers = ("step", "loss", "tokens/s", "left")
    for head in ("run", "state", "", *numbers, ""):
        table.add_column(head, justify="right" if head in numbers else "left", no_wrap=True)
    for row in shown:
        table.add_row(
            Text(row["run_id"]),
            Text(row["state"]),
            ProgressBar(total=row["n_steps"], completed=row["step"], width=16),
            f"{row['step']:,}/{row['n_steps']:,}",
            "-" if row["loss"] is None else f"{row['loss']:.3f}",
            count(row["tokens_per_s"]) if row["tokens_per_s"] else "-",
            "-" if row["seconds_left"] is None else duration(row["seconds_left"]),
            Text(row["reason"] or ""),
        )
    if more := len(rows) - len(shown):
        lines.insert(0, f"and {counted(more, 'more run')}")
    head = f"{request.study.name}: {counted(len(rows), 'run')} ({states}), {time.strftime('%H:%M:%S')}"
    return Group(Text(head), table, *map(Text, lines))


class LiveReport:
    """The report of a study as far as it is, in report-live/ beside the report that the study ends with: whoever runs
    the study holds that."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._study = request.study.model_copy(update={"live": True})
        self.line = f"report: {self._study.report / 'index.html'} comes"

    def follow(self, every: float) -> None:
        """Draw it when metrics have changed, until nothing is queued or runs."""
        due, at_work = 0.0, True
        while at_work:
            at_work = look(self._request).at_work
            if not at_work or time.monotonic() >= due:
                begin = time.monotonic()
                self._draw()
                due = time.monotonic() + max(REPORT_EVERY_S, REST * (time.monotonic() - begin))
            if at_work:
                time.sleep(every)

    def _draw(self) -> None:
        from analysis.stage import report

        try:
            check_results(self._request)
            with study_lock(self._study.results):
                drawn = report(self._study, runs_at_stored_rates(self._request))
            line = f"report: {drawn.path}, {time.strftime('%H:%M:%S')}" if drawn.fresh else self.line
        except (InputError, OSError) as error:  # files may be replaced while they are read
            line = f"report: {error}"
        if line != self.line and not sys.stdout.isatty():
            self._request.say(line)
        self.line = line
