"""On PYTHONPATH, and with GATE=STEP:FILE, a trainer waits after the row of STEP: until FILE is there, or a stop signal.

So a test finds every run in the middle of its training, however long the machine keeps either of them waiting.
"""

import os
import time
from pathlib import Path
from typing import Any

if wanted := os.environ.get("GATE"):
    from scaling.rundir.metrics import MetricsWriter
    from scaling.trainer.stop import StopRequest

    step, _, file = wanted.partition(":")
    append, note, signals = MetricsWriter.append, StopRequest._note, list[int]()

    def append_and_wait(self: MetricsWriter, row: dict[str, Any]) -> None:
        append(self, row)
        if row["step"] == int(step):
            self.flush()
            while not signals and not Path(file).exists():
                time.sleep(0.01)

    def note_and_pass(self: StopRequest, number: int, frame: Any) -> None:
        signals.append(number)
        note(self, number, frame)

    MetricsWriter.append = append_and_wait  # type: ignore[method-assign]
    StopRequest._note = note_and_pass  # type: ignore[method-assign]
