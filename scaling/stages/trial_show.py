"""A trial as one screen of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch.amounts import count, counted, flop
from arch.tables import rows_table, wrapped


def show_trial(result: Mapping[str, Any], unit: str) -> str:
    """unit: of losses (data.units)."""
    variant, level = result["variant"], result["level"]
    what = ", ".join(f"{field}={value}" for field, value in variant["changes"].items()) or f"arch {variant['arch']}"
    title = f"try {variant['name']}: {variant['of']} with {what}, matched in {result['match']}; study {result['study']}"
    word = f"{result['verdict']['word']}: {result['verdict']['reason']}"
    parts = ["\n".join(wrapped([title, word]))]
    if rows := _differences(result):
        title_line = f"held-out loss at the last checkpoint, {unit}; {level:.0%} intervals of the difference\n"
        noise = result["seed_noise"]
        basis = f"noise between seeds: {noise['basis']}" if noise else "noise between seeds: not known, not counted"
        parts.append(title_line + rows_table(rows) + "\n" + "\n".join(wrapped([basis])))
    if rows := _projections(result):
        parts.append(f"projected; {level:.0%} intervals\n{rows_table(rows)}")
    if result["gains_reason"]:
        parts.append("\n".join(wrapped([f"no gain in compute: {result['gains_reason']}"])))
    parts.append("\n".join(wrapped([*_costs(result), *(f"warning: {line}" for line in result["warnings"])])))
    return "\n\n".join(parts)


def _differences(result: Mapping[str, Any]) -> list[dict[str, object]]:
    rows = []
    for difference in result["differences"]:
        pair = next(row for row in result["pairs"] if row["size"] == difference["size"])
        ends = f"[{difference['low']:+.4f}, {difference['high']:+.4f}]" if difference["low"] is not None else "-"
        base, other = pair["baseline"], pair["variant"]
        rows.append(
            {
                "size": difference["size"],
                "seeds": len(difference["seeds"]),
                "N": f"{count(base['n_params_non_embedding'])} / {count(other['n_params_non_embedding'])}",
                "FLOP/token": f"{flop(base['flops_per_token_exact'])} / {flop(other['flops_per_token_exact'])}",
                "baseline": f"{difference['baseline']:.4f}",
                "variant": f"{difference['variant']:.4f}",
                "difference": f"{difference['value']:+.4f}",
                "interval": ends,
                "": difference["verdict"],
            }
        )
    return rows


def _projections(result: Mapping[str, Any]) -> list[dict[str, object]]:
    rows = []
    for i, c in enumerate(result["at"]):
        row: dict[str, object] = {"C exact": flop(c)}
        if gains := result["gains"]:
            gain = gains[i]
            row |= {
                "baseline needs": f"{gain['gain']:.2f} times the compute [{_end(gain['low'])}, {_end(gain['high'])}]"
            }
        if ratios := result["ratios"]:
            ratio = ratios[i]
            row |= {"loss ratio by a line": f"{ratio['ratio']:.4f} [{ratio['low']:.4f}, {ratio['high']:.4f}]"}
        if len(row) > 1:
            rows.append(row)
    return rows


def _end(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.2f}"


def _costs(result: Mapping[str, Any]) -> list[str]:
    cost, left = result["cost"], result["not_trained"]
    minutes = [f"{cost[key] / 60:.1f} min" for key in ("train_seconds", "eval_seconds")]
    lines = [
        f"cost: {flop(cost['flops_exact'])} FLOP exact, {minutes[0]} of training and {minutes[1]} of evaluation, "
        f"summed over processes"
    ]
    if left["sizes"]:
        lines.append(f"not trained: {' and '.join(left['sizes'])}, {flop(left['flops_exact'])} FLOP exact (--go-on)")
    return lines


def show_plan(trial_plan: Mapping[str, Any]) -> str:
    """What --dry-run prints."""
    lines = []
    for number, stage in enumerate(trial_plan["stages"], 1):
        when = "" if number == 1 else " (only if the variant is better at both sizes before)"
        lines.append(
            f"stage {number}{when}: {' and '.join(stage['sizes'])}, {flop(stage['flops_exact'])} FLOP exact; "
            f"would train {counted(len(stage['todo']), 'run')}: {', '.join(stage['todo']) or 'none'}"
        )
        lines += stage["expected"]
        if stage["missing"]:
            lines.append(f"the study's own runs that are missing: {', '.join(stage['missing'])}")
    lines.append(f"projected at {' and '.join(flop(c) for c in trial_plan['at'])} FLOP exact")
    lines += [f"warning: {line}" for line in trial_plan["warnings"]]
    return "\n".join(wrapped([*lines, "(dry run: nothing was written)"]))
