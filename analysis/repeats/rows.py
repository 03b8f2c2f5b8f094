"""Runs that were trained twice as rows and lines, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.repeats.compare import Pair, Repeat, largest, summary
from arch.amounts import count, counted
from data.units import loss_unit

BIT_EQUAL, UNKNOWN = "bit-equal", "not known"


def run_rows(repeats: Sequence[Repeat]) -> list[dict[str, str]]:
    """A row a run: its final held-out losses, their difference, and the largest along both curves."""
    return [_row(one) for one in repeats]


def unit_of_repeats(repeats: Sequence[Repeat]) -> str:
    """Of their losses (data.units)."""
    return loss_unit(one.run.corpus.tokenizer for one in repeats)


def curve_rows(repeat: Repeat) -> list[dict[str, str]]:
    """A row a checkpoint that both evaluated: losses in the repeat's unit."""
    return [{"tokens": count(pair.at, 4), **_losses(pair), "B - A": _difference(pair)} for pair in repeat.held_out]


def short(folder: str) -> str:
    """runs/RUN as RUN; a run of the sweep keeps its folder."""
    return folder.removeprefix("runs/")


def sum_lines(repeats: Sequence[Repeat], noise_of: str | None) -> list[str]:
    """How many runs are bit-equal, and how many final losses lie within the noise between seeds; noise_of: where that
    was measured."""
    if not repeats:
        return ["no run was trained twice"]
    told = summary(repeats)
    lines = [f"{told['bit_equal']} of {counted(told['runs'], 'run')} bit-equal"]
    noises = {one.run.arch: one.noise.s for one in repeats if one.noise and not one.is_bit_equal}
    of = ", ".join(f"{arch} {s:.2%}" for arch, s in noises.items())
    if told["judged"]:
        within = f"{told['within']} of {told['judged']} final losses within two seed standard deviations"
        lines.append(f"{within}{f' (of the final loss: {of}; seeds of {noise_of})' if of else ''}")
    if unknown := told["runs"] - told["judged"]:
        lines.append(
            f"of {counted(unknown, 'run')} the noise between seeds is not known: neither has two seeds of one size"
        )
    return lines


def _row(one: Repeat) -> dict[str, str]:
    row = {"run": short(one.name), "tokens": count(one.final.at, 4), **_losses(one.final)}
    if one.is_bit_equal:
        return row | {"B - A": BIT_EQUAL}
    sds, held_out, training = one.seed_sds, largest(one.held_out), largest(one.training)
    row |= {"B - A": _difference(one.final), "%": f"{one.percent:+.3f}"}
    row |= {"seed sds": UNKNOWN if sds is None else f"{sds:+.2f}"}
    row |= {"largest held-out": f"{_difference(held_out)} at {count(held_out.at, 4)}" if held_out else "-"}
    row |= {"largest in training": f"{_difference(training)} at step {training.at}" if training else "-"}
    return row | {"equal until step": str(one.equal_until)}


def _losses(pair: Pair) -> dict[str, str]:
    return {"A": f"{pair.a:.5f}", "B": f"{pair.b:.5f}"}


def _difference(pair: Pair) -> str:
    return f"{pair.difference:+.5f}"
