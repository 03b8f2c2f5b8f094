"""`scaling bundle`: what a study has finished on one machine, as one file for another."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arch.amounts import counted
from arch.commands import Plugins, with_options
from arch.errors import InputError
from arch.tables import rows_table, wrapped

from .options import AsJson, DryRun, Only, RunsOptions, page_to_write, print_json, tell, write_option_file

if TYPE_CHECKING:
    from ..stages.bundle_compare import Comparison

SHOWN = 10  # runs that are named of those left out, or not compared

app = typer.Typer(help="Carry finished runs between machines. Pack them without their weights, unpack and merge them.")


@app.command()
@with_options
def pack(
    study: RunsOptions,
    to: Annotated[Path | None, typer.Option(help="The file to write; default: STUDY.tar.xz here.")] = None,
    metrics_every: Annotated[
        int, typer.Option(min=1, help="Keep the rows of metrics of every so many steps: most of a bundle are these.")
    ] = 1,
    dry_run: DryRun = False,
) -> None:
    """Write one file with all that is finished. It has metrics, evaluations and manifests, without weights and text."""
    from arch.amounts import byte_size

    from ..bundle.index import ENDING
    from ..stages.bundle import pack_stage

    request = study.request()
    packed = pack_stage(request, to or Path(f"{request.study.name}{ENDING}"), dry_run, metrics_every)
    if study.as_json:
        return print_json(packed)
    for name, n_bytes in (packed["runs"] | packed["others"]).items() if dry_run else ():
        print(f"{name}: {byte_size(n_bytes)}")
    _say_left_out(packed["left_out"])
    n_runs, content = len(packed["runs"]), byte_size(packed["content_bytes"])
    if dry_run:
        print(f"would pack {counted(n_runs, 'run')}, {content} before compression (dry run: nothing was written)")
    else:
        print(
            f"{packed['file']}: {counted(n_runs, 'run')}, {byte_size(packed['bytes'])} ({content} before compression)"
        )
        print("next, where the runs come together: scaling bundle unpack " + str(packed["file"]))


@app.command()
@with_options
def unpack(
    files: Annotated[list[Path], typer.Argument(metavar="FILE..", help="Bundles of one study.")],
    out: Annotated[Path, typer.Option(help="Directory of all studies' output.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Verify bundles and merge them into OUT/STUDY. Its runs count as trained and evaluated there."""
    from ..stages.bundle import unpack_stage

    unpacked = unpack_stage(files, out, sys.stderr if as_json else sys.stdout)
    if as_json:
        return print_json(unpacked)
    for line in unpacked["notes"]:
        print(f"note: {line}")
    _say_left_out(unpacked["left_out"])
    added = f", {counted(unpacked['added'], 'file')} added to them" if unpacked["added"] else ""
    print(
        f"{unpacked['directory']}: {counted(len(unpacked['new']), 'run')} unpacked, {len(unpacked['equal'])} there "
        f"already{added}"
    )
    print(f"next: scaling status STUDY --out {out}, by the study file that the bundles were packed with")


@app.command()
@with_options
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle, or the directory of a study, OUT/STUDY.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another of the same study.")],
    only: Only = None,
    plugin: Plugins = None,
    curves: Annotated[bool, typer.Option("--curves", help="Print the held-out curves side by side.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw both curves of every run on a page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the runs that two machines both trained. Prints losses, curves and devices, in units of seed noise."""
    from arch.arguments import file_to_write
    from arch.registry import load_plugins

    from ..stages.bundle_compare import compare_stage

    page_to_write(plot)
    file_to_write(plot, "--plot")
    load_plugins(plugin or ())
    comparison = compare_stage((a, b), only, sys.stderr)
    if plot is not None:
        from analysis.repeats.page import comparison_page

        if not comparison.repeats:
            raise InputError(f"--plot {plot}: no run was trained twice, so there is nothing to draw")
        write_option_file(
            "--plot",
            plot,
            comparison_page(comparison.repeats, comparison.study, side_lines(comparison), comparison.noise_of),
        )
        tell(f"drawn: {plot}")
    if as_json:
        return print_json(comparison.to_dict())
    for line in comparison_lines(comparison, curves):
        print(line)


def _say_left_out(left_out: dict[str, Any]) -> None:
    if left_out:
        print(f"left out: {counted(len(left_out), 'run that is', 'runs that are')} not finished")
    for name, why in list(left_out.items())[:SHOWN]:
        print(f"  {name}: {why}")
    if len(left_out) > SHOWN:
        print(f"  and {len(left_out) - SHOWN} more (--json names all)")


def comparison_lines(comparison: Comparison, curves: bool) -> list[str]:
    """What trained both sides, the table of runs, with `curves` their curves, what is not compared, and a summary."""
    from analysis.repeats.compare import curve_rows, run_rows, short, sum_lines, unit_of_repeats

    lines = [f"study {comparison.study}: {counted(len(comparison.repeats), 'run')} trained in both A and B"]
    if comparison.repeats:
        lines += [*side_lines(comparison), "", rows_table(run_rows(comparison.repeats)), ""]
    for repeat in comparison.repeats if curves else ():
        if not repeat.is_bit_equal:
            lines += [
                f"{short(repeat.name)}: held-out loss in {unit_of_repeats([repeat])}",
                rows_table(curve_rows(repeat)),
                "",
            ]
    if comparison.copies:
        lines += [f"copies: {counted(len(comparison.copies), 'run')} of the same training in both, only counted"]
    lines += _named("only in A", comparison.only_a) + _named("only in B", comparison.only_b)
    lines += _named("of other settings (spec_hash)", comparison.other_settings)
    lines += [
        line for name, why in comparison.not_compared.items() for line in wrapped([f"not compared: {name}: {why}"])
    ]
    return [*lines, *wrapped(sum_lines(comparison.repeats, comparison.noise_of))]


def side_lines(comparison: Comparison) -> list[str]:
    """What trained the runs of A and of B, and with which versions."""
    return [
        _made("A", comparison.a),
        _made("B", comparison.b),
        _versions(comparison.a["versions"], comparison.b["versions"]),
    ]


def _made(name: str, side: dict[str, Any]) -> str:
    devices = (
        ", ".join(f"{device} ({counted(n, 'run')})" for device, n in side["devices"].items()) or "devices not recorded"
    )
    days = " to ".join(side["trained"]) or "day not recorded"
    commits = ", ".join(commit.strip()[:12] for commit in side["git_commits"]) or "not recorded"
    return f"{name}: {side['path']}: {devices}, {days}, commit {commits}"


def _versions(a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    names = list(dict.fromkeys([*a, *b]))
    versions = {name: tuple(" or ".join(side.get(name, ["none"])) for side in (a, b)) for name in names}
    differ = {name: pair for name, pair in versions.items() if pair[0] != pair[1]}
    if not differ:
        return f"versions: the same ({', '.join(f'{name} {pair[0]}' for name, pair in versions.items())})"
    each = "; ".join(f"{name} {version} in A, {other} in B" for name, (version, other) in differ.items())
    return f"versions: {each}; the others are the same"


def _named(what: str, names: Collection[str]) -> list[str]:
    from analysis.repeats.compare import short

    if not names:
        return []
    shown = ", ".join(short(name) for name in list(names)[:SHOWN])
    more = f" and {len(names) - SHOWN} more (--json names all)" if len(names) > SHOWN else ""
    return wrapped([f"{what}: {counted(len(names), 'run')}: {shown}{more}"])
