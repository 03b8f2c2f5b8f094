"""How quick the commands answer on this machine: what a user waits for, start of Python included.

    python -m scaling.cli.bench                 each command five times, in turns
    python -m scaling.cli.bench --repeats 9 --json

A study of a thousand runs is planned, and its status asked before any run began. Seconds are medians; processor
seconds are those of the command alone, and depend less on what else the machine does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arch.arguments import Parser, at_least_one, run
from arch.config import ARCHS
from arch.errors import InputError
from arch.tables import rows_table

THOUSAND = """
name: thousand
corpus: {source: "synthetic:0:60000"}
grid:
  archs: [ARCH]
  sizes: [14k]
  axes: {training.lr: LRS, training.weight_decay: [0.1, 0.2, 0.3, 0.4, 0.5]}
model: {context_length: 64}
training: {n_tokens: 2560, batch_tokens: 256}
"""
COUNTS = """
from arch.presets import preset
from flops import count_params, train_flops_per_token
cfgs = [preset("ARCH", "7b", n_layers=n_layers) for n_layers in range(1, 101)]
for cfg in cfgs * 100:
    count_params(cfg), train_flops_per_token(cfg, "exact")
"""


def cases(folder: Path) -> dict[str, list[str]]:
    """{what is measured: the words of its command after `python`}; `folder` receives a study of 1,000 runs."""
    study = folder / "thousand.yaml"
    arch = ARCHS[0]
    study.write_text(
        THOUSAND.replace("ARCH", arch).replace("LRS", str([i * 1e-4 for i in range(1, 201)])), encoding="utf-8"
    )
    flops, scaling = ["-m", "scaling.cli.flops"], ["-m", "scaling"]
    return {
        "python alone": ["-c", ""],
        "flops --help": [*flops, "--help"],
        "flops count, one model": [*flops, "count", "--arch", arch, "--size", "7b"],
        "10,000 counts of parameters and FLOPs": ["-c", COUNTS.replace("ARCH", arch)],
        "scaling --help": [*scaling, "--help"],
        "scaling plan quickstart": [*scaling, "plan", "quickstart"],
        "scaling plan paper": [*scaling, "plan", "paper"],
        "scaling plan, 1,000 runs": [*scaling, "plan", str(study), "--out", str(folder)],
        "scaling status, 1,000 runs": [*scaling, "status", str(study), "--out", str(folder)],
    }


def measured(words: list[str]) -> tuple[float, float]:
    """(seconds, processor seconds) of `python WORDS`. Raises InputError with the command's stderr where it fails."""
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
    )
    assert child.stderr is not None
    stderr = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise InputError(f"python {' '.join(words)}: exit code {child.returncode}: {stderr.strip()}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime


def main(arguments: list[str] | None = None) -> None:
    parser = Parser("python -m scaling.cli.bench", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each command")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)
    at_least_one(options, "repeats")
    with tempfile.TemporaryDirectory() as folder:
        commands = cases(Path(folder))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(options.repeats):
            print(f"repeat {number + 1} of {options.repeats}", file=sys.stderr, flush=True)
            for name, words in commands.items():
                times[name].append(measured(words))
    rows = [
        {
            "command": name,
            "seconds": round(statistics.median(wall for wall, _ in samples), 2),
            "processor_seconds": round(statistics.median(used for _, used in samples), 2),
        }
        for name, samples in times.items()
    ]
    print(json.dumps(rows) if options.json else rows_table(rows))


if __name__ == "__main__":
    run(main)
