"""The answer of `scaling design`: proposals, simulated, with real costs, and the study file of the best."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.design.worlds import BEND
from arch.amounts import count, flop
from arch.errors import InputError
from data.vocabulary import vocabulary as vocabulary_of
from flops import train_flops_per_token
from flops.hardware import Device
from flops.pace import START_S, start_of

from ..study.cost import pace_of
from ..study.spec import load_study
from ..study.sweep import sweep_of

if TYPE_CHECKING:
    from analysis.design.choose import Judged
    from analysis.design.proposal import Price, Proposal
    from analysis.design.study_file import Setting
    from analysis.design.worlds import Prior

    from ..study.rate_law import ArchLaw
    from ..study.run import RunSpec

CORRECTED, NEAR = 6, 0.01  # times that a proposal is resized, so that its real runs cost the budget, or less by NEAR
LOWERED = 7  # least sizes that are tried, each 1.5 times below the one before
NUDGED = 6  # smallest sizes of the naive ladder that are tried, where no shape comes close to one
MARGIN = 1.02  # on a limit of the budget, so that the budget in a message is enough
MOST_SHOWN = 3  # proposals
TOO_FAR = 1e3  # times the compute of one architecture: no target lies beyond
TARGET = 0.1  # of the compute of one architecture: where N_opt and the loss are predicted without --target


@dataclass(frozen=True)
class Question:
    """budget: of all architectures together, FLOP (`exact`), or seconds of `device` where `timed`; cap: tokens that no
    run goes beyond; target: C in FLOP, 0 for the default; least_size: parameters that no size goes below; units: GPUs
    or cores that work at once; lower: the least size is a default, and falls until the budget buys a study; sweep:
    rates are swept first, within the budget; laws: of rates, one an architecture, where the study follows the file
    law_path, which setting.law names as the study file shall; share: of the main runs' cost, what a sweep may cost;
    text_noise and bend: as analysis.design.worlds.Noise has them."""

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
    lower: bool = False
    studies: int = 40
    seed: int = 0
    priors: Mapping[str, Prior] = field(default_factory=dict)
    sweep: bool = True
    laws: tuple[ArchLaw, ...] = ()
    law_path: str = ""
    share: float = 0.0
    text_noise: float = 0.0
    bend: float = BEND


def design(question: Question, report: Callable[[str, float], None]) -> dict[str, Any]:
    """{"proposals": [row, best first], "naive": row or None, ..}; a row: words, runs, flops, seconds, and of simulated
    studies their summary (analysis.design.choose.summary). report: gets a step and its share.

    Raises InputError where the budget buys no study of this kind, with what it does buy."""
    import numpy as np

    from analysis.design.choose import SETTLED, Judged, answers, screen, simulate, summary
    from analysis.design.prices import Prices
    from analysis.design.proposal import candidates, most_cost, naive_of
    from analysis.design.worlds import Noise, Scenario, World, literature

    archs = question.setting.archs
    vocabulary = vocabulary_of(question.setting.tokenizer)
    prices = Prices(archs, {"vocab_size": vocabulary, "context_length": question.setting.context})
    cost = prices.flops()
    noise = Noise(question.seed_noise, question.bend, question.text_noise, question.laws)
    price = prices.in_seconds(question.device) if question.timed else prices.in_flops()
    price = replace(price, batch=question.setting.batch or 0)
    budget = question.budget * (question.units if question.timed else 1)
    question = _that_is_bought(question, price, budget)
    ladder = naive_of(price, budget, question.cap, question.least_size)
    middle = math.inf if ladder is None else math.sqrt(ladder.sizes[0] * ladder.sizes[-1])
    priors = [question.priors.get(arch) or literature(vocabulary, middle) for arch in archs]

    def drawn(of: str, number: int) -> list[World]:
        rng = np.random.default_rng([question.seed, *of.encode()])
        return [priors[i % len(priors)].draw(rng) for i in range(number)]

    worlds = drawn("reported", question.studies)  # none of those that proposals are chosen by: that would flatter them
    flops = _flops_of(question, prices, budget)
    if question.target > TOO_FAR * flops:
        raise InputError(
            f"scaling design: a target of {flop(question.target)} FLOP is {flop(question.target / flops, 1)} times "
            f"what an architecture's runs cost: they say nothing about it: give at most {flop(TOO_FAR * flops, 1)}"
        )
    target = question.target or TARGET * flops
    screening = Scenario(drawn("screened", SETTLED), noise, cost, target)
    family = list(candidates(price, budget, question.cap, question.share, question.least_size))
    if not family:
        unit = "s" if question.timed else "FLOP"
        most = most_cost(price, question.cap, question.least_size, question.share)
        used = f" ({_two_digits(most * question.budget / budget, math.floor)} {unit} can be used)"
        raise InputError(
            f"scaling design: no study of the family costs {flop(question.budget)} {unit}: "
            f"give less{used if most < budget else ''}, or more text"
        )
    best = screen(family, screening, question.ask, lambda share: report("proposals", share))
    real, skipped = _real(best, question)
    if question.timed and not question.target:
        target = TARGET * real[0][1]["flops"] / len(archs)
    naive = _naive(question, price, budget)
    total, done = (len(real) + (naive is not None)) * len(worlds), 0

    def step() -> None:
        nonlocal done
        done += 1
        report("simulated studies", done / total)

    reporting = Scenario(worlds, noise, cost, target)

    def row(judged: Judged, costs: dict[str, Any]) -> dict[str, Any]:
        return _row(judged, summary(simulate(judged.proposal, reporting, question.seed, step)), costs)

    rows = sorted((row(*each) for each in real), key=lambda row: _merit(row, question.ask), reverse=True)
    other = None
    if naive is not None:
        ladder, proposal, costs = naive
        other = row(Judged(proposal, answers(ladder, screening, question.ask)), costs)
    better = other is None or _merit(rows[0], question.ask) > _merit(other, question.ask)
    return {
        "ask": question.ask,
        "archs": list(archs),
        "budget": question.budget,
        "budget_unit": f"seconds of {question.device.name}" if question.timed else "FLOP exact",
        "device": question.device.name,
        "target_flops": target,
        "least_size": question.least_size,
        "seed_noise": question.seed_noise,
        "text_noise": question.text_noise,
        "bend": question.bend,
        "seed": question.seed,
        "worlds": len(worlds),
        "prior": sorted({prior.source for prior in priors}),
        "proposals": rows,
        "naive": other,
        "better_than_naive": better,
        "rates": "law" if question.laws else "sweep" if question.sweep else "guessed",
        "skipped": skipped,
    }


def _flops_of(question: Question, prices: Any, budget: float) -> float:
    """The FLOP of one architecture that the budget buys; of time, those of a usual ladder of it."""
    if not question.timed:
        return budget / len(prices.configs)
    from analysis.design.proposal import laid, scaled

    price, flops = prices.in_seconds(question.device), prices.in_flops()
    ladder = scaled(lambda n: laid(n, 6, 16.0, 14.0, 1.0, (1, 1), question.cap), price, budget)
    if ladder is None:  # it only serves to choose proposals: theirs is the target that is reported
        return 1e15
    return ladder.cost(flops) / len(prices.configs)


def _merit(row: Mapping[str, Any], ask: str) -> tuple[float, float]:
    """How often it is right, in the simulated studies and without them, each as many worlds weigh; then how narrow its
    interval is."""
    from analysis.design.choose import SETTLED

    summary, right, half = row["summary"], *(("right", "half_a") if ask == "exponent" else ("right_l", "half_l"))
    studies = summary["studies"]
    return float(studies * summary[right] + SETTLED * row["score"]) / (studies + SETTLED), -float(summary[half][1])


def fitted_to(proposal: Proposal, question: Question) -> tuple[Proposal, dict[str, Any]]:
    """The proposal, resized so that its real runs cost the budget and no more, and what they cost. Raises InputError
    where no size does."""
    best: tuple[float, Proposal, dict[str, Any]] | None = None
    for _ in range(CORRECTED):
        real = cost_of_file(proposal, question)
        off = (real["seconds"] if question.timed else real["flops"]) / question.budget
        if off <= 1 and (best is None or off > best[0]):
            best = off, proposal, real
        if 1 - NEAR <= off <= 1:
            break
        proposal = proposal.resized((1 - NEAR / 2) / off, question.cap)
    if best is None:
        raise InputError("its runs cost more than the budget at every size that was tried")
    return best[1], best[2]


def cost_of_file(proposal: Proposal, question: Question) -> dict[str, Any]:
    """Runs, FLOP (`exact`) and seconds on the device of the study that the proposal is written as; its text."""
    from analysis.design.study_file import text_of

    setting = question.setting
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{setting.name}.yaml"
        path.write_text(text_of(proposal, replace(setting, law=question.law_path)), encoding="utf-8")
        try:
            study = load_study(path)
            runs = study.runs()
            swept = sweep_of(study).runs() if proposal.sweep else []
        except InputError as error:
            raise InputError(str(error).removeprefix(f"{path}: ")) from None
    costs = cost_of_runs([*swept, *runs], question.device, question.units)
    of_sweep = cost_of_runs(swept, question.device, question.units) if swept else None
    return {"text": text_of(proposal, setting), "sweep": of_sweep} | costs


def cost_of_runs(runs: Sequence[RunSpec], device: Device, units: int) -> dict[str, Any]:
    """{"runs", "flops", "seconds"}: on `units` GPUs or cores, each with one run at a time."""
    flops = math.fsum(float(train_flops_per_token(run.config, "exact")) * run.trained_tokens for run in runs)
    start = start_of(device)
    seconds = math.fsum(start + run.trained_steps * pace_of(run, device).step_seconds for run in runs)
    return {"runs": len(runs), "flops": flops, "seconds": START_S[device.unit] + seconds / units}


def _row(judged: Judged, studies: dict[str, Any], real: Mapping[str, Any]) -> dict[str, Any]:
    proposal = judged.proposal
    return {
        "words": proposal.words,
        "sizes": list(proposal.sizes),
        "tokens": list(proposal.tokens),
        "seeds": list(proposal.seeds),
        "tilt": proposal.tilt,
        "swept_sizes": list(proposal.sweep),
        "same_text": proposal.same_text,
        **real,
        "score": judged.score,
        "summary": studies,
    }


def _real(best: Sequence[Judged], question: Question) -> tuple[list[tuple[Judged, dict[str, Any]]], list[str]]:
    """The first MOST_SHOWN that make a study file, with what their real runs cost; and the others before them, with why
    they make none. Raises InputError where none does."""
    real, skipped = list[tuple["Judged", dict[str, Any]]](), list[str]()
    for candidate in best:
        if len(real) == MOST_SHOWN:
            break
        try:
            proposal, costs = fitted_to(candidate.proposal, question)
        except InputError as error:  # no shape comes close to one of its sizes
            skipped.append(f"{candidate.proposal.words}: {error}")
            continue
        real.append((replace(candidate, proposal=proposal), costs))
    if not real:
        raise InputError(
            f"scaling design: none of the {len(skipped)} best proposals makes a study file, as in: {skipped[0]}; give "
            f"another budget, or --least-size"
        )
    return real, skipped


def _naive(question: Question, price: Price, budget: float) -> tuple[Proposal, Proposal, dict[str, Any]] | None:
    """The naive ladder, of sizes that there are: as it is laid, so that its real runs cost the budget, and what they
    cost; None where there is none."""
    from analysis.design.proposal import naive_of

    for i in range(NUDGED):
        ladder = naive_of(price, budget, question.cap, question.least_size * 1.05**i)
        if ladder is None:
            return None
        with suppress(InputError):
            return ladder, *fitted_to(ladder, question)
    return None


def _that_is_bought(question: Question, price: Price, budget: float) -> Question:
    """The question, its least size lowered where it may be. Raises InputError where the budget buys no study of it,
    before anything is simulated."""
    from analysis.design.proposal import LARGE_SWEEP, MOST_SWEEP, least_cost

    for _ in range(LOWERED if question.lower else 1):
        shares = (MOST_SWEEP, LARGE_SWEEP) if question.sweep else (0.0,)
        least, share = min(
            ((least_cost(price, question.cap, question.least_size, share), share) for share in shares),
            key=lambda pair: (pair[0] > budget, pair[1] if pair[0] <= budget else pair[0]),
        )
        if budget >= least:
            break
        if question.lower:
            question = replace(question, least_size=question.least_size / 1.5)
    unit = "s" if question.timed else "FLOP"
    text = f" within {count(question.cap)} tokens of text" if math.isfinite(question.cap) else ""
    swept = ", and a sweep of learning rates" if question.sweep else ""
    what = f"five sizes{text}{swept}, the smallest of {count(question.least_size)} parameters or more"
    if math.isinf(least):
        raise InputError(f"scaling design: no budget buys {what}: give more text, or a lower --least-size")
    if budget < least:
        enough = _two_digits(least * question.budget / budget, math.ceil)
        raise InputError(
            f"scaling design: {flop(question.budget)} {unit} is too small for {what}: {enough} {unit} would do: "
            f"give more, fewer architectures, a lower --least-size{' or --no-sweep' if question.sweep else ''}"
        )
    return replace(question, share=share)


def _two_digits(value: float, rounded: Callable[[float], int]) -> str:
    """A limit of the budget in two digits, safe by MARGIN or more. rounded: math.ceil or math.floor."""
    value *= MARGIN if rounded is math.ceil else 1 / MARGIN
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return flop(rounded(value / step) * step, 2)
