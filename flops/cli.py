"""The `flops` command: what a model costs. Neither torch nor rich is imported before a table is printed."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from arch.config import ARCHS, ModelConfig
from arch.presets import PAPER, preset
from arch.registry import REGISTERED, load_plugins

from .console import run_app
from .conventions import CONVENTIONS, conventions_of, train_flops_per_token
from .params import count_params
from .registry import entry_of

# The training step of the paper's table 7: 480 sequences of 8192 tokens.
PAPER_BATCH, PAPER_CONTEXT = 480, 8192

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    help="Parameters and FLOPs of a model, counted from its configuration. Every FLOP number names its convention.",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", help="A module that registers architectures; repeatable.")
]


@app.command()
def count(
    arch: Annotated[str, typer.Option(help=f"Architecture: {', '.join(ARCHS)}, or one of a plugin.")],
    size: Annotated[str, typer.Option(help="Size of a preset, e.g. 410m.")],
    context: Annotated[int | None, typer.Option(help="Tokens in a sequence; default: the preset's.")] = None,
    convention: Annotated[str | None, typer.Option(help=f"One of {', '.join(CONVENTIONS)}; default: all.")] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Parameters by module and training FLOP per token of one preset."""
    load_plugins(plugins or [])
    cfg = preset(arch, size)
    cfg = cfg if context is None else cfg.replace(context_length=context)
    params = count_params(cfg)
    names = conventions_of(cfg) if convention is None else (convention,)
    flops = {name: train_flops_per_token(cfg, name) for name in names}
    if as_json:
        report = {
            "arch": arch,
            "size": size,
            "model": cfg.to_dict(),
            "n_params": params.total,
            "n_params_non_embedding": params.non_embedding,
            "n_params_embedding": params.embedding,
            "n_params_by_module": params.by_module,
            "flops_per_token_train": flops,
        }
        print(json.dumps(report, indent=1))
        return
    rows = [[name, f"{size:,}"] for name, size in params.by_module.items()]
    rows += [["non-embedding", f"{params.non_embedding:,}"], ["total", f"{params.total:,}"]]
    print_table(f"{arch}-{size}: parameters", ["module", "parameters"], rows, last=2)
    title = f"{arch}-{size}: training FLOP per token at {cfg.context_length:,} tokens of context"
    print_table(title, ["convention", "FLOP/token"], [[name, f"{flop:,.0f}"] for name, flop in flops.items()])


@app.command()
def table(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """The paper's 24 models: non-embedding parameters, and PFLOP of a training step of 480 x 8192 tokens.

    Architectures of plugins follow at the same sizes.
    """
    load_plugins(plugins or [])
    archs = [arch for arch in ARCHS if entry_of(arch).paper is not None] + list(REGISTERED)
    rows = [table_row(preset(arch, size, context_length=PAPER_CONTEXT), size) for arch in archs for size in PAPER]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    cells = [[_cell(value) for value in row.values()] for row in rows]
    which = f"The paper's 24 models{' and those of plugins' if REGISTERED else ''}"
    title = f"{which}: a training step of {PAPER_BATCH} x {PAPER_CONTEXT} tokens, by convention"
    names = [name.replace("pflops_per_step_", "PFLOP/step ") for name in rows[0]]
    print_table(title, names, cells, text=2)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)


def table_row(cfg: ModelConfig, size: str) -> dict[str, Any]:
    """One row of table 7: `params_million` without embeddings, `pflops_per_step_<convention>` in 1e15 FLOP, None
    under a convention that does not cover the architecture."""
    tokens = float(PAPER_BATCH * PAPER_CONTEXT)
    shape = {"l": cfg.n_layers, "d": cfg.d_model, "h": cfg.n_heads, "g": cfg.d_ffn, "v": cfg.vocab_size}
    row: dict[str, Any] = {"arch": cfg.arch, "size": size, "b": PAPER_BATCH, "n": PAPER_CONTEXT} | shape
    row["params_million"] = count_params(cfg).non_embedding / 1e6
    covered = {name: train_flops_per_token(cfg, name) * tokens / 1e15 for name in conventions_of(cfg)}
    return row | {f"pflops_per_step_{name}": covered.get(name) for name in CONVENTIONS}


def print_table(title: str, columns: list[str], rows: list[list[str]], text: int = 1, last: int = 0) -> None:
    """A rich table: the first `text` columns to the left, the last `last` rows set apart; not cut short when piped."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table()
    for index, name in enumerate(columns):
        drawn.add_column(name, justify="left" if index < text else "right", no_wrap=True)
    for number, row in enumerate(rows):
        drawn.add_row(*row, end_section=number == len(rows) - last - 1)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(title, drawn, sep="\n", highlight=False)


def main() -> None:
    """Console script."""
    run_app(app)


if __name__ == "__main__":
    main()
