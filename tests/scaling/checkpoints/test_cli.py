"""`scaling generate`, `inspect` and `export` as users call them, on an untrained checkpoint in a run directory."""

import io
import json
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from arch.console import run_app
from arch.model.decode import generate_tokens
from arch.model.lm import build_model, load_model
from data.corpus import open_corpus
from data.tokenizer import ByteTokenizer, get_tokenizer
from scaling.checkpoints.generate import SamplingOptions, TextOut, generate
from scaling.cli.main import app
from scaling.rundir import checkpoint_writer
from scaling.rundir.checkpoint_writer import probe_rows

from ..small_runs import CONTEXT, make_run

DEVICE = torch.device("cpu")


def write_checkpoint(rundir, step):
    model = build_model(rundir.spec().config, seed=step)
    probe = probe_rows(open_corpus(rundir.study / "corpus").validation, CONTEXT)
    manifest = {"step": step, "n_tokens": step * 512, "run_id": rundir.spec().run_id, "spec_hash": "x"}
    checkpoint_writer.write_checkpoint(
        rundir.checkpoint(step), model, "bf16", probe, DEVICE, manifest, get_tokenizer("bytes")
    )


@pytest.fixture(scope="module")
def rundir(tmp_path_factory):
    """A run with two checkpoints and its corpus; init_std 0.15: an untrained model that writes varied bytes."""
    run = make_run(tmp_path_factory.mktemp("out"), "hgrn2", init_std=0.15)
    for step in (3, 12):
        write_checkpoint(run, step)
    return run


@pytest.fixture
def scaling(monkeypatch, capsys):
    """The command in this process: (status, stdout, stderr); `stdin` are its bytes."""

    def call(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["scaling", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            run_app(app)
        return end.value.code, *capsys.readouterr()

    return call


def start(*arguments, **options):
    command = [sys.executable, "-m", "scaling", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_generate_streams_what_json_holds(scaling, rundir):
    checkpoint = rundir.checkpoint(12)
    status, out, err = scaling("generate", checkpoint, "def f(", "--tokens", 30, "--seed", 5)
    assert (status, err) == (0, "")
    status, printed, err = scaling("generate", checkpoint, "def f(", "--tokens", 30, "--seed", 5, "--json")
    result = json.loads(printed)
    assert status == 0 and err == "" and out == result["text"] + "\n"
    assert result["text"] == bytes(i for i in result["ids"] if i < 256).decode(errors="replace")
    assert 1 < len(result["ids"]) <= 30 and result["ended"] == (result["ids"][-1] == 256)
    model = load_model(checkpoint)
    steps = generate_tokens(model, torch.tensor([list(b"def f(")]), 30, temperature=0.8, seed=5, eos_id=256)
    assert result["ids"] == [int(token) for token in steps]
    assert scaling("generate", checkpoint, "def f(", "--tokens", 30, "--seed", 6)[1] != out


def test_a_runs_newest_checkpoint_is_taken_and_named(scaling, rundir):
    status, out, err = scaling("generate", rundir.path, "x", "--tokens", 20)
    assert status == 0 and err == f"checkpoint: {rundir.checkpoint(12)}\n"
    assert out == scaling("generate", rundir.checkpoint(12), "x", "--tokens", 20)[1]
    assert out != scaling("generate", rundir.checkpoint(3), "x", "--tokens", 20)[1]


def test_a_newer_checkpoint_that_is_damaged_is_named(scaling, rundir):
    damaged = rundir.checkpoint(100)
    shutil.copytree(rundir.checkpoint(12), damaged)
    (damaged / "model.safetensors").write_bytes(b"cut")
    status, _, err = scaling("generate", rundir.path, "x", "--tokens", 2)
    shutil.rmtree(damaged)
    assert status == 0 and err == f"checkpoint: {rundir.checkpoint(12)} (the newer {damaged.name} is damaged)\n"


def test_the_prompt_may_come_from_standard_input(scaling, rundir):
    status, out, _ = scaling("generate", rundir.path, "-", "--tokens", 20, stdin="é\n".encode())
    assert status == 0 and out == scaling("generate", rundir.path, "é\n", "--tokens", 20)[1]


@pytest.mark.parametrize("prompt_tokens", [CONTEXT - 20, CONTEXT + 30])
def test_beyond_the_context_is_a_warning_and_no_error(scaling, rundir, prompt_tokens):
    status, out, err = scaling("generate", rundir.checkpoint(3), "a" * prompt_tokens, "--tokens", 30)
    assert status == 0 and out and err.count("\n") == 1
    assert err.startswith("warning: ") and f"the {CONTEXT} tokens" in err


def test_generation_ends_at_end_of_text(rundir, capsys):
    model = load_model(rundir.checkpoint(12))
    free = generate(model, ByteTokenizer(), "x", SamplingOptions(40, temperature=0))

    class Other(ByteTokenizer):
        eot_id = free["ids"][6]

        def decode_bytes(self, ids):
            return super().decode_bytes(i for i in ids if i != self.eot_id)

    ended = generate(model, Other(), "x", SamplingOptions(40, temperature=0), sys.stdout)
    n = free["ids"].index(Other.eot_id) + 1
    assert not free["ended"] and ended["ended"] and ended["ids"] == free["ids"][:n]
    assert capsys.readouterr().out == ended["text"] + "\n"


class Terminal(io.TextIOWrapper):
    def __init__(self, is_terminal):
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.is_terminal, self.writes = is_terminal, []

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.writes.append(text)
        return len(text)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_characters_appear_whole(is_terminal):
    stream = Terminal(is_terminal)
    out = TextOut(stream)
    text = "aé€😀\t\n\x1b[31m"
    for byte in text.encode():
        out.write(bytes([byte]))
    out.write("😀".encode()[:3])  # cut by the end
    out.end()
    assert stream.writes[:4] == ["a", "é", "€", "😀"]
    assert "".join(stream.writes) == text.replace("\x1b", "\ufffd" if is_terminal else "\x1b") + "\ufffd\n"
    assert out.text == text + "\ufffd"


def test_ctrl_c_ends_with_a_newline_and_130(rundir):
    process = start("generate", rundir.checkpoint(12), "x", "--tokens", 10**7, "--temperature", 0)
    assert process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130 and out.endswith(b"\n") and b"Traceback" not in err


def test_a_reader_that_leaves_ends_it_quietly(rundir):
    process = start("generate", rundir.checkpoint(12), "x", "--tokens", 10**7, "--temperature", 0)
    assert process.stdout.read(20)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=600) == 141 and err.count(b"\n") == 1 and err.startswith(b"warning: ")


def test_help_loads_nothing_heavy():
    code = (
        "import sys, scaling.cli.main\n"
        "for command in ('generate', 'inspect', 'export'):\n"
        "    sys.argv = ['scaling', command, '--help']\n"
        "    try:\n        scaling.cli.main.main()\n    except SystemExit as end:\n        assert not end.code\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.count("CHECKPOINT") >= 3
    assert not set(result.stderr.split()) & {"torch", "transformers", "pandas", "plotly", "numpy"}


@pytest.mark.parametrize(
    ("command", "case"),
    [
        *(
            (("generate", "x"), case)
            for case in ("missing", "file", "folder", "corpus", "empty run", "run of a damaged one", "damaged")
        ),
        *((command, "lost file") for command in (("inspect",), ("export", "DIR"))),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_line(scaling, rundir, tmp_path, monkeypatch, command, case):
    monkeypatch.chdir(tmp_path)
    path, message = tmp_path / "there", "run.json"
    if case == "missing":
        message = "does not exist"
    elif case == "file":
        path.write_text("")
        message = "is a file"
    elif case == "folder":
        path.mkdir()
    elif case == "corpus":
        path, message = rundir.study / "corpus", "lists no model.safetensors"
    elif case == "empty run":
        path.mkdir()
        shutil.copy(rundir.run_json, path)
        message = "no checkpoint yet"
    elif case == "run of a damaged one":
        shutil.copytree(rundir.checkpoint(12), path / "checkpoints" / "00000012")
        (path / "checkpoints" / "00000012" / "model.safetensors").unlink()
        shutil.copy(rundir.run_json, path)
        message = "its newest checkpoint, 00000012, is damaged"
    else:
        shutil.copytree(rundir.checkpoint(12), path)
        message = "is damaged"
        if case == "damaged":
            content = bytearray((path / "model.safetensors").read_bytes())
            content[-7] ^= 1
            (path / "model.safetensors").write_bytes(content)
        else:
            (path / "tokenizer.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    status, out, err = scaling(command[0], path, *command[1:])
    assert status == 2 and out == "" and err.count("\n") == 1 and err.startswith("error: ")
    assert message in err and str(path) in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", ""], "the prompt is empty: give"),
        (["generate", "-"], "standard input is empty"),
        (["generate", "\udcff"], "no UTF-8"),
        (["generate"], "PROMPT"),
        (["generate", "x", "--tokens", "0"], "--tokens"),
        (["generate", "x", "--tokens", "many"], "--tokens"),
        (["generate", "x", "--temperature", "-1"], "--temperature"),
        (["generate", "x", "--temperature", "inf"], "temperature"),
        (["generate", "x", "--top-p", "0"], "top_p"),
        (["generate", "x", "--top-k", "-2"], "--top-k"),
        (["generate", "x", "--dtype", "fp8"], "did you mean 'fp32'?"),
        (["generate", "x", "--sed", "1"], "--seed"),
        (["inspect", "--text", "nowhere.txt"], "nowhere.txt"),
        (["inspect", "--tokens", "1"], "--tokens"),
        (["export", "DIR", "--dtype", "fp8"], "fp8"),
        (["export"], "DIR"),
    ],
)
def test_bad_arguments(scaling, rundir, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = scaling(arguments[0], rundir.checkpoint(12), *arguments[1:])
    assert status == 2 and out == "" and message in err and err.count("\n") == 1 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_names_no_tokenizer_is_one_line(rundir):
    from arch.errors import InputError
    from scaling.rundir.saved import Checkpoint

    for manifest in ({}, {"tokenizer": None}, {"tokenizer": {"name": "bytes"}}):
        with pytest.raises(InputError, match="its manifest names no tokenizer; train the run again"):
            Checkpoint(rundir.checkpoint(3), manifest).tokenizer()


def test_inspect_reads_the_studys_held_out_text(scaling, rundir, tmp_path):
    status, out, err = scaling("inspect", rundir.path, "--tokens", 640, "--out", tmp_path / "seen")
    assert status == 0 and err == f"checkpoint: {rundir.checkpoint(12)}\n"
    assert f"640 tokens of {rundir.study / 'corpus'}" in out and "median" in out
    stored = json.loads((tmp_path / "seen/gates.json").read_text())
    assert stored["run_id"] == "hgrn2-14k" and stored["step"] == 12 and stored["layers"][0]["n"] == 640 * 24


def test_inspect_of_a_text_in_json_beside_nothing(scaling, rundir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone = tmp_path / "alone"
    shutil.copytree(rundir.checkpoint(3), alone)
    status, _, err = scaling("inspect", alone)
    assert (
        status == 2
        and err == f"error: {alone}: lies in no run's directory, so it has no corpus: give a text with --text FILE\n"
    )
    (tmp_path / "text.txt").write_text("abc " * 100)
    status, out, _ = scaling("inspect", alone, "--text", "text.txt", "--json")
    result = json.loads(out)
    assert status == 0 and result["n_tokens"] == 384 and result["page"] == "inspect-hgrn2-14k-3/index.html"
    assert len(result["layers"]) == 2 and (tmp_path / result["page"]).is_file()


def test_export_writes_a_model_that_loads(scaling, rundir, tmp_path):
    status, out, _ = scaling("export", rundir.path, tmp_path / "hf", "--json", "--dtype", "fp32")
    result = json.loads(out)
    assert status == 0 and result["n_params"] == sum(p.numel() for p in load_model(tmp_path / "hf").parameters())
    status, out, err = scaling("export", rundir.checkpoint(12), tmp_path / "hf")
    assert status == 2 and "not empty" in err and out == ""
    assert "trust_remote_code" in scaling("export", rundir.checkpoint(12), tmp_path / "other")[1]
