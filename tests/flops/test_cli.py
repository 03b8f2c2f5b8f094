"""The `flops` command as a user runs it: exit status and output."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from arch.presets import preset
from flops import (
    CONVENTIONS,
    checkpoint_bytes,
    conventions_of,
    cost_table,
    count_params,
    decode_state,
    train_flops_per_token,
    training_memory,
)
from scaling.cli.flops import main
from tests.commands import in_this_process


def flops(*args: str, columns: int | None = None) -> subprocess.CompletedProcess[str]:
    return in_this_process(main, *args, columns=columns)


def must(*args: str, **options) -> str:
    result = flops(*args, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows_of(*args: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(must(*args, "--format", "csv"))))


@pytest.mark.parametrize(
    "words", [["--help"], ["count", "--arch", "tnl", "--size", "7b", "--json"]], ids=lambda w: w[0]
)
def test_help_and_counts_import_nothing_heavy(words):
    code = (
        f"import sys, runpy; sys.argv = ['flops', *{words}]\n"
        f"try: runpy.run_module('scaling.cli.flops', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: assert not end.code\n"
        "bad = {'torch', 'numpy', 'transformers', 'pandas', 'rich'} & sys.modules.keys(); assert not bad, bad"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_console_script_has_every_command():
    listed = must("--help")
    assert all(f"\n  {name} " in listed for name in ("table", "count", "memory", "size", "budget", "study"))


def test_count_json():
    report = json.loads(must("count", "--arch", "hgrn2", "--size", "410m", "--context", "4096", "--json"))
    cfg = preset("hgrn2", "410m", context_length=4096)
    cost = cost_table(cfg)
    assert {name: report[name] for name in cost if name.startswith("n_")} == {
        k: v for k, v in cost.items() if k[:2] == "n_"
    }
    assert report["flops_per_token_train"] == {name: train_flops_per_token(cfg, name) for name in CONVENTIONS}
    assert sum(report["n_params_by_module"].values()) == report["n_params"]
    printed = must("count", "--arch", "tnl", "--size", "7b", "--convention", "6nd")
    assert "6,509,559,808" in printed and "39,057,358,848" in printed and "exact" not in printed


def test_count_reads_the_papers_names_and_a_free_shape_is_the_preset():
    """25 layers, width 1024: g, heads, gate and Tpe follow from the width."""
    asked = ["--arch", "cos2", "--layers", "25", "--dim", "1024", "--json"]
    free = json.loads(must("count", *asked))
    assert free["model"] == preset("cosformer2", "410m").to_dict()
    assert free | {"size": "410m"} == json.loads(must("count", "--arch", "COSFORMER2", "--size", "410M", "--json")) | {
        "size": "410m"
    }


def test_every_option_of_a_shape():
    options = ["--layers", "3", "--dim", "96", "--heads", "6", "--ffn", "256", "--vocab", "1_000", "--context", "77"]
    more = ["--set", "norm=layer", "--set", "tie_embeddings=false", "--set", "rope_base=5e5"]
    model = json.loads(must("count", "--arch", "llama", *options, *more, "--json"))["model"]
    assert (model["n_layers"], model["d_model"], model["n_heads"], model["d_ffn"]) == (3, 96, 6, 256)
    assert (model["vocab_size"], model["context_length"]) == (1000, 77)
    assert (model["norm"], model["tie_embeddings"], model["rope_base"]) == ("layer", False, 5e5)


def test_a_model_without_heads_has_any_width():
    """A width that is no multiple of 128 asks for --heads only where there are some."""
    model = json.loads(must("count", "--arch", "hgrn1", "--layers", "3", "--dim", "1000", "--json"))["model"]
    assert (model["n_layers"], model["d_model"]) == (3, 1000)


def test_batch_tokens_and_recompute():
    args = ["count", "--arch", "llama", "--size", "410m", "--batch-tokens", "0.5M", "--recompute", "layers", "--json"]
    report = json.loads(must(*args))
    model, hardware = report["flops_per_token_train"], report["hardware_flops_per_token_train"]
    assert report["flops_per_step_train"] == {name: flop * 500_000 for name, flop in model.items()}
    assert set(hardware) == {"executed", "exact"}
    assert all(model[name] < flop < 4 / 3 * model[name] for name, flop in hardware.items())  # less than a forward pass


@pytest.mark.parametrize("arch", ["llama", "cosformer2", "mamba1"])
def test_by_module_sums_to_the_count(arch):
    cfg = preset(arch, "410m")
    rows = rows_of("count", "--arch", arch, "--size", "410m", "--by", "module")
    *parts, total = rows
    assert total["module"] == "total" and int(total["n_params"]) == count_params(cfg).total
    assert sum(int(row["n_params"] or 0) for row in parts) == int(total["n_params"])
    for name in conventions_of(cfg):
        count = train_flops_per_token(cfg, name)
        assert sum(float(row[name] or 0) for row in parts) == pytest.approx(count, rel=1e-12)
        assert float(total[name]) == pytest.approx(count, rel=1e-12)


def test_csv_json_markdown_and_latex_say_the_same():
    args = ["size", "--arch", "hgrn2", "--params", "410M"]
    in_json, in_csv = json.loads(must(*args, "--json"))["rows"], rows_of(*args)
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in in_json] == in_csv
    lines = must(*args, "--format", "md").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| hgrn2")]
    assert [[row[1], row[2].replace(",", "")] for row in cells] == [[r["n_layers"], r["d_model"]] for r in in_csv]
    lines = must(*args, "--format", "latex").splitlines()
    in_latex = [
        line.removesuffix(r" \\").replace(r"\%", "%").split(" & ") for line in lines if line.startswith("hgrn2 & ")
    ]
    assert [[cell.replace("$-$", "-") for cell in row] for row in in_latex] == cells
    modules = must("count", "--arch", "tnl", "--size", "7b", "--by", "module", "--format", "latex").splitlines()
    rules = [i for i, line in enumerate(modules) if line == r"\midrule"]
    assert [line.startswith("total & ") for line in modules].index(True) == rules[1] + 1


COMMANDS = [
    ["table"],
    ["table", "--as-printed"],
    ["table", "--convention", "all"],
    ["count", "--arch", "cosformer2", "--size", "7b", "--batch-tokens", "4M", "--recompute", "layers"],
    ["count", "--arch", "cosformer2", "--size", "7b", "--by", "module"],
    ["size", "--arch", "tnl", "--params", "1.3B"],
    ["match", "llama-7b"],
    ["budget", "--compute", "1e30", "--extrapolate"],
    ["study", "paper", "--gpus", "64"],
    ["memory", "--arch", "llama", "--size", "7b"],
]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_tables_fit_the_terminal_and_cut_nothing_off(args, columns):
    lines = must(*args, columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["count", "--arch", "hgrn", "--size", "7b"], "did you mean 'hgrn2'?"),
        (["count", "--arch", "tnl", "--size", "7b", "--convention", "exat"], "did you mean 'exact'?"),
        (["count", "--arch", "hgrn1", "--size", "7b", "--convention", "paper"], "'paper' has no formula for hgrn1"),
        (["count", "--arch", "tnl", "--size", "7b", "--context", "8k"], "multiple of 1000 or of 1024"),
        (["count", "--arch", "tnl"], "which size of tnl? Give --layers and --dim, or --size"),
        (["count", "--arch", "tnl", "--layers", "3", "--dim", "1000"], "not a multiple of 128: give --heads"),
        (
            ["count", "--arch", "tnl", "--layers", "3", "--dim", "1024", "--heads", "7"],
            "not divisible by model.n_heads=7",
        ),
        (["count", "--arch", "tnl", "--size", "7b", "--set", "tie_embeddings=no"], "must be true or false, not 'no'"),
        (["count", "--arch", "tnl", "--size", "7b", "--by", "layer"], "--by: unknown 'layer'"),
        (["count", "--arch", "tnl", "--size", "7b", "--format", "md", "--json"], "leave one out"),
        (
            ["count", "--arch", "tnl", "--size", "7b", "--set", "n_layers=5", "--layers", "6"],
            "--layers 6: leave one out",
        ),
        (
            ["memory", "--arch", "tnl", "--size", "7b", "--micro-batch-tokens", "8193"],
            "not a multiple of a sequence's 8192",
        ),
        (["size", "--arch", "tnl", "--params", "1B", "--convention", "all"], "exact, 6nd, 6nd_total here, not all"),
        (["count", "--arch", "mamba2", "--size", "7b", "--ffn", "4096"], "--ffn: mamba2 has no MLP"),
        (["count", "--arch", "hgrn1", "--size", "70m", "--heads", "64"], "--heads: hgrn1 has no heads: leave it out"),
        (["table", "--as-printed", "--convention", "exact"], "leave --convention out"),
        (["size", "--arch", "tnl"], "give one"),
        (
            ["size", "--arch", "tnl", "--params", "1B", "--budget", "1e20", "--tokens", "1B"],
            "not --params and --budget at once",
        ),
        (["size", "--arch", "tnl", "--params", "1k"], "the smallest that tnl has on the grid: give a larger target"),
        (["size", "--arch", "tnl", "--budget", "1e22"], "belong together"),
        (["size", "--arch", "tnl", "--params", "1B", "--aspect", "32"], "write it as 32:160"),
        (["match", "llama-411m"], "did you mean '410m'?"),
        (["budget", "--compute", "179"], "FLOP or PF-days? Give --unit flop or --unit pfday"),
        (["budget", "--compute", "1e22", "--law", "nowhere.json"], "nowhere.json: does not exist"),
        (["budget", "--compute", "1e22", "--arch", "mamba2"], "which has llama, tnl, hgrn2, cosformer2"),
        (["study", "quickstrt"], "no such study file"),
        (["study", "paper", "--mfu", "40"], "more than 1"),
        (["cuont"], "Did you mean 'count'?"),
        (["table", "--jsn"], "--json"),
        ([], "no command was given; --help lists them"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args, message):
    result = flops(*args)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_another_process_ends_the_same_way():
    words = ["count", "--arch", "tnl", "--size", "7c"]
    command = [sys.executable, "-m", "scaling.cli.flops", *words]
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: unknown size '7c' (did you mean '7b'?)\n"


def test_memory():
    """The lines sum to the total, and are those of the Python functions."""
    model = ["memory", "--arch", "hgrn2", "--size", "410m"]
    args = [*model, "--gpus", "4", "--micro-batch-tokens", "16384", "--recompute"]
    memory = json.loads(must(*args, "--json"))
    cfg, lines = preset("hgrn2", "410m"), memory["training_bytes_per_gpu"]
    wanted = training_memory(cfg, micro_batch_tokens=16_384, zero_stage=1, world_size=4, recompute=True)
    assert lines == wanted and sum(lines.values()) == pytest.approx(2 * lines["total"])
    assert memory["disk_bytes"]["checkpoint_bf16"] == checkpoint_bytes(cfg, "bf16")
    assert memory["decode_state_bytes"]["131072"] == decode_state(cfg, 131_072, 2)["bytes"]
    assert {(row["what"], float(row["bytes"])) for row in rows_of(*args)} >= set(lines.items())
    plain = json.loads(must(*args, "--plain", "--json"))
    wanted = training_memory(cfg, micro_batch_tokens=16_384, world_size=4, recompute=True, kernels=False)
    assert plain["training_bytes_per_gpu"] == wanted != lines and (memory["kernels"], plain["kernels"]) == (True, False)
    assert "with the Triton kernels" in must(*args) and "without Triton kernels" in must(*args, "--plain")
    assert must("memory", "--arch", "tnl", "--size", "38k", "--precision", "fp32", "--zero-stage", "0")
    parts = json.loads(must(*args, "--sequence-processes", "2", "--json"))
    wanted = training_memory(cfg, micro_batch_tokens=16_384, world_size=4, recompute=True, sequence_processes=2)
    assert parts["training_bytes_per_gpu"] == wanted != lines
    assert "on 4 GPUs, 2 of which share a sequence," in must(*args, "--sequence-processes", "2")
    for options, message in (
        (["--zero-stage", "4"], "zero_stage must be 0, 1, 2 or 3"),
        (["--precision", "fp16"], "did you mean 'bf16'?"),
        (["--micro-batch-tokens", "100"], "less than one sequence"),
        (["--gpus", "1e9"], "too large"),
    ):
        result = flops("memory", "--arch", "tnl", "--size", "410m", *options)
        assert result.returncode == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_a_full_disk_and_a_reader_that_left_are_no_tracebacks():
    command = [sys.executable, "-m", "scaling.cli.flops", "table", "--format", "json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: standard output: No space left on device; free some space and run it again\n"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode != 0 and done.stderr == ""
