"""Scaling laws to plan with: the paper's table 3, and the fits of a study (results/fits.json). Imports no torch."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.bands import Band
from arch.errors import InputError
from arch.presets import PAPER
from data.files import read_json

from .conventions import train_flops_per_token
from .params import count_params
from .quantity import PF_DAY
from .shapes import arch_of
from .table7 import DATA, STEP_TOKENS, configuration

FITS_SCHEMA = 7  # of fits.json (analysis.fits.study_fits); 7: a group has one fit by an approach
FITS = ("results/fits.json", "fits.json")  # below a study's directory; in its results, or its published folder
PAPER_TOKENS = 300e9
MOST_DIGITS = 60  # of what a law gives; beyond it products no longer fit a float
MOST_EXPONENT = 100.0
MOST_OFF = 100.0  # of log loss; beyond it the points follow no line at all
PARTS, QUANTITIES = ("loss", "n_opt", "d_opt"), ("L_opt", "N_opt", "D_opt")
ENVELOPE, PARAMETRIC, ISOFLOP = ORDER = ("envelope", "parametric", "isoflop")  # of laws that are believed alike
NO_POWER_LAW = "this approach gives no power law of it"


@dataclass(frozen=True)
class PowerLaw:
    """value = floor + (at - floor) (C / centre)^exponent, C in FLOP. Raises InputError where the power is beyond 1e60
    or below 1e-60."""

    centre: float
    at: float
    exponent: float
    floor: float = 0.0

    def __call__(self, c: float) -> float:
        digits = math.log10(self.at - self.floor) + self.exponent * math.log10(c / self.centre)
        if abs(digits) > MOST_DIGITS:
            raise InputError(
                f"the law gives 1e{digits:+.0f} at C = {c:.3g} FLOP (exponent {self.exponent:g}), beyond "
                f"all models: give another C or law"
            )
        return self.floor + (self.at - self.floor) * (c / self.centre) ** self.exponent


@dataclass(frozen=True)
class ArchLaws:
    """The laws of one architecture; a part that was not identified is None, with its reason.

    range: FLOP that were fitted, for N_opt where it was identified, else for the loss; loss_range: for the loss, None
    where that was not identified; most_tokens: of the longest run behind the laws;
    cost_growth: p of a token's training cost ~ N^p in the law's own convention, 1 for 6N, None where it is not known;
    curved: the fit found that a pure power law does not describe L(C); off_line: how far its points lie off its
    line, root mean square as a share of the loss, None where it is not known. bands: over seed noise alone.
    approach: that of the fit, None of the paper's; doubts: why the fit is not believed at any compute.
    """

    loss: PowerLaw | None
    n_opt: PowerLaw | None
    d_opt: PowerLaw | None
    reasons: dict[str, str]
    range: tuple[float, float] | None
    most_tokens: float | None
    cost_growth: float | None
    curved: bool = False
    off_line: float | None = None
    loss_range: tuple[float, float] | None = None
    bands: dict[str, Band] = field(default_factory=dict)  # of the parts that have an interval
    approach: str | None = None
    doubts: str = ""

    @property
    def a_plus_b(self) -> float | None:
        return self.n_opt.exponent + self.d_opt.exponent if self.n_opt and self.d_opt else None

    @property
    def identity_error(self) -> float | None:
        """a p + b - 1, by which the exponents miss C = cost(N_opt) D_opt: 0 where they share C out at every C."""
        if not (self.n_opt and self.d_opt):
            return None
        return self.n_opt.exponent * (self.cost_growth or 1.0) + self.d_opt.exponent - 1


@dataclass(frozen=True)
class Laws:
    """`conventions`: what C, N and L mean; `batch_tokens`: of the runs' optimizer step, where it is known; `loss_unit`:
    nats/byte of models of bytes."""

    source: str
    conventions: dict[str, str]
    archs: dict[str, ArchLaws]
    batch_tokens: float | None = None
    level: float | None = None  # of the intervals
    loss_unit: str = "nats/token"


def paper_laws() -> Laws:
    """Table 3 of Shen et al. 2024 (data/table3.csv), C in PF-days, which the paper does not print.

    No other usual unit makes the 7B models' compute give anything near their size: LLaMA-7B's 179 PF-days give N_opt =
    1.13 x its 6.48e9 parameters. `range` is the compute by table 1 of the smallest and the largest model after 300B
    tokens, and cost_growth is over the six sizes.
    """
    steps = math.ceil(PAPER_TOKENS / STEP_TOKENS)
    archs = {}
    with open(DATA / "table3.csv", newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            arch = arch_of(row["arch"])
            laws: dict[str, Any] = {
                part: PowerLaw(PF_DAY, float(row[f"{part}_coef"]), float(row[f"{part}_exponent"])) for part in PARTS
            }
            models = [configuration(arch, size) for size in PAPER]
            cost = {float(count_params(cfg).non_embedding): train_flops_per_token(cfg, "paper") for cfg in models}
            tokens = steps * STEP_TOKENS
            span = (min(cost.values()) * tokens, max(cost.values()) * tokens)
            archs[arch] = ArchLaws(
                **laws,
                reasons={},
                range=span,
                loss_range=span,
                most_tokens=PAPER_TOKENS,
                cost_growth=_slope({math.log(n): math.log(flop) for n, flop in cost.items()}),
            )
    conventions = {"C": "paper", "N": "non-embedding parameters", "L": "training loss (nats/token)"}
    return Laws("Shen et al. 2024, table 3 (C read as PF-days)", conventions, archs, float(STEP_TOKENS))


def load_laws(name: str) -> Laws:
    """`paper`, or the laws of a fits.json: its path, or a directory of its study: that of the runs, of the results, or
    a published one. Of each architecture the law of N_opt that is believed most. Raises InputError, one line."""
    if name == "paper":
        return paper_laws()
    path = Path(name)
    try:
        if path.is_dir():
            path = next((path / name for name in FITS if (path / name).exists()), path / FITS[0])
        fits = read_json(path)
    except FileNotFoundError:
        raise InputError(
            f"--law {path}: does not exist; give a study's fits.json (scaling fit study STUDY), or paper"
        ) from None
    except OSError as error:
        raise InputError(f"--law {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--law {path}: is damaged, or no JSON ({error}): run `scaling fit study` again") from None
    schema = fits.get("schema") if isinstance(fits, dict) else None
    if schema != FITS_SCHEMA or isinstance(schema, bool):
        raise InputError(
            f"--law {path}: has schema {schema!r}, and this version reads {FITS_SCHEMA}: run `scaling fit study` again"
        )
    try:
        conventions = {key: str(fits["conventions"][key]) for key in ("C", "unit_C", "N", "L")}
        by_group: dict[str, list[dict[str, Any]]] = {}
        for fit in fits["fits"]:
            by_group.setdefault(str(fit["group"]), []).append(fit)
        archs = {arch: _arch(min(laws, key=_trust)) for arch, laws in by_group.items()}
        level = fits["intervals"]["level"]
        unit = str(fits["conventions"]["unit_L"])
        reasons = [f"{group['name']}: {group['reason']}" for group in fits["groups"] if group["reason"]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(
            f"--law {path}: is damaged ({type(error).__name__} {error}): run `scaling fit study` again"
        ) from None
    if conventions.pop("unit_C") != "FLOP":
        raise InputError(f"--law {path}: C is not in FLOP, as in schema {FITS_SCHEMA}: run `scaling fit study` again")
    if not archs:
        raise InputError(f"--law {path}: has no law ({'; '.join(reasons) or 'no architecture'})")
    return Laws(f"study {fits.get('study', path)}", conventions, archs, level=level, loss_unit=unit)


def _trust(fit: dict[str, Any]) -> tuple[bool, float, int]:
    """The smaller the more a fit is believed: those that know N_opt first, then by how far their verdict reaches, of
    those alike by ORDER, as reports choose (analysis.report.laws)."""
    unknown = any(law["quantity"] == "N_opt" and bool(_reason(law)) for law in fit["laws"])
    return unknown, -_reach(fit), ORDER.index(fit["approach"])


def _reach(fit: dict[str, Any]) -> float:
    """How many times the largest compute the fit is believed up to; 0: not at all, or it was not judged."""
    if not fit["verdict"]:
        return 0.0
    reach = fit["verdict"]["reach"]
    return math.inf if reach is None else float(reach)


def _reason(law: dict[str, Any]) -> str:
    """Why there is no power law of a quantity; "" where there is one."""
    known = law["centre"] is not None and law["exponent"]["value"] is not None
    return str(law["reason"] or ("" if known else law["exponent"]["reason"] or NO_POWER_LAW))


def _arch(fit: dict[str, Any]) -> ArchLaws:
    stored = {law["quantity"]: law for law in fit["laws"]}
    laws: dict[str, Any] = {}
    bands, reasons = {}, {}
    for part, quantity in zip(PARTS, QUANTITIES, strict=True):
        law = stored[quantity]
        laws[part] = None
        if band := law["band"]:
            bands[part] = Band(*(tuple(band[key]) for key in ("c", "low", "high")))
        if reason := _reason(law):
            reasons[part] = reason
            continue
        numbers = [float(value) for value in (*law["centre"], law["exponent"]["value"])]
        if not all(map(math.isfinite, numbers)) or min(numbers[:2]) <= 0 or abs(numbers[2]) > MOST_EXPONENT:
            raise ValueError(f"in {part}: {numbers}")
        floor = float(law["floor"]["value"] or 0.0)
        if not 0 <= floor < numbers[1]:
            raise ValueError(f"in {part}: floor {floor}")
        laws[part] = PowerLaw(numbers[0], numbers[1], numbers[2], floor)
    loss_span = _span(stored["L_opt"]["range"]) if laws["loss"] else None
    span = _span(stored["N_opt"]["range"]) if laws["n_opt"] else loss_span or _span(fit["range"])
    about = stored["L_opt"]["about_loss"] or {"off_line": None, "curvature": None}
    of_envelope = fit["envelope"] if fit["approach"] == ENVELOPE else None
    off, growth = about["off_line"], of_envelope["cost_growth"] if of_envelope else _cost_growth(fit)
    if off is not None and not (isinstance(off, float) and 0 <= off < MOST_OFF):
        raise ValueError(f"in off_line: {off!r}")
    if growth is not None and not (isinstance(growth, float) and math.isfinite(growth)):
        raise ValueError(f"in cost_growth: {growth!r}")
    return ArchLaws(
        **laws,
        reasons=reasons,
        range=span,
        loss_range=loss_span,
        most_tokens=max(map(float, of_envelope["points"]["n_tokens"]), default=None) if of_envelope else None,
        cost_growth=growth,
        curved=bool(about["curvature"] and about["curvature"]["shape"]),
        off_line=None if off is None else math.expm1(off),
        bands=bands,
        approach=str(fit["approach"]),
        doubts="; ".join(map(str, fit["verdict"]["reasons"])) if fit["verdict"] and not _reach(fit) else "",
    )


def _cost_growth(fit: dict[str, Any]) -> float | None:
    """p of a token's training cost ~ N^p over the minima of the budgets, or the optima of a surface; None where these
    are of one size."""
    if fit["approach"] == ISOFLOP:
        minima = [minimum for minimum in fit["isoflop"]["minima"] if minimum["reason"] is None]
        points = [(minimum["c"], minimum["n_params"], minimum["n_tokens"]) for minimum in minima]
    else:
        points = [(at["flops"], at["n_params"]["value"], at["n_tokens"]["value"]) for at in fit["curve"]]
    cost = {math.log(n): math.log(c / d) for c, n, d in points if n and d}
    return _slope(cost) if len(cost) > 1 else None


def _span(stored: Any) -> tuple[float, float]:
    low, high = map(float, stored)
    if not 0 < low <= high < math.inf:
        raise ValueError(f"in range: {[low, high]}")
    return low, high


def _slope(points: dict[float, float]) -> float:
    """Of the least-squares line through y of x."""
    x, y = sum(points) / len(points), sum(points.values()) / len(points)
    return sum((at - x) * (value - y) for at, value in points.items()) / sum((at - x) ** 2 for at in points)
