"""Which commands laws.csv is made by, every default spelled out, and what they read."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.__main__ import main
from scaling.cli.corpus import data_stage
from scaling.cli.request import Request
from scaling.cli.variant import opened, read_variant
from scaling.study.spec import StudySpec, load_study
from scaling.study.sweep import sweep_of
from tests.commands import in_this_process

from . import adapter, study
from .adapter import Reading

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHARED = ROOT.parent / "shared"
PUBLISHED = ROOT / "analysis" / "studies" / "2026-second"
LEVEL, STUDY_REPLICATES = 0.95, 1000  # of the fit stage, which has no option for them


class Place:
    """The folder in which commands run, with the studies that tests/golden/study.py draws. drawn: where grids that were
    drawn once are kept for other places."""

    def __init__(self, folder: Path, drawn: Path) -> None:
        self.folder, self.drawn = folder, drawn
        self.out = folder / "out"

    def study(self, name: str) -> StudySpec:
        return load_study(HERE / f"{name}.yaml", out=self.out)

    def request(self, name: str, forecast: bool = False) -> Request:
        return Request(self.study(name), None, sys.stderr, forecast=forecast)

    def draw_grid(self, name: str = "golden") -> None:
        spec = load_study(HERE / f"{name}.yaml", out=self.drawn)
        if not spec.directory.exists():
            study.write_runs(Request(spec, None, sys.stderr, forecast=False))
        shutil.copytree(spec.directory, self.study(name).directory)

    def draw_scores(self) -> None:
        self.draw_grid()
        study.write_scores(self.request("golden"))

    def draw_forecast(self) -> None:
        """The forecast runs that were predicted."""
        study.write_runs(self.request("golden", forecast=True))

    def draw_sweep(self) -> None:
        request = self.request("rates")
        data_stage(request)
        spec = sweep_of(request.study)
        spec.directory.mkdir(parents=True)
        (spec.directory / "corpus").symlink_to(Path("..") / "corpus")
        study.write_runs(Request(spec, None, sys.stderr))

    def draw_variant(self) -> None:
        self.draw_grid()
        with opened(self.request("golden"), read_variant(HERE / "variant.yaml"), "data", True) as trial:
            for request in trial.requests(trial.sizes[:4]):
                study.write_runs(request)

    def scaling(self, words: list[str]) -> Any:
        """What `scaling` prints as JSON."""
        done = in_this_process(main, *words, "--json", cwd=self.folder)
        if done.returncode == 2:
            raise Refused(done.stderr.strip().splitlines()[-1].removeprefix("error: "))
        if done.returncode:
            raise RuntimeError(f"scaling {' '.join(words)}: {done.stderr}")
        return json.loads(done.stdout)


class Refused(Exception):
    """The one line of a command that ended with exit code 2."""


Read = Callable[[Any], Iterator[Reading]]


@dataclass(frozen=True)
class Command:
    """words: after `scaling`, where {here}, {shared}, {published} and {out} are folders and ~ is a blank; read: its
    rows; objective, points: as the rows name them; before: what is drawn first; refused: it ends with exit code 2, and
    its one line is the row; form: of the surface."""

    words: str
    read: Read
    objective: str = ""
    points: str = ""
    before: Callable[[Place], None] | None = None
    refused: bool = False
    form: str = "plain"

    def rows(self, source: str, place: Place) -> list[Row]:
        if self.before is not None:
            self.before(place)
        folders = {"here": HERE, "shared": SHARED, "published": PUBLISHED, "out": place.out}
        words = [word.format(**folders).replace("~", " ") for word in self.words.split()]
        try:
            answer = place.scaling(words)
        except Refused as error:
            if not self.refused:
                raise
            return [_row(source, self, Reading(words[0], "", "all", reason=str(error)))]
        assert not self.refused, f"{words} was refused and is no more"
        return [_row(source, self, reading) for reading in self.read(answer)]


@dataclass(frozen=True)
class Source:
    """Commands in this order, in a folder of their own. needs: a file without which they are skipped; slow: more than a
    few seconds; replicates: of their intervals, 0 where none is drawn."""

    name: str
    commands: tuple[Command, ...]
    needs: Path | None = None
    slow: bool = False
    replicates: int = 0
    level: float = LEVEL

    def rows(self, folder: Path, drawn: Path) -> list[Row]:
        """What the commands say. folder: where they run; drawn: of Place."""
        place = Place(folder, drawn)
        rows = [row for command in self.commands for row in command.rows(self.name, place)]
        assert len(by_name(rows)) == len(rows), f"{self.name}: two rows of one name"
        return rows


Row = dict[str, str]
KEYS = ("source", "approach", "objective", "points", "group", "quantity")  # no two rows have them alike
FIELDS = (*KEYS, "value", "low", "high", "reason")


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    return {" / ".join(row[key] for key in KEYS): row for row in rows}


def _row(source: str, command: Command, reading: Reading) -> Row:
    objective = command.objective if reading.approach in ("parametric", "comparison") else ""
    numbers = {key: _number(getattr(reading, key)) for key in ("value", "low", "high")}
    approach = f"{reading.approach}, {command.form}" if objective and command.form != "plain" else reading.approach
    row = {"source": source, "approach": approach, "objective": objective, "points": command.points}
    return row | {"group": reading.group, "quantity": reading.quantity} | numbers | {"reason": reading.reason}


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _fit(
    table: str,
    columns: str,
    approach: str,
    at: str,
    *more: str,
    objective: str = "",
    form: str = "plain",
    points: str = "ends",
    replicates: int = 200,
    seed: int = 0,
) -> Command:
    """`scaling fit table` with every default spelled out. columns: blanks written as ~."""
    words = f"fit table {table} --columns {columns} --approach {approach} --points {points} --convention 6nd"
    words += f" --drop-highest-loss 0 --replicates {replicates} --level {LEVEL} --seed {seed} --at {at}"
    words += f" --objective {objective} --form {form}" if objective else ""
    return Command(" ".join([words, *more]), adapter.results, objective, points, form=form)


_OF_STUDY = f"--replicates 200 --level {LEVEL} --seed 0 --convention exact"
_GOLDEN = "{here}/golden.yaml --out {out}"
_RUNS = "run=run,arch=arch,seed=seed,n_params=n_params,n_tokens=n_tokens,flops=flops,loss=loss"
_CURVES = "run=run,seed=seed,n_params=n_params,n_tokens=n_tokens,flops=flops,loss=loss"
_REPEATED = "run=run,n_params=n_params,n_tokens=n_tokens,unique_tokens=unique_tokens,flops=flops,loss=loss"
_CHINCHILLA = 'run=,n_params="Model~Size",flops="Training~FLOP",loss=loss'
_PLAIN = "run=,n_params=n_params,n_tokens=n_tokens,flops=flops,loss=loss"
_GEMSTONES = "run=run,n_params=n_params,n_tokens=n_tokens,flops=flops,loss=loss"
_GADRE = "run=name,n_params=params_no_embed,n_tokens=tokens,loss=loss_c4_val"
_TABLES = "{shared}/data/tables"


def _of_chinchilla(approach: str, objective: str = "", form: str = "plain") -> Source:
    table, chosen = SHARED / "data" / "chinchilla" / "svg_extracted_data.csv", {"objective": objective, "form": form}
    more = ["--predict", "7e10,1.4e12"] if objective else []
    command = _fit(
        "{shared}/data/chinchilla/svg_extracted_data.csv",
        *(_CHINCHILLA, approach, "1e21,1e23", "--loss-unit", "nats", *more),
        **chosen,
    )
    name = "-".join(filter(None, ("chinchilla", approach, objective, "" if form == "plain" else form)))
    return Source(name, (command,), table, replicates=200)


def _of_table(name: str, file: str, *commands: Command, slow: bool = True) -> Source:
    return Source(name, commands, SHARED / "data" / "tables" / file, slow=slow, replicates=200)


SOURCES = (
    Source(
        "runs.csv",
        (
            *(
                _fit(
                    "{here}/runs.csv",
                    *(_RUNS, "parametric", "1e20,1e21", "--group", "arch", "--loss-unit", "nats"),
                    *("--predict", "1e9,2e10"),
                    objective=objective,
                    seed=seed,
                )
                for objective, seed in (("huber", 0), ("least_squares", 7))  # 7: a seed that is not read shows
            ),
            _fit("{here}/runs.csv", _RUNS, "isoflop", "1e20,1e21", "--group", "arch", "--loss-unit", "nats"),
        ),
        replicates=200,
    ),
    Source(
        "curves.csv",
        (_fit("{here}/curves.csv", _CURVES, "envelope", "1e17,1e18", "--loss-unit", "nats", points="curves"),),
        replicates=200,
    ),
    Source(
        "repeated.csv",
        tuple(
            _fit(
                "{here}/repeated.csv",
                *(_REPEATED, "parametric", "1e19,1e20", "--loss-unit", "nats", "--predict", "2e8,1e10"),
                objective="huber",
                form=form,
                replicates=50,
            )
            for form in ("data-constrained", "over-training")
        ),
        replicates=50,
    ),
    Source(
        "golden study",
        (
            Command(
                "fit study {here}/golden.yaml --force --out {out}",
                adapter.stage,
                "least_squares",
                "curves",
                Place.draw_scores,
            ),
            Command(f"report {_GOLDEN}", adapter.report),
        ),
        replicates=STUDY_REPLICATES,
    ),
    Source(
        "golden study, training loss",
        (
            Command(
                "fit study {here}/golden.yaml --force --out {out} --set fit.loss=train_smoothed",
                *(adapter.stage, "least_squares", "curves", Place.draw_grid),
            ),
        ),
        slow=True,
        replicates=STUDY_REPLICATES,
    ),
    Source(
        "golden study, by approach",
        (
            Command(
                f"fit runs {_GOLDEN} --approach all --points curves --objective least_squares --form plain {_OF_STUDY}"
                f" --at 1e12,1e13 --predict 1e5,1e7",
                *(adapter.results, "least_squares", "curves", Place.draw_grid),
            ),
            Command(
                f"fit runs {_GOLDEN} --approach parametric --points curves --objective huber --form plain {_OF_STUDY}"
                " --at 1e12",
                *(adapter.results, "huber", "curves"),
            ),
            Command(
                f"fit runs {_GOLDEN} --approach parametric --points ends --objective huber --form plain {_OF_STUDY}"
                " --at 1e12",
                *(adapter.results, "huber", "ends", None, True),
            ),
        ),
        slow=True,
        replicates=200,
    ),
    Source(
        "golden forecast",
        (
            Command(f"fit study {_GOLDEN} --force", adapter.nothing, before=Place.draw_grid),
            Command(f"predict {_GOLDEN}", adapter.nothing),
            Command(f"predict {_GOLDEN}", adapter.nothing, before=Place.draw_forecast),
            Command(f"predict {_GOLDEN}", adapter.predictions, before=Place.draw_forecast),
        ),
        slow=True,
        replicates=STUDY_REPLICATES,
        level=0.9,
    ),
    Source(
        "golden rates", (Command("sweep {here}/rates.yaml --out {out}", adapter.rate_law, before=Place.draw_sweep),)
    ),
    Source(
        "golden try",
        (
            Command(
                "try {here}/variant.yaml --against {here}/golden.yaml --match data --at 1e12,1e13 --go-on --out {out}",
                *(adapter.trial, "", "", Place.draw_variant),
            ),
        ),
    ),
    Source(
        "golden variants",
        (
            Command(
                "fit study {here}/variants.yaml --force --out {out}",
                *(adapter.stage, "least_squares", "curves", lambda place: place.draw_grid("variants")),
            ),
        ),
        replicates=STUDY_REPLICATES,
    ),
    Source(
        "golden design",
        (
            Command(
                "design --arch llama --arch hgrn2 --corpus synthetic:0:200000000 --corpus-tokens 2e8 --budget 2e16"
                " --device h200 --ask exponent --target 2e15 --seed-noise 0.5% --context 256"
                " --least-size 100k --sweep --studies 8 --seed 0 --name designed",
                adapter.design,
            ),
        ),
        slow=True,
    ),
    Source(
        "published study",
        (
            Command("fit study {published} --force --out {out}", adapter.stage, "least_squares", "ends"),
            Command("predict {published} --out {out}", adapter.predictions),
            Command("report {published} --out {out}", adapter.report),
        ),
        slow=True,
        replicates=STUDY_REPLICATES,
    ),
    Source(
        "published study, by approach",
        (
            Command(
                "fit runs {published} --out {out} --approach isoflop --points ends --at 1e15,1e16 " + _OF_STUDY,
                *(adapter.results, "", "ends"),
            ),
            Command(
                "fit runs {published} --out {out} --approach isoflop --points curves --at 1e15,1e16 " + _OF_STUDY,
                *(adapter.results, "", "curves", None, True),
            ),
            Command(
                "fit runs {published} --out {out} --approach parametric --points ends --objective least_squares"
                " --form plain --at 1e15,1e16 --predict 1.4e7,6.2e8 " + _OF_STUDY,
                *(adapter.results, "least_squares", "ends"),
            ),
            Command(
                "fit runs {published} --out {out} --approach parametric --points ends --objective huber"
                " --form plain --at 1e15,1e16 " + _OF_STUDY,
                *(adapter.results, "huber", "ends"),
            ),
        ),
        slow=True,
        replicates=200,
    ),
    _of_chinchilla("parametric", "huber"),
    _of_chinchilla("parametric", "least_squares"),
    _of_chinchilla("parametric", "huber", "over-training"),
    _of_chinchilla("isoflop"),
    _of_table(
        "marin",
        "marin_dclm.csv",
        _fit(f"{_TABLES}/marin_dclm.csv", _PLAIN, "isoflop", "1e20,1e22", "--loss-unit", "nats"),
        _fit(f"{_TABLES}/marin_dclm.csv", _PLAIN, "parametric", "1e20,1e22", "--loss-unit", "nats", objective="huber"),
    ),
    _of_table(
        "gemstones",
        "gemstones_cooldown.csv",
        _fit(
            f"{_TABLES}/gemstones_cooldown.csv", _GEMSTONES, "envelope", "1e21", "--loss-unit", "nats", points="curves"
        ),
        _fit(
            f"{_TABLES}/gemstones_cooldown.csv",
            *(_GEMSTONES, "parametric", "1e21", "--loss-unit", "nats"),
            points="curves",
            objective="huber",
        ),
    ),
    _of_table(
        "gadre",
        "gadre104.csv",
        *(
            _fit(
                f"{_TABLES}/gadre104.csv",
                *(_GADRE, "parametric", "1e20,1e21", "--group", "train_set", "--loss-unit", "nats"),
                objective="huber",
                form=form,
            )
            for form in ("plain", "over-training")
        ),
    ),
    _of_table(
        "porian",
        "porian_owt2.csv",
        _fit(
            f"{_TABLES}/porian_owt2.csv",
            *(_PLAIN, "parametric", "1e19,1e20", "--group", "variant", "--loss-unit", "nats"),
            objective="huber",
        ),
    ),
)
