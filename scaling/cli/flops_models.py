"""The `flops` command but for `flops study`: what a model costs. Neither torch nor rich is imported before a table is
printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from arch.commands import Plugins, application, with_options
from arch.config import ModelConfig
from arch.errors import InputError, choice
from arch.presets import preset
from arch.registry import KNOWN, load_plugins, resolved
from flops import views
from flops.budget import budget as buy
from flops.budget import refuse_far, warnings
from flops.budget_view import budgets
from flops.conventions import CONVENTIONS, RECOMPUTE
from flops.ladder_view import ladder_of, ladder_table, rungs_of
from flops.laws import load_laws
from flops.quantity import MOST_GPUS, MOST_PARAMS, MOST_TOKENS, compute, context_length, flop, quantity, whole
from flops.shapes import MOST_VOCAB, arch_of, configuration, every_arch, model_of
from flops.sizing import Measure, aspect_of, best, flops_under, matches, missed, parameters, total_parameters
from flops.tables import FORMATS, emit, format_of, warn

from .options import Architectures, several

app = application(
    "Parameters, FLOPs and costs of models, counted from their configurations. Every FLOP number names its convention. "
    "Numbers may be written as 1.3B, 410M, 70_000 or 1e22."
)
Text = str | None
Archs = Annotated[
    list[str] | None, typer.Option("--arch", help="Architecture; repeatable, or several by commas; default: all.")
]
Context = Annotated[Text, typer.Option(help="Tokens in a sequence.")]
Convention = Annotated[str, typer.Option(help=f"One of {', '.join(CONVENTIONS)}.")]
Unit = Annotated[Text, typer.Option(help="Unit of the compute: flop or pfday.")]
Vocab = Annotated[Text, typer.Option(help="Vocabulary size.")]


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a table is printed."""

    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "table"
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False

    @property
    def name(self) -> str:
        """Raises InputError for an unknown format, and for --json beside another."""
        return format_of(self.form, self.as_json)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Architectures):
    """One model: a preset, which the other options change, or a shape."""

    arch: Annotated[str, typer.Option(help=f"Architecture: {', '.join(KNOWN)}, or one of a plugin or study.")]
    size: Annotated[Text, typer.Option(help="A preset, e.g. 410m, which the shape's options change; or a shape.")] = (
        None
    )
    layers: Annotated[Text, typer.Option(help="Number of layers.")] = None
    dim: Annotated[Text, typer.Option(help="Width d.")] = None
    heads: Annotated[Text, typer.Option(help="Number of heads; default: the preset's, else d / 128.")] = None
    ffn: Annotated[
        Text, typer.Option(help="Width g of the GLU; default: the preset's, else 8d/3, to a multiple of 256.")
    ] = None
    vocab: Vocab = None
    context: Context = None
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Any field of the model, as norm=layer; repeatable.")
    ] = None

    def configuration(self) -> tuple[str, ModelConfig]:
        """(its name, the configuration). Raises InputError."""
        sets, stated = self.sets or [], self.load()
        options = {"context_length": self.context, "vocab_size": self.vocab}
        given = {name for name, text in options.items() if text is not None}
        given |= {pair.partition("=")[0].strip() for pair in sets}
        sets = [*(f"{name}={value}" for name, value in stated.items() if name not in given), *sets]
        shape = self.layers, self.dim, self.heads, self.ffn
        return configuration(self.arch, self.size, *shape, self.vocab, self.context, sets)


@dataclass(frozen=True, kw_only=True)
class ShapesOptions(Architectures):
    """The architectures that are sized, their context and vocabulary, and the convention of what is shown."""

    archs: Archs = None
    convention: Convention = "exact"
    context: Context = None
    vocab: Vocab = None

    def named(self) -> list[str]:
        """The architectures that were named. Raises InputError for an unknown one."""
        self.load()
        return [arch_of(name) for name in several(self.archs)]

    def changes(self) -> dict[str, Any]:
        """Fields of the configuration that the options and the study state."""
        changes: dict[str, Any] = dict(self.load())
        if self.context is not None:
            changes["context_length"] = context_length(self.context)
        if self.vocab is not None:
            changes["vocab_size"] = whole(self.vocab, "--vocab", MOST_VOCAB)
        return changes


@app.command()
@with_options
def table(
    output: Format,
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
    plugin: Plugins = None,
) -> None:
    """Print the paper's table 7, as counted here.

    Prints parameters without embeddings in millions, PFLOP of a step of 480 x 8192 tokens. Architectures of plugins
    follow at the same sizes.
    """
    load_plugins(plugin or [])
    form = output.name
    if as_printed and convention:
        raise InputError(
            "--as-printed compares with the printed table, which has one convention: leave --convention out"
        )
    names = conventions_named(convention or [])
    emit(*(views.compared_table(norms) if as_printed else views.printed_table(norms, names)), form)


@app.command()
@with_options
def count(
    model: ModelOptions,
    output: Format,
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
) -> None:
    """Count the parameters and training FLOP of a model.

    The model is a preset or any shape; the FLOP are per token, by convention.
    """
    form = output.name
    if by not in (None, "module"):
        raise InputError(f"--by: unknown {by!r}: the only choice is module")
    if recompute not in RECOMPUTE:
        raise InputError(f"--recompute: unknown {recompute!r}{choice(recompute, list(RECOMPUTE))}")
    name, cfg = model.configuration()
    batch = None if batch_tokens is None else whole(batch_tokens, "--batch-tokens", MOST_TOKENS)
    names = () if convention is None or "all" in convention else conventions_named(convention)
    request = views.Counted(name, cfg, model.size, names, batch, recompute)
    emit(*(views.modules(request) if by else views.totals(request)), form)


@app.command()
@with_options
def memory(
    model: ModelOptions,
    output: Format,
    micro_batch_tokens: Annotated[
        Text, typer.Option(help="Tokens in a forward pass of one GPU; default: one sequence.")
    ] = None,
    gpus: Annotated[str, typer.Option(help="GPUs over which the optimizer state is sharded.")] = "1",
    sequence_processes: Annotated[
        str, typer.Option(help="How many of the GPUs share each sequence (jobs.sequence_processes).")
    ] = "1",
    zero_stage: Annotated[int, typer.Option(help="DeepSpeed's ZeRO stage: 0 to 3.")] = 1,
    precision: Annotated[str, typer.Option(help="bf16 (autocast) or fp32.")] = "bf16",
    recompute: Annotated[bool, typer.Option("--recompute", help="Recompute the layers' activations.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Without Triton kernels: portable operations, as on a CPU.")
    ] = False,
) -> None:
    """Count the bytes of training, checkpoints and decoding.

    Prints those of training on a GPU line by line, of checkpoints on disk, and of the decode state.
    """
    form = output.name
    name, cfg = model.configuration()
    tokens = cfg.context_length
    if micro_batch_tokens is not None:
        tokens = whole(micro_batch_tokens, "--micro-batch-tokens", MOST_TOKENS)
        if tokens > cfg.context_length and tokens % cfg.context_length:
            raise InputError(
                f"--micro-batch-tokens: {tokens} is not a multiple of a sequence's {cfg.context_length} (--context)"
            )
    n_gpus, in_parts = whole(gpus, "--gpus", MOST_GPUS), whole(sequence_processes, "--sequence-processes", MOST_GPUS)
    how = views.Residency(tokens, n_gpus, in_parts, zero_stage, precision, recompute, not plain)
    emit(*views.memory(name, cfg, how), form)


Aspect = Annotated[
    Text,
    typer.Option(help="Range of width over layers; default: 32:160, from 4 on at small widths (Mamba: half)."),
]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """What a shape shall come closest to."""

    params: Annotated[Text, typer.Option(help="Target: parameters.")] = None
    total: Annotated[bool, typer.Option("--total", help="Count embedding and head in --params too.")] = False
    flops_per_token: Annotated[Text, typer.Option(help="Target: training FLOP per token.")] = None
    budget: Annotated[Text, typer.Option(help="Target, with --tokens: this compute over them.")] = None
    tokens: Annotated[Text, typer.Option(help="Training tokens for --budget.")] = None
    unit: Unit = None

    def check(self) -> None:
        """Raise InputError for no target, for several, and for what belongs to another one."""
        options = ("--params", self.params), ("--flops-per-token", self.flops_per_token), ("--budget", self.budget)
        given = [name for name, text in options if text is not None]
        if len(given) != 1:
            what = f"not {' and '.join(given)} at once" if given else "give one"
            raise InputError(f"a target: --params, --flops-per-token, or --budget with --tokens: {what}")
        if (self.budget is None) != (self.tokens is None):
            raise InputError("--budget and --tokens belong together: FLOP per token is one over the other")
        for option, text, owner in (("--unit", self.unit, "--budget"), ("--total", self.total or None, "--params")):
            if text is not None and given != [owner]:
                raise InputError(f"{option} belongs to {owner}")

    def resolved(self, convention: str) -> tuple[Measure, float, str, str]:
        """(what is measured of a shape, the target, in words, its key in JSON)."""
        if self.params is not None:
            goal, kind = quantity(self.params, "--params", MOST_PARAMS), "total" if self.total else "non-embedding"
            key = "n_params" if self.total else "n_params_non_embedding"
            return total_parameters if self.total else parameters, goal, f"{goal:,.0f} {kind} parameters", key
        origin = ""
        if self.flops_per_token is not None:
            goal = flop(self.flops_per_token, "--flops-per-token")
        else:
            c = compute(str(self.budget), self.unit, "--budget")
            d = quantity(str(self.tokens), "--tokens", MOST_TOKENS)
            goal, origin = c / d, f" = {c:.4g} FLOP over {d:.4g} tokens"
        what = f"{goal:.4g} training FLOP per token ({convention}){origin}"
        return flops_under(convention), goal, what, f"flops_per_token_train_{convention}"


@app.command()
@with_options
def size(
    target: TargetOptions,
    shapes: ShapesOptions,
    output: Format,
    aspect: Aspect = None,
    top: Annotated[
        int | None,
        typer.Option(
            help="How many shapes of each architecture; default: 5, or 1 when all architectures are listed.",
            min=1,
            max=100,
        ),
    ] = None,
) -> None:
    """Find the shapes that are closest to a target.

    Shapes are on a hardware-friendly grid; the table says by how much they miss the target.

    The grid: d in multiples of 128 (below 1,024 of 64, below 256 of 16, below 64 of 4), heads of 128 or 64 channels
    (below 256: two), g as in the presets.
    """
    names, form = shapes.named(), output.name
    convention = convention_named(shapes.convention)
    target.check()
    changes, span = shapes.changes(), None if aspect is None else aspect_of(aspect)
    measure, goal, what, key = target.resolved(convention)
    many = top or (5 if names else 1)
    by_arch = [best(name, measure, goal, span, many, **changes) for name in names or every_arch()]
    far = missed([sized[0] for sized in by_arch], what)
    closest = [sized for of_arch in by_arch for sized in of_arch]
    emit(*views.sizes(f"Closest to {what}", closest, convention, {key: goal}, far), form)
    warn(far, form)


@app.command()
@with_options
def match(
    model: Annotated[str, typer.Argument(metavar="PRESET", help="An architecture and a size, as llama-410m.")],
    shapes: ShapesOptions,
    output: Format,
    aspect: Aspect = None,
) -> None:
    """Find each architecture's shapes closest to a preset.

    Prints the closest in parameters and the closest in FLOP per token.
    """
    names, form = shapes.named(), output.name
    convention = convention_named(shapes.convention)
    changes, span = shapes.changes(), None if aspect is None else aspect_of(aspect)
    arch, size = model_of(model)
    target = preset(arch, size, **changes)
    pairs = matches(target, convention, span, names)
    far = missed([sized for _, sized in pairs], model)
    emit(*views.matched(model, pairs, convention, target, far), form)
    warn(far, form)


@app.command()
@with_options
def ladder(
    targets: Annotated[
        str, typer.Argument(metavar="FROM:TO:COUNT", help="The parameters from, to, and how many sizes, as 1M:60M:6.")
    ],
    shapes: ShapesOptions,
    output: Format,
    by: Annotated[str, typer.Option(help="What the architectures match at a size: params or flops.")] = "params",
    head_dim: Annotated[Text, typer.Option(help="Channels of a head; default: by the ladder's rule.")] = None,
    aspect: Annotated[Text, typer.Option(help="Width over layers; default: by the ladder's rule.")] = None,
    layers: Annotated[int | None, typer.Option(help="Depth of all sizes; default: by the ladder's rule.")] = None,
) -> None:
    """Find sizes that all architectures share.

    At each the architectures have one depth, width and number of heads, as grid.sizes of a study file has them.
    docs/study-file.md says how a ladder is made.
    """
    names, form = shapes.named(), output.name
    convention = convention_named(shapes.convention)
    request = ladder_of(targets, by, aspect, head_dim, layers)
    rungs = rungs_of(request, names or every_arch(), shapes.changes())
    emit(*ladder_table(request, rungs, convention), form)


@app.command()
@with_options
def budget(
    c: Annotated[str, typer.Option("--compute", help="Training compute, as 1e22, 5 ZFLOP or 179pfday.")],
    output: Format,
    unit: Unit = None,
    law: Annotated[str, typer.Option(help="paper (table 3), a study's fits.json, or a directory with one.")] = "paper",
    archs: Archs = None,
    batch_tokens: Annotated[
        Text, typer.Option(help="Tokens of an optimizer step; default: the paper's, 480 x 8192.")
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Allow more than 100 times outside of the fitted range.")
    ] = False,
) -> None:
    """Say what a compute budget buys by a scaling law.

    Prints N_opt, D_opt, loss and steps of each architecture. Values outside of the fitted range are marked.
    """
    form = output.name
    flops = compute(c, unit, "--compute")
    batch = None if batch_tokens is None else whole(batch_tokens, "--batch-tokens", MOST_TOKENS)
    laws = load_laws(law)
    rows = buy(laws, flops, batch, [resolved(name) for name in several(archs)])
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
