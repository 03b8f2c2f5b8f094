"""What each command of `flops` shows: a table, and the same as plain data for JSON. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arch.amounts import counted
from arch.config import ModelConfig
from arch.registry import plugins

from . import table7
from .conventions import by_module, conventions_of, hardware_by_module, train_flops_per_token
from .memory import checkpoint_bytes, state_bytes, training_memory
from .params import count_params
from .registry import entries_of, has_mlp
from .sizing import SizedModel
from .state import decode_state
from .tables import Column, Table, percent, short, si

View = tuple[Table, Any]
HARDWARE = ("executed", "exact")  # the conventions that cover recomputation


def one_decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def printed_table(norms: str, conventions: Sequence[str]) -> View:
    """`flops table`. The CSV is the paper's, to its one decimal."""
    rows = table7.rows(norms)
    columns = [Column(key) for key in table7.COLUMNS[2:9]]
    columns = [Column("arch", text=True), Column("size", text=True), *columns]
    columns.append(Column("params_million", "params\nmillion", csv=one_decimal))
    columns.append(Column("pflops_per_step", "PFLOP/step\npaper", csv=one_decimal))
    for name in conventions:
        columns.append(Column(f"pflops_per_step_{name}", f"PFLOP/step\n{name}"))
    which = f"The paper's 24 models (table 7){' and those of plugins' if plugins() else ''}"
    note = (
        "params: without embeddings; LLaMA and cos2 with the norms that reproduce the printed counts (norm=layer)"
        if norms == "paper"
        else "params: without embeddings, of this package's presets"
    )
    title = f"{which}: a training step of {table7.BATCH} x {table7.CONTEXT} tokens"
    notes = [note, "`flops table --as-printed` shows where the printed table differs, and why"]
    return Table(title, columns, rows, notes), rows


def compared_table(norms: str) -> View:
    """`flops table --as-printed`: h, g, parameters and PFLOP, printed and ours."""
    rows = table7.compared(norms)
    columns = [Column("arch", text=True), Column("size", text=True)]
    for key, head in (("h", "h"), ("g", "g"), ("params_million", "params"), ("pflops_per_step", "PFLOP")):
        columns += [Column(f"{key}_printed", f"{head}\nprinted"), Column(key, f"{head}\nours")]
    columns += [Column("notes", "notes", str), Column("note", csv_only=True)]
    texts = [f"{letter}  {text}" for letter, text in table7.NOTES.items() if norms == "paper" or letter not in "efg"]
    agree = {key: sum(row[f"{key}_agrees"] for row in rows) for key in ("params_million", "pflops_per_step")}
    texts.insert(
        0,
        f"Our counts round to the printed ones in {agree['pflops_per_step']} of 24 PFLOP cells (convention paper) and "
        f"in {agree['params_million']} of 24 parameter cells (millions, without embeddings).",
    )
    return Table("Table 7 as printed, and as counted", columns, rows, texts), rows


@dataclass(frozen=True)
class Counted:
    """The request of `flops count`: a named configuration, the conventions that were named (empty: all that cover it),
    tokens of a step, and whether activations are recomputed."""

    name: str
    cfg: ModelConfig
    size: str | None = None
    conventions: tuple[str, ...] = ()
    batch_tokens: int | None = None
    recompute: str = "none"

    @property
    def names(self) -> tuple[str, ...]:
        return self.conventions or conventions_of(self.cfg)

    def title(self) -> str:
        params = count_params(self.cfg)
        return (
            f"{self.name}: parameters {params.total:,} = {params.non_embedding:,} non-embedding + "
            f"{params.embedding:,} embedding"
        )

    def hardware(self, name: str) -> dict[str, float] | None:
        """What the hardware computes, by module; None without recomputation or where a convention does not cover it."""
        if self.recompute == "none" or name not in HARDWARE:
            return None
        return hardware_by_module(self.cfg, self.recompute, convention=name)

    def data(self) -> dict[str, Any]:
        """The JSON of both views."""
        cfg, params = self.cfg, count_params(self.cfg)
        per_token = {name: train_flops_per_token(cfg, name) for name in self.names}
        hardware = {name: sum(lines.values()) for name in self.names if (lines := self.hardware(name))}
        data: dict[str, Any] = {
            "arch": cfg.arch,
            "size": self.size,
            "model": cfg.to_dict(),
            "n_params": params.total,
            "n_params_non_embedding": params.non_embedding,
            "n_params_embedding": params.embedding,
            "n_params_by_module": params.by_module,
            "flops_per_token_train": per_token,
        }
        if hardware:
            data["hardware_flops_per_token_train"] = hardware
        if self.batch_tokens is not None:
            data["batch_tokens"] = self.batch_tokens
            data["flops_per_step_train"] = {name: flop * self.batch_tokens for name, flop in per_token.items()}
        return data


def totals(request: Counted) -> View:
    """`flops count`: a row a convention."""
    cfg, data, params = request.cfg, request.data(), count_params(request.cfg)
    rows = []
    for name in request.names:
        flop = data["flops_per_token_train"][name]
        row = {
            "arch": cfg.arch,
            "size": request.size,
            "n_params": params.total,
            "n_params_non_embedding": params.non_embedding,
            "context_length": cfg.context_length,
            "convention": name,
            "flops_per_token_train": flop,
            "flops_over_6n": flop / (6.0 * params.non_embedding),
            "hardware_flops_per_token_train": data.get("hardware_flops_per_token_train", {}).get(name),
        }
        if request.batch_tokens is not None:
            row["flops_per_step_train"] = flop * request.batch_tokens
        rows.append(row)
    whole = lambda value: "-" if value is None else f"{value:,.0f}"  # noqa: E731
    columns = [Column(key, csv_only=True) for key in list(rows[0])[:5]]
    columns += [Column("convention", text=True), Column("flops_per_token_train", "FLOP/token", whole)]
    columns.append(Column("flops_over_6n", "/ 6N", lambda value: f"{value:.3f}"))
    if request.recompute != "none":
        columns.append(Column("hardware_flops_per_token_train", "hardware\nFLOP/token", whole))
    if request.batch_tokens is not None:
        columns.append(Column("flops_per_step_train", f"FLOP/step of\n{request.batch_tokens:,} tokens", si))
    state = decode_note(cfg)
    title = f"{request.title()}\nTraining FLOP per token at {cfg.context_length:,} tokens of context, by convention"
    return Table(title, columns, rows, [state] if state else []), data


def decode_note(cfg: ModelConfig) -> str | None:
    """A line on the decode state in bf16; None where the architecture's costs have none."""
    if any(entry.state is None for entry in entries_of(cfg)):
        return None
    state = decode_state(cfg, activation_bytes=2)
    grows = "" if state["recurrent"] else ", which grows with the length"
    return f"decode state of a sequence after {cfg.context_length:,} tokens: {si(state['bytes'])}B in bf16{grows}"


def modules(request: Counted) -> View:
    """`flops count --by module`: a row a module or operation, a column a convention."""
    cfg, params = request.cfg, count_params(request.cfg).by_module
    lines = {name: by_module(cfg, name) for name in request.names}
    lines |= {f"hardware_{name}": flop for name in request.names if (flop := request.hardware(name))}
    keys = list(dict.fromkeys([*params, *(key for flop in lines.values() for key in flop)]))
    rows: list[dict[str, Any]] = []
    for key in keys:
        rows.append({"module": key, "n_params": params.get(key)} | {n: flop.get(key) for n, flop in lines.items()})
    total = {"module": "total", "n_params": sum(params.values())}
    rows.append(total | {name: sum(flop.values()) for name, flop in lines.items()})
    columns = [Column("module", text=True), Column("n_params", "parameters")]
    columns += [Column(name, name.replace("_", "\n", 1), lambda value: _mega(value)) for name in lines]
    title = f"{request.title()}\nTraining MFLOP per token at {cfg.context_length:,} tokens of context, by convention"
    data = request.data() | {"flops_per_token_train_by_module": lines}
    return Table(title, columns, rows, last=1), data


def _mega(value: float | None) -> str:
    """Millions to six digits; only a zero reads as 0."""
    if value is None:
        return "-"
    return f"{value / 1e6:,.3f}" if abs(value) >= 5e2 else f"{value / 1e6:.1e}"


SHAPE = [Column("arch", text=True), Column("n_layers", "l"), Column("d_model", "d"), Column("n_heads", "h")]


def sized_row(sized: SizedModel, convention: str) -> dict[str, Any]:
    cfg = sized.cfg
    params = count_params(cfg)
    return {
        "arch": cfg.arch,
        "n_layers": cfg.n_layers,
        "d_model": cfg.d_model,
        "n_heads": cfg.n_heads,
        "d_ffn": cfg.d_ffn if has_mlp(cfg.arch) else None,
        "aspect": cfg.d_model / cfg.n_layers,
        "n_params": params.total,
        "n_params_non_embedding": params.non_embedding,
        f"flops_per_token_train_{convention}": train_flops_per_token(cfg, convention),
        "deviation": sized.deviation,
    }


def size_columns(convention: str) -> list[Column]:
    return [
        *SHAPE,
        Column("d_ffn", "g"),
        Column("aspect", "d/l"),
        Column("n_params_non_embedding", "N\nnon-emb.", short),
        Column("n_params", "N\ntotal", short),
        Column(f"flops_per_token_train_{convention}", f"FLOP/token\n{convention}", si),
        Column("deviation", "off by", percent),
    ]


def sizes(
    title: str, shapes: Sequence[SizedModel], convention: str, target: dict[str, Any], warnings: Sequence[str] = ()
) -> View:
    """`flops size`; JSON holds the `warnings`."""
    rows = [sized_row(sized, convention) for sized in shapes]
    return Table(title, size_columns(convention), rows), {"target": target, "rows": rows, "warnings": list(warnings)}


def matched(
    name: str, shapes: Sequence[tuple[str, SizedModel]], convention: str, target: ModelConfig, hints: Sequence[str] = ()
) -> View:
    """`flops match`."""
    rows = []
    for kind, sized in shapes:
        row = sized_row(sized, convention)
        rows.append({"arch": row.pop("arch"), "by": kind} | row)
    columns = size_columns(convention)
    columns = [Column("arch", text=True), Column("by", text=True), *columns[1:]]
    n, flop = count_params(target).non_embedding, train_flops_per_token(target, convention)
    title = (
        f"Matches of {name} in non-embedding parameters ({n:,}) and in training FLOP per token\n"
        f"({flop:,.0f}, convention {convention}, {target.context_length:,} tokens of context)"
    )
    target_data = {"model": name, "n_params_non_embedding": n, f"flops_per_token_train_{convention}": flop}
    return Table(title, columns, rows), {"target": target_data, "rows": rows, "warnings": list(hints)}


@dataclass(frozen=True)
class Residency:
    """How `flops memory` trains: a micro-batch's tokens on each of `gpus` GPUs."""

    micro_batch_tokens: int
    gpus: int = 1
    sequence_processes: int = 1
    zero_stage: int = 1
    precision: str = "bf16"
    recompute: bool = False
    kernels: bool = True


def memory(name: str, cfg: ModelConfig, how: Residency) -> View:
    """`flops memory`: bytes on a GPU by line, then those on disk and of a sequence that is continued."""
    lines = training_memory(
        cfg,
        micro_batch_tokens=how.micro_batch_tokens,
        zero_stage=how.zero_stage,
        world_size=how.gpus,
        sequence_processes=how.sequence_processes,
        precision=how.precision,
        recompute=how.recompute,
        kernels=how.kernels,
    )
    rows = [{"where": "GPU, training", "what": key, "bytes": value} for key, value in lines.items()]
    disk = {f"checkpoint_{dtype}": checkpoint_bytes(cfg, dtype) for dtype in ("bf16", "fp32")}
    disk["training_state"] = state_bytes(cfg)
    rows += [{"where": "disk", "what": key, "bytes": value} for key, value in disk.items()]
    decode = None
    if all(entry.state is not None for entry in entries_of(cfg)):
        decode = {n: float(decode_state(cfg, n, 2)["bytes"]) for n in sorted({1024, cfg.context_length, 131_072})}
        rows += [
            {"where": "decode state, bf16", "what": f"after {n:,} tokens", "bytes": size} for n, size in decode.items()
        ]
    shared = f", {how.sequence_processes} of which share a sequence" if how.sequence_processes > 1 else ""
    title = (
        f"{name}: training on {counted(how.gpus, 'GPU')}{shared}, ZeRO stage {how.zero_stage}, "
        f"{how.precision}, micro-batches of {how.micro_batch_tokens:,} tokens at {cfg.context_length:,} of context"
        f"{', activations recomputed' if how.recompute else ''}, "
        f"{'with the Triton kernels' if how.kernels else 'without Triton kernels'}"
    )
    columns = [Column("where", text=True), Column("what", text=True), Column("bytes", show=si)]
    data = {
        "model": cfg.to_dict(),
        "micro_batch_tokens": how.micro_batch_tokens,
        "gpus": how.gpus,
        "sequence_processes": how.sequence_processes,
        "zero_stage": how.zero_stage,
        "precision": how.precision,
        "recompute": how.recompute,
        "kernels": how.kernels,
        "training_bytes_per_gpu": lines,
        "disk_bytes": disk,
        "decode_state_bytes": decode,
    }
    return Table(title, columns, rows), data
