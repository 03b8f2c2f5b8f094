"""`scaling design`: proposals for a question, simulated, with real costs, and the study file of the best."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from flops import train_flops_per_token
from flops.hardware import Device
from flops.pace import START_S

from ..study.cost import pace_of
from ..study.schema import VOCABULARY
from ..study.spec import load_study

if TYPE_CHECKING:
    from analysis.design.choose import Judged
    from analysis.design.priors import Prior
    from analysis.design.proposal import Proposal
    from analysis.design.study_file import Setting

    from ..study.run import RunSpec

NEXT_S = 2.0  # from a run's end to the first step of the next in the same process: 0.1 to 3.4 s seen (docs/speed.md)
CORRECTED, NEAR = 4, 0.01  # times that a proposal is resized, so that its real runs cost the budget within NEAR
MOST_SHOWN = 3  # proposals
TARGET = 0.1  # of the compute of one architecture: where N_opt and the loss are asked for, if nowhere else


@dataclass(frozen=True)
class Question:
    """budget: of all architectures together, FLOP (`exact`), or seconds of `device` where `timed`; cap: tokens that no
    run goes beyond; target: C in FLOP, 0 for the default; least_size: parameters that no size goes below; units: GPUs
    or cores that work at once."""

    ask: str
    budget: float
    timed: bool
    device: Device
    cap: float
    target: float
    seed_noise: float
    setting: Setting
    least_size: float = 0.0
    units: int = 1
    studies: int = 40
    seed: int = 0
    priors: Mapping[str, Prior] = field(default_factory=dict)


def design(question: Question, told: Callable[[str, float], None]) -> dict[str, Any]:
    """{"proposals": [row, best first], "naive": row or None, ..}; a row: words, runs, flops, seconds, and of simulated
    studies their summary (analysis.design.choose.summary). told: what is being done, and its share.

    Raises InputError where the budget buys no study of this kind, with what it does buy."""
    import numpy as np

    from analysis.design.choose import Judged, naive_of, saving, screen, simulated
    from analysis.design.prices import Prices
    from analysis.design.priors import literature
    from analysis.design.worlds import Noise

    archs = question.setting.archs
    vocabulary = VOCABULARY["bytes"]
    prices = Prices(archs, {"vocab_size": vocabulary, "context_length": question.setting.context})
    cost, noise = prices.flops(), Noise(question.seed_noise)
    price = prices.in_seconds(question.device) if question.timed else prices.in_flops()
    budget = question.budget * (question.units if question.timed else 1)
    rng = np.random.default_rng(question.seed)
    priors = [question.priors.get(arch) or literature(arch, vocabulary) for arch in archs]
    worlds = [priors[i % len(priors)].draw(rng) for i in range(question.studies)]
    target = question.target or TARGET * _flops_of(question, prices, budget)
    found = screen(
        *(price, budget, question.cap, worlds, noise, cost, target, question.ask, question.least_size),
        told=lambda share: told("proposals", share),
    )
    if not found:
        raise InputError(_too_small(question))
    ladder = naive_of(price, budget, question.cap)
    real: list[tuple[Judged, dict[str, Any], bool]] = []
    skipped: list[str] = []
    for one in [*found, *([] if ladder is None else [Judged(ladder, 0.0)])]:
        if len(real) == MOST_SHOWN and one.proposal != ladder:
            continue
        try:
            proposal, costs = fitted_to(one.proposal, question)
        except InputError as error:  # no shape comes close to one of its sizes
            skipped.append(f"{one.proposal.words}: {str(error).partition(': ')[2]}")
            continue
        real.append((replace(one, proposal=proposal), costs, one.proposal == ladder))
    if all(is_naive for *_, is_naive in real):
        raise InputError(f"scaling design: {skipped[0]}")
    total, done = len(real) * len(worlds), 0

    def step() -> None:
        nonlocal done
        done += 1
        told("simulated studies", done / total)

    own, other = [], None
    for one, costs, is_naive in real:
        row = _row(simulated(one, worlds, noise, cost, target, question.seed, step), costs)
        if is_naive:
            other = row
        else:
            own.append(row)
    own.sort(key=lambda row: -_merit(row, question.ask))
    for row in own:
        row["saving"] = None if other is None else saving(row["summary"], other["summary"], question.ask)
    better = other is None or _merit(own[0], question.ask) > _merit(other, question.ask)
    return {
        "ask": question.ask,
        "archs": list(archs),
        "budget": question.budget,
        "budget_unit": f"seconds of {question.device.name}" if question.timed else "FLOP exact",
        "device": question.device.name,
        "target_flops": target,
        "seed_noise": question.seed_noise,
        "seed": question.seed,
        "worlds": len(worlds),
        "prior": sorted({prior.source for prior in priors}),
        "proposals": own,
        "naive": other,
        "better_than_naive": better,
        "skipped": skipped,
    }


def _flops_of(question: Question, prices: Any, budget: float) -> float:
    """The FLOP of one architecture that the budget buys; of time, those of a usual ladder of it."""
    if not question.timed:
        return budget / len(prices.archs)
    from analysis.design.proposal import laid, scaled

    price, flops = prices.in_seconds(question.device), prices.in_flops()
    found = scaled(lambda n: laid(n, 6, 16.0, 14.0, 8.0, 1.0, (1, 1), question.cap), price, budget)
    if found is None:
        raise InputError(_too_small(question))
    return found.cost(flops) / len(prices.archs)


def _merit(row: Mapping[str, Any], ask: str) -> float:
    found = row["summary"]
    return float(found["right"] + found["identified"] if ask == "exponent" else 2 * found["right_l"])


def fitted_to(proposal: Proposal, question: Question) -> tuple[Proposal, dict[str, Any]]:
    """The proposal, resized so that its real runs cost the budget, and what they cost."""
    from analysis.design.study_file import resized

    best: tuple[float, Proposal, dict[str, Any]] | None = None
    for _ in range(CORRECTED):
        real = cost_of_file(proposal, question)
        off = (real["seconds"] if question.timed else real["flops"]) / question.budget
        if best is None or abs(math.log(off)) < abs(math.log(best[0])):
            best = off, proposal, real
        if abs(off - 1) < NEAR:
            break
        proposal = resized(proposal, 1 / off, question.cap)
    assert best is not None
    return best[1], best[2]


def cost_of_file(proposal: Proposal, question: Question) -> dict[str, Any]:
    """Runs, FLOP (`exact`) and seconds on the device of the study that the proposal is written as; its text."""
    from analysis.design.study_file import text_of

    text = text_of(proposal, question.setting)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{question.setting.name}.yaml"
        path.write_text(text)
        runs = load_study(path).runs()
    return {"text": text} | cost_of_runs(runs, question.device, question.units)


def cost_of_runs(runs: Sequence[RunSpec], device: Device, units: int) -> dict[str, Any]:
    """{"runs", "flops", "seconds"}: on `units` GPUs or cores, each with one run at a time."""
    flops = math.fsum(float(train_flops_per_token(run.config, "exact")) * run.trained_tokens for run in runs)
    start = NEXT_S if device.unit == "GPU" else START_S[device.unit]
    seconds = math.fsum(start + run.trained_steps * pace_of(run, device).step_seconds for run in runs)
    return {"runs": len(runs), "flops": flops, "seconds": START_S[device.unit] + seconds / units}


def _row(judged: Judged, real: Mapping[str, Any]) -> dict[str, Any]:
    proposal = judged.proposal
    return {
        "words": proposal.words,
        "sizes": list(proposal.sizes),
        "tokens": [list(row) for row in proposal.tokens],
        "seeds": list(proposal.seeds),
        "curves": proposal.curves,
        "capped": proposal.capped,
        "points_an_architecture": proposal.n_runs,
        **real,
        "summary": judged.summary,
    }


def _too_small(question: Question) -> str:
    unit = "s" if question.timed else "FLOP"
    each = question.budget / len(question.setting.archs)
    return (
        f"scaling design: {question.budget:.3g} {unit} is too small for five sizes with two lengths each within "
        f"{question.cap:.3g} tokens of text, the smallest of {question.least_size:.3g} parameters or more ({each:.3g} "
        f"{unit} an architecture): give more, fewer architectures, or a lower --least-size"
    )
