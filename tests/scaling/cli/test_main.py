"""The command line as its users meet it: quick to answer, one line for a mistake, 2 for bad input."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from scaling.cli import main as command_line
from scaling.cli.flops import app as flops_app
from scaling.cli.main import app as scaling_app
from scaling.cli.main import main
from tests.commands import in_this_process
from tests.surroundings import ROOT

STUDY = """
name: tiny
corpus: {source: "synthetic:0:60000"}
grid: {archs: [llama, tnl], sizes: [14k]}
model: {context_length: 64}
training: {n_tokens: 2560, batch_tokens: 256, lr: 3e-3}
"""


def scaling(*arguments):
    return in_this_process(main, *arguments)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(STUDY)
    return path


def test_ctrl_c_during_the_imports_is_one_line():
    code = (
        "import sys\nclass Interrupted:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'scaling.cli.main':\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\nfrom scaling.__main__ import main\nmain()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_a_file_of_the_working_folder_is_no_module_of_the_processes_that_train(study, tmp_path):
    """-P: as the console script, which does not look for modules in that folder either."""
    study.write_text(STUDY.replace("llama, tnl", "llama"))
    (tmp_path / "numpy.py").write_text("from pathlib import Path\nPath('IT-RAN').touch()\nraise ImportError")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").touch()
    code = "import sys\nsys.argv = ['scaling', 'train', 'tiny.yaml']\nfrom scaling.__main__ import main\nmain()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0 and not (tmp_path / "IT-RAN").exists(), result.stdout + result.stderr


def test_commands_are_there():
    text = scaling("--help").stdout
    for command in ("run", "plan", "data", "train", "eval", "fit", "report", "status", "generate", "inspect", "export"):
        assert f"  {command} " in text
    assert "--set" in scaling("train", "--help").stdout


@pytest.mark.parametrize("app", [scaling_app, flops_app], ids=["scaling", "flops"])
def test_every_command_has_a_short_help_and_the_commands_a_version(app):
    assert re.fullmatch(r"linear-scaling \S+\n", CliRunner().invoke(app, ["--version"]).stdout)
    every = [[]]
    for name, command in get_command(app).commands.items():
        every += [[name], *([name, subcommand] for subcommand in getattr(command, "commands", {}))]
    for words in every:
        short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
        assert short.exit_code == 0 and short.stdout == long.stdout and "Usage: " in short.stdout


def test_the_list_of_commands_says_what_each_says_itself():
    for name, command in get_command(scaling_app).commands.items():
        about = command_line.COMMANDS[name][2]
        assert command.hidden or " ".join(command.help.split()).startswith(about) or about.rstrip(".") in command.help


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--help"], set()),
        *((["plan", study], {"numpy", "pydantic", "yaml"}) for study in ("four-architectures", "paper")),
    ],
    ids=lambda given: " ".join(sorted(given)) if isinstance(given, set) else " ".join(given),
)
def test_help_and_plan_load_nothing_heavy(words, allowed):
    """The corpus is looked at by the data package, and a study's tasks by their own modules, which read numpy."""
    code = (
        f"import sys\nsys.argv = ['scaling', *{words}]\nimport scaling.cli.main\n"
        "try:\n    scaling.cli.main.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stderr.split())
    heavy = {"torch", "deepspeed", "transformers", "pandas", "plotly", "scipy", "numpy", "pydantic", "yaml", "rich"}
    assert not (loaded & heavy) - allowed


def test_status_says_where_it_looked_when_nothing_is_there(study, tmp_path):
    """A study that was run in another folder shows all runs as waiting: `out` counts from where the command runs."""
    result = scaling("status", study, "--out", tmp_path / "elsewhere")
    assert result.returncode == 0
    computed = f"nothing of this study is in {tmp_path}/elsewhere/tiny yet (--out says where else)"
    assert result.stdout.splitlines()[-2] == computed
    (tmp_path / "elsewhere" / "tiny").mkdir(parents=True)
    assert "nothing of this study" not in scaling("status", study, "--out", tmp_path / "elsewhere").stdout


def test_plan_json(study):
    result = scaling("plan", study, "--json", "--only", "arch=tnl", "--set", "training.lr=1e-3")
    table = json.loads(result.stdout)
    assert [row["run_id"] for row in table["runs"]] == ["tnl-14k-c64-s0-lr0.001"]
    assert table["study"] == "tiny" and table["sets"] == ["training.lr=1e-3"] and table["totals"]["n_runs"] == 1


@pytest.mark.parametrize("command", ["run", "plan", "data", "train", "eval study", "fit study", "report", "status"])
def test_every_command_tells_a_mistake_in_one_line(command, study, tmp_path):
    study.write_text(STUDY.replace("archs: [llama, tnl]", "archs: [lama, tnl]"))
    result = scaling(*command.split(), study, "--out", tmp_path / "out")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")
    assert "tiny.yaml" in result.stderr and "did you mean 'llama'?" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command was given; --help lists them"),
        (["eval"], "no command was given; --help lists them"),
        (["plan"], "STUDY"),
        (["plan", "no-such-study"], "no such study file"),
        (["plam", "four-architectures"], "plam"),
        (["fit", "four-architectures"], "No such command 'four-architectures'. fit has study, runs, table"),
        (["plan", "four-architectures", "--onyl", "arch=tnl"], "--only"),
        (["plan", "four-architectures", "--only", "arch=mamba"], "this study has llama, tnl, hgrn2, cosformer2"),
        (["plan", "four-architectures", "--only", "arch"], "--only arch: write it as key=value"),
        (["plan", "four-architectures", "--set", "training.lrr=1"], "did you mean 'lr'?"),
        (["plan", "four-architectures", "--set", "training.merge_last=1"], "'training.merge_last' (valid: n_tokens, "),
        (["plan", "four-architectures", "--set", "evaluation.tasks=[perplexityy]"], "did you mean 'perplexity'?"),
        (["train", "four-architectures", "--set", "evaluation.tasks=[perplexityy]"], "did you mean 'perplexity'?"),
        (["train", "four-architectures", "--dry-run", "--set", "evaluation.tasks=[piqaa]"], "did you mean 'piqa'?"),
        (["eval", "study", "four-architectures", "--tasks", " , "], "--tasks: names no task"),
        (["eval", "fetch", __file__], f"{__file__}: is a file; give a folder"),
        (["recall", "small", "--out", __file__], f"{__file__}/recall-small: cannot be written (Not a directory)"),
        (["plan", "four-architectures", "--set", "model.n_heads=5"], "not divisible"),
        (["status", "four-architectures", "--only", "size=1t"], "size=1t"),
    ],
)
def test_bad_arguments(arguments, message):
    result = scaling(*arguments)
    assert result.returncode == 2 and message in result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "corpus.source=nowhere.txt",
            "tiny.yaml --set corpus.source=nowhere.txt: corpus.source: 'nowhere.txt'",
        ),
        ("corpus.source=[]", "corpus.source"),
        ("corpus.validation_tokens=1e9", "corpus.validation_tokens: 1,000,000,000 are more than"),
        ("grid.seeds=[0, -1]", "grid.seeds.1: must be greater than or equal to 0"),
    ],
)
def test_a_corpus_that_cannot_be_leaves_nothing_behind(study, tmp_path, change, message):
    result = scaling("run", study, "--out", tmp_path / "out", "--set", change)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_corpus_too_small_says_how_much_is_missing(study, tmp_path):
    result = scaling("data", study, "--out", tmp_path / "out", "--set", "training.n_tokens=100000")
    assert result.returncode == 2 and "short" in result.stderr and "corpus.epochs" in result.stderr
    again = [*("data", study, "--out", tmp_path / "out", "--set", "training.n_tokens=100000")]
    assert scaling(*again, "--set", "corpus.epochs=3").returncode == 0


def test_a_validation_split_too_short_to_evaluate_is_told_before_anything_is_trained(study, tmp_path):
    long = [f"--set={name}=4096" for name in ("model.context_length", "training.batch_tokens", "training.n_tokens")]
    result = scaling("run", study, "--out", tmp_path / "out", *long)
    assert result.returncode == 2 and "too few for one window of context_length=4096" in result.stderr
    assert result.stderr.count("\n") == 1 and not (tmp_path / "out/tiny/runs").exists()


@pytest.mark.parametrize("command", ["fit study", "report"])
def test_fit_and_report_leave_variants_alone(study, tmp_path, command):
    result = scaling(*command.split(), study, "--out", tmp_path / "out", "--set", "training.lr=1e-2")
    assert result.returncode == 2 and "not variants" in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "out/tiny/results").exists()


@pytest.mark.parametrize("command", ["fit study", "report"])
def test_a_study_of_which_nothing_has_trained_is_refused_and_left_alone(study, tmp_path, command):
    result = scaling(*command.split(), study, "--out", tmp_path / "out")
    assert result.returncode == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    assert (
        f"no run has trained, so there is nothing to fit or to report: `scaling train {study}` first" in result.stderr
    )
    assert not (tmp_path / "out").exists()


def test_another_corpus_in_the_directory_is_refused(study, tmp_path):
    out = ("--out", tmp_path / "out")
    assert scaling("data", study, *out).returncode == 0
    manifest = (tmp_path / "out/tiny/corpus/manifest.json").read_bytes()
    result = scaling("data", study, *out, "--set", "corpus.seed=1")
    assert result.returncode == 2 and "other settings" in result.stderr
    assert (tmp_path / "out/tiny/corpus/manifest.json").read_bytes() == manifest


def test_dry_run_and_status_write_nothing(study, tmp_path):
    for arguments in (["run", "--dry-run"], ["train", "--dry-run"], ["status"]):
        result = scaling(arguments[0], study, *arguments[1:], "--out", tmp_path / "out")
        assert result.returncode == 0 and "tnl-14k-c64-s0" in result.stdout
    assert "would train 2 of 2 runs" in scaling("train", study, "--dry-run", "--out", tmp_path / "out").stdout
    assert not (tmp_path / "out").exists()


def test_prepare_writes_the_runs_and_prints_their_commands(study, tmp_path):
    result = scaling("train", study, "--prepare", "--json", "--out", tmp_path / "out", "--set", "jobs.processes=2")
    commands = json.loads(result.stdout)["commands"]
    assert len(commands) == 2 and all("torch.distributed.run" in line for line in commands)
    assert all((tmp_path / "out/tiny/runs" / f"{arch}-14k-c64-s0" / "run.json").exists() for arch in ("llama", "tnl"))
    assert commands[0].endswith(str(tmp_path / "out/tiny/runs/llama-14k-c64-s0"))
    alone = scaling("train", study, "--prepare", "--json", "--out", tmp_path / "out")
    commands = json.loads(alone.stdout)["commands"]
    assert len(commands) == 2 and all(line.split()[1:3] == ["-m", "scaling.trainer.process"] for line in commands)

    study.write_text(STUDY.replace("lr: 3e-3", "lr: 1e-2"))  # the same run ids, another spec
    refused = scaling("train", study, "--out", tmp_path / "out")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "was written with training.lr=0.003 (spec_hash " in refused.stderr
    assert scaling("run", study, "--out", tmp_path / "out", "--dry-run").stderr == refused.stderr


def test_an_output_directory_that_cannot_be(study, tmp_path):
    (tmp_path / "out").write_text("a file")
    result = scaling("data", study, "--out", tmp_path / "out")
    assert result.returncode == 2 and "cannot be written" in result.stderr and result.stderr.count("\n") == 1


# a least-squares problem whose sums two threads share out; its bits, and whether numpy came before the bits were fixed
BITS = """
import sys
import scaling.cli.main as main
assert "numpy" not in sys.modules
if {fixed}:
    main.fix_bits()
import numpy as np
rng = np.random.default_rng(0)
a, b = rng.standard_normal((600, 400)), rng.standard_normal((400, 500))
print((a @ b).tobytes().hex()[:20000], np.linalg.solve(b[:400, :400], a[:400]).tobytes().hex()[:20000])
print(" ".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"]))
"""


def bits(fixed: bool, threads: int) -> list[str]:
    names = ("OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", BITS.format(fixed=fixed)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split("\n")


def test_threads_do_not_change_the_bits_of_a_fit():
    numbers, registers, _ = bits(True, 1)
    assert bits(True, 2) == [numbers, registers, ""]
    assert not {"X86_V4", "AVX512_ICL", "AVX512_SPR"} & set(registers.split())
    if len(os.sched_getaffinity(0)) > 1:
        assert bits(False, 2)[0] != numbers  # so that this test could fail


def test_a_processor_without_fma_keeps_its_own_registers(monkeypatch, tmp_path):
    environment = {}
    monkeypatch.setattr(command_line.os, "environ", environment)
    monkeypatch.setattr(command_line, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(command_line.platform, "machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text("flags : fpu sse2\n")
    command_line.fix_bits()
    assert environment == {"OPENBLAS_NUM_THREADS": "1"}
    environment["OPENBLAS_NUM_THREADS"] = "3"  # somebody's own choice stays
    (tmp_path / "cpuinfo").write_text("flags : fpu fma avx2\n")
    command_line.fix_bits()
    assert environment.pop("NPY_DISABLE_CPU_FEATURES").startswith("X86_V4 ")
    assert environment == {"OPENBLAS_NUM_THREADS": "3", "OPENBLAS_CORETYPE": "Haswell"}
