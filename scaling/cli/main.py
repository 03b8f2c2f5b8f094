"""The `scaling` command. A command's module is imported when the command is called, and none for `--help`."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from arch.commands import application, with_options
from arch.console import run_app

from ..rundir.launcher import leave

# name: (module of this folder, its function or application, what the list of commands says)
COMMANDS = {
    "run": ("run", "run", "Run the whole study here, from plan to report."),
    "plan": ("run", "plan_command", "Say what the study will cost."),
    "data": ("run", "data", "Prepare the corpus."),
    "train": ("run", "train", "Train the runs that are not done yet."),
    "report": ("run", "report", "Draw the report from the fitted laws and the tables."),
    "status": ("status", "status", "Show how far each run is, here or on a cluster."),
    "watch": ("watch", "watch", "Watch a study while it trains."),
    "submit": ("submit", "submit", "Submit what a study still lacks to SLURM."),
    "cancel": ("submit", "cancel", "Cancel a study's jobs, queued or running."),
    "finish": ("submit", "finish", ""),
    "design": ("design", "design", "Propose a study that answers a question in a budget."),
    "sweep": ("sweep", "sweep", "Find learning rates by short runs."),
    "try": ("trial", "try_", "Say whether a change is worth scaling."),
    "predict": ("forecast", "predict", "Predict larger runs' losses before they are trained."),
    "publish": ("publish", "publish", "Write a study as a small folder for a repository."),
    "clean-text": ("clean_text", "clean_text", "Drop low-quality text and near-duplicates."),
    "recall": ("recall", "recall", "Train on associative recall: accuracy against width."),
    "generate": ("checkpoint", "generate", "Continue a text with a trained model."),
    "inspect": ("checkpoint", "inspect", "Look inside a model."),
    "export": ("checkpoint", "export", "Write a checkpoint for other tools."),
    "eval": ("evaluate", "app", "Evaluate checkpoints by tasks, and list the tasks."),
    "fit": ("fit", "app", "Fit scaling laws to a study, or to anybody's runs."),
    "bundle": ("bundle", "app", "Carry finished runs between machines."),
}
HIDDEN = ("finish",)

# The bits of fits depend neither on a machine's cores nor on which of today's x86 processors it has: sums of several
# threads, and those of longer registers, add up in another order. AVX2 with FMA is what every x86 processor of the last
# ten years has; names of features that a version of numpy does not know are passed over.
LONGER_REGISTERS = "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"
CPUINFO = "/proc/cpuinfo"


class Lazy(Mapping[str, Any]):
    """The commands by name, each made where it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, attribute, _ = COMMANDS[name]
            command = getattr(import_module(f"scaling.cli.{module}"), attribute)
            holder = application("")
            if isinstance(command, typer.Typer):
                holder.add_typer(command, name=name)
            else:
                holder.command(name, hidden=name in HIDDEN)(with_options(command))
            self._made[name] = typer.main.get_command(holder).commands[name]  # type: ignore[attr-defined]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """The group of all commands, whose list is drawn from COMMANDS alone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": None})
        self.commands = Lazy()  # type: ignore[assignment]  # none is added later

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in COMMANDS.items() if name not in HIDDEN])


app = application(
    "A scaling study from one YAML file: corpus, runs, evaluations, fits and report. Everything can be resumed.",
    Commands,
)


def fix_bits() -> None:
    """Set before numpy is imported; what the environment says already stays."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if platform.machine() == "x86_64" and _has_avx2():
        os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
        os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", LONGER_REGISTERS)


def _has_avx2() -> bool:
    try:
        with open(CPUINFO, encoding="utf-8") as handle:
            flags = next((line.split() for line in handle if line.startswith("flags")), [])
    except OSError:
        return False
    return "avx2" in flags and "fma" in flags


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Console script."""
    fix_bits()
    signal.signal(signal.SIGTERM, _stop)  # an exception ends the running trainings in good order
    leave()
    run_app(app, "interrupted: give the same command again to continue")


if __name__ == "__main__":
    main()
