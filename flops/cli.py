"""The `flops` command: what a model costs. Neither torch nor rich is imported before a table is printed.

scaling/cli/flops.py adds `flops study` and is the console script; `python -m flops.cli` is all but that command.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from arch.amounts import count as count_of
from arch.config import ModelConfig
from arch.errors import InputError, choice
from arch.presets import preset
from arch.registry import load_plugins

from . import views
from .budget import budget as buy
from .budget import refuse_far, warnings
from .budget_view import budgets
from .console import HELP_BY, add_version, run_app
from .conventions import CONVENTIONS, RECOMPUTE
from .ladder_view import ladder_of, ladder_table, models_of, rungs_of
from .laws import load_laws
from .quantity import MOST_GPUS, MOST_PARAMS, MOST_TOKENS, compute, context_length, flop, quantity, whole
from .shapes import MOST_VOCAB, arch_of, configuration, every_arch, model_of, without_alias
from .sizing import Measure, aspect_of, best, flops_under, matches, missed, parameters, total_parameters
from .study_sizes import study_yaml
from .tables import FORMATS, emit, format_of, warn

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_BY,
    help="Parameters, FLOPs and costs of models, counted from their configurations. Every FLOP number names its "
    "convention. Numbers may be written as 1.3B, 410M, 70_000 or 1e22.",
)
add_version(app)
Form = Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", help="A module that registers architectures; repeatable.")
]
Text = str | None
Arch = Annotated[str, typer.Option(help=f"Architecture: {', '.join(every_arch())}, or one of a plugin.")]
Archs = Annotated[list[str] | None, typer.Option("--arch", help="Architecture; repeatable; default: all.")]
Context = Annotated[Text, typer.Option(help="Tokens in a sequence.")]
Convention = Annotated[str, typer.Option(help=f"One of {', '.join(CONVENTIONS)}.")]
Vocab = Annotated[Text, typer.Option(help="Vocabulary.")]
Size = Annotated[Text, typer.Option(help="A preset, e.g. 410m, which the shape's options change; or give the shape.")]
Layers = Annotated[Text, typer.Option(help="Layers.")]
Dim = Annotated[Text, typer.Option(help="Width d.")]
Heads = Annotated[Text, typer.Option(help="Heads; default: the preset's, else d / 128.")]
Ffn = Annotated[Text, typer.Option(help="Width g of the GLU; default: the preset's, else 8d/3, to a multiple of 256.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Any field of the model, as norm=layer; repeatable.")]


@app.command()
def table(
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="The printed cells beside our counts, with notes.")
    ] = False,
    norms: Annotated[
        str,
        typer.Option(
            help="Norms in the parameter count. paper: those that reproduce the printed counts (norm=layer in LLaMA "
            "and cos2). preset: those of this package's presets."
        ),
    ] = "paper",
    convention: Annotated[
        list[str] | None, typer.Option(help="Add PFLOP under this convention; repeatable; all: every one.")
    ] = None,
    plugins: Plugins = None,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """The paper's table 7: parameters without embeddings in millions, PFLOP of a step of 480 x 8192 tokens.

    Architectures of plugins follow at the same sizes.
    """
    load_plugins(plugins or [])
    form = format_of(form, as_json)
    if as_printed and convention:
        raise InputError(
            "--as-printed compares with the printed table, which has one convention: leave --convention out"
        )
    names = conventions_named(convention or [])
    emit(*(views.compared_table(norms) if as_printed else views.printed_table(norms, names)), form)


@app.command()
def count(
    arch: Arch,
    size: Size = None,
    layers: Layers = None,
    dim: Dim = None,
    heads: Heads = None,
    ffn: Ffn = None,
    vocab: Vocab = None,
    context: Context = None,
    batch_tokens: Annotated[
        Text, typer.Option(help="Also print the FLOP of an optimizer step of so many tokens.")
    ] = None,
    convention: Annotated[
        list[str] | None, typer.Option(help="Only this convention; repeatable; default: all.")
    ] = None,
    by: Annotated[Text, typer.Option(help="module: a line for every module and operation.")] = None,
    recompute: Annotated[
        str,
        typer.Option(
            help="none, or layers: also the FLOP that the hardware computes where activations are recomputed."
        ),
    ] = "none",
    sets: Sets = None,
    plugins: Plugins = None,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """Parameters, and training FLOP per token by convention, of a preset or of any shape."""
    load_plugins(plugins or [])
    form = format_of(form, as_json)
    if by not in (None, "module"):
        raise InputError(f"--by: unknown {by!r}: the only choice is module")
    if recompute not in RECOMPUTE:
        raise InputError(f"--recompute: unknown {recompute!r}{choice(recompute, list(RECOMPUTE))}")
    name, cfg = configuration(arch, size, layers, dim, heads, ffn, vocab, context, sets or [])
    batch = None if batch_tokens is None else whole(batch_tokens, "--batch-tokens", MOST_TOKENS)
    names = () if convention is None or "all" in convention else conventions_named(convention)
    request = views.Counted(name, cfg, size, names, batch, recompute)
    emit(*(views.modules(request) if by else views.totals(request)), form)


@app.command()
def memory(
    arch: Arch,
    size: Size = None,
    layers: Layers = None,
    dim: Dim = None,
    heads: Heads = None,
    ffn: Ffn = None,
    vocab: Vocab = None,
    context: Context = None,
    micro_batch_tokens: Annotated[
        Text, typer.Option(help="Tokens in a forward pass of one GPU; default: one sequence.")
    ] = None,
    gpus: Annotated[str, typer.Option(help="GPUs over which the optimizer state is sharded.")] = "1",
    zero_stage: Annotated[int, typer.Option(help="DeepSpeed's ZeRO stage: 0, 1 or 2.")] = 1,
    precision: Annotated[str, typer.Option(help="bf16 (autocast) or fp32.")] = "bf16",
    recompute: Annotated[bool, typer.Option("--recompute", help="Recompute the layers' activations.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Without Triton kernels: portable operations, as on a CPU.")
    ] = False,
    sets: Sets = None,
    plugins: Plugins = None,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """Bytes of training on a GPU line by line, of checkpoints on disk, and of the decode state."""
    load_plugins(plugins or [])
    form = format_of(form, as_json)
    name, cfg = configuration(arch, size, layers, dim, heads, ffn, vocab, context, sets or [])
    tokens = cfg.context_length
    if micro_batch_tokens is not None:
        tokens = whole(micro_batch_tokens, "--micro-batch-tokens", MOST_TOKENS)
        if tokens > cfg.context_length and tokens % cfg.context_length:
            raise InputError(
                f"--micro-batch-tokens: {tokens} is not a multiple of a sequence's {cfg.context_length} (--context)"
            )
    how = views.Residency(tokens, whole(gpus, "--gpus", MOST_GPUS), zero_stage, precision, recompute, not plain)
    emit(*views.memory(name, cfg, how), form)


@app.command()
def size(
    archs: Archs = None,
    params: Annotated[Text, typer.Option(help="Target: parameters.")] = None,
    flops_per_token: Annotated[Text, typer.Option(help="Target: training FLOP per token.")] = None,
    budget: Annotated[Text, typer.Option(help="Target, with --tokens: this compute over them.")] = None,
    tokens: Annotated[Text, typer.Option(help="Training tokens for --budget.")] = None,
    match: Annotated[Text, typer.Option(help="Target: a preset, as llama-410m.")] = None,
    ladder: Annotated[Text, typer.Option(help="Targets: from, to and how many parameters, as 1M:60M:6.")] = None,
    by: Annotated[Text, typer.Option(help="What --ladder matches: params or flops; default: params.")] = None,
    head_dim: Annotated[Text, typer.Option(help="Channels of a head on --ladder; default: by its rule.")] = None,
    unit: Annotated[Text, typer.Option(help="Unit of --budget: flop or pfday.")] = None,
    total: Annotated[bool, typer.Option("--total", help="Count embedding and head in --params too.")] = False,
    convention: Convention = "exact",
    context: Context = None,
    vocab: Vocab = None,
    aspect: Annotated[
        Text,
        typer.Option(
            help="Range of width over layers; default: 32:160, from 4 on at small widths (Mamba: half). --ladder: one "
            "number."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            help="How many shapes of each architecture; default: 5, or 1 when all architectures are listed.",
            min=1,
            max=100,
        ),
    ] = None,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print it as a study file takes it: each architecture's closest shape.")
    ] = False,
    plugins: Plugins = None,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """The shapes on a hardware-friendly grid that are closest to a target, and by how much they miss it.

    The grid: d in multiples of 128 (below 1,024 of 64, below 256 of 16, below 64 of 4), heads of 128 or 64 channels
    (below 256: two), g as in the presets. --match prints, for every architecture, the shape that is closest in
    parameters and the one that is closest in FLOP per token. --ladder prints sizes at which the architectures share
    depth, width and heads, as grid.sizes of a study file has them (docs/study-file.md).
    """
    load_plugins(plugins or [])
    if as_yaml and (as_json or form != "table"):
        raise InputError("--yaml prints no other format: leave it or --format out")
    form = format_of(form, as_json)
    convention = convention_named(convention)
    given = [name for name, text in (("--params", params), ("--flops-per-token", flops_per_token)) if text is not None]
    others = (("--budget", budget), ("--match", match), ("--ladder", ladder))
    given += [name for name, text in others if text is not None]
    if len(given) != 1:
        what = f"not {' and '.join(given)} at once" if given else "give one"
        raise InputError(f"a target: --params, --flops-per-token, --budget with --tokens, --match or --ladder: {what}")
    if (budget is None) != (tokens is None):
        raise InputError("--budget and --tokens belong together: FLOP per token is one over the other")
    for option, text, owner in (
        ("--unit", unit, "--budget"),
        ("--total", total or None, "--params"),
        ("--by", by, "--ladder"),
        ("--head-dim", head_dim, "--ladder"),
    ):
        if text is not None and given != [owner]:
            raise InputError(f"{option} belongs to {owner}")
    names, changes = [arch_of(name) for name in archs or []], dict[str, Any]()
    if context is not None:
        changes["context_length"] = context_length(context)
    if vocab is not None:
        changes["vocab_size"] = whole(vocab, "--vocab", MOST_VOCAB)
    if ladder is not None:
        if top is not None:
            raise InputError("--top and --ladder: a ladder has one shape for each size: leave --top out")
        request = ladder_of(ladder, by, aspect, head_dim)
        rungs = rungs_of(request, names or every_arch(), changes)
        view = ladder_table(request, rungs, convention)
        return show(as_yaml, view, form, models_of(rungs), changes)
    span = None if aspect is None else aspect_of(aspect)
    if match is not None:
        target = preset(*model_of(match), **changes)
        pairs = matches(target, convention, span, names)
        far = missed([sized for _, sized in pairs], match)
        kinds = {kind: [sized.cfg for by, sized in pairs if by == kind] for kind in ("params", "flops")}
        view = views.matched(match, pairs, convention, target, far)
        named = {f"{match.partition('-')[2].lower()}-{kind}": models for kind, models in kinds.items()}
        return show(as_yaml, view, form, named, changes)
    measure: Measure
    if params is not None:
        goal, kind = quantity(params, "--params", MOST_PARAMS), "total" if total else "non-embedding"
        measure, what = total_parameters if total else parameters, f"{goal:,.0f} {kind} parameters"
        target_data: dict[str, Any] = {"n_params" if total else "n_params_non_embedding": goal}
    else:
        if flops_per_token is not None:
            goal, origin = flop(flops_per_token, "--flops-per-token"), ""
        else:
            c, d = compute(str(budget), unit, "--budget"), quantity(str(tokens), "--tokens", MOST_TOKENS)
            goal, origin = c / d, f" = {c:.4g} FLOP over {d:.4g} tokens"
        measure, what = flops_under(convention), f"{goal:.4g} training FLOP per token ({convention}){origin}"
        target_data = {f"flops_per_token_train_{convention}": goal}
    many = top or (5 if names else 1)
    by_arch = [best(name, measure, goal, span, many, **changes) for name in names or every_arch()]
    far = missed([shapes[0] for shapes in by_arch], what)
    every = [sized for shapes in by_arch for sized in shapes]
    view = views.sizes(f"Closest to {what}", every, convention, target_data, far)
    name = f"{'f' if params is None else 'n'}{count_of(goal).lower()}"
    show(as_yaml, view, form, {name: [shapes[0].cfg for shapes in by_arch]}, changes)


def show(
    as_yaml: bool, view: views.View, form: str, models: dict[str, list[ModelConfig]], changes: dict[str, Any]
) -> None:
    """Print a view, or its `models` by the name of their size as a study file takes them; then its warnings."""
    if as_yaml:
        print(study_yaml(models, changes, view[0].title))
    else:
        emit(*view, form)
    warn(view[1]["warnings"], form)


@app.command()
def budget(
    c: Annotated[str, typer.Option("--compute", help="Training compute, as 1e22, 5 ZFLOP or 179pfday.")],
    unit: Annotated[Text, typer.Option(help="Unit of --compute: flop or pfday.")] = None,
    law: Annotated[str, typer.Option(help="paper (table 3), a study's fits.json, or a study's directory.")] = "paper",
    archs: Archs = None,
    batch_tokens: Annotated[
        Text, typer.Option(help="Tokens of an optimizer step; default: the paper's, 480 x 8192.")
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Allow more than 100 times outside of the fitted range.")
    ] = False,
    form: Form = "table",
    as_json: AsJson = False,
) -> None:
    """What a compute budget buys by a scaling law: N_opt, D_opt, loss and steps of each architecture.

    Values outside of the fitted range are marked.
    """
    form = format_of(form, as_json)
    flops = compute(c, unit, "--compute")
    batch = None if batch_tokens is None else whole(batch_tokens, "--batch-tokens", MOST_TOKENS)
    laws = load_laws(law)
    rows = buy(laws, flops, batch, [without_alias(name) for name in archs or []])
    if not extrapolate:
        refuse_far(laws, flops, rows)
    messages = warnings(laws, rows)
    emit(*budgets(laws, flops, rows, messages), form)
    warn(messages, form)


def conventions_named(names: list[str]) -> tuple[str, ...]:
    """`names`, "all" for every one. Raises InputError for an unknown one, naming the nearest."""
    for name in names:
        if name not in (*CONVENTIONS, "all"):
            raise InputError(f"unknown convention {name!r}{choice(name, list(CONVENTIONS))}")
    return CONVENTIONS if "all" in names else tuple(dict.fromkeys(names))


def convention_named(name: str) -> str:
    """The convention `name`. Raises InputError for an unknown one, and for "all"."""
    if name == "all":
        raise InputError(f"--convention: give one of {', '.join(CONVENTIONS)} here, not all")
    return conventions_named([name])[0]


def main() -> None:
    """`python -m flops.cli`."""
    run_app(app)


if __name__ == "__main__":
    main()
