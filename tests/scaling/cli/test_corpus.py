"""A corpus that is impossible is refused by every dry run, as by `scaling data`, and `plan` warns of it."""

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path
from types import ModuleType

import pytest

from arch.errors import InputError
from scaling.cli.main import app, main
from scaling.study.spec import load_study
from tests.commands import refused

DRY_RUNS = (["run", "--dry-run"], ["train", "--dry-run"], ["submit"])
SUBMIT = ["submit", "--dry-run", "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}"]  # for which the text may come later
STUDY = """
name: s
out: HERE/out
corpus: {source: HERE/text.jsonl, validation_fraction: 0.1}
grid: {archs: [tnl], sizes: [14k]}
model: {context_length: 64}
training: {n_tokens: 25600, batch_tokens: 256}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    lines = [json.dumps({"text": f"Text number {i} of some words. " * 30}) for i in range(40)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "binary").write_bytes(b"\0\1\2" * 9000)
    (tmp_path / "s.yaml").write_text(STUDY.replace("HERE", str(tmp_path)))
    return tmp_path / "s.yaml"


REFUSED = [
    ("corpus.source=HERE/nowhere", "nowhere' does not exist"),
    ("corpus.text_key=txt", "text.jsonl line 1 has no key 'txt' (did you mean 'text'?)"),
    ("corpus.source=HERE/binary", "no usable text in"),
    ("training.n_tokens=130000000", "holds at most"),
    ("corpus.tokenizer=cl100k_base", "rank file"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_data_would_refuse(
    change: str, message: str, study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change = change.replace("HERE", str(study.parent))
    if "cl100k" in change:  # a folder without the file, and no network
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(study.parent / "none"))
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        from data.tokenizer.choose import _built_in

        _built_in.cache_clear()
        import tiktoken.registry

        monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    for command in DRY_RUNS:
        with refused(message):
            app([command[0], str(study), *command[1:], "--set", change], standalone_mode=False)
    app([SUBMIT[0], str(study), *SUBMIT[1:], "--set", change], standalone_mode=False)
    assert message in capsys.readouterr().err
    app(["plan", str(study), "--set", change, "--json"], standalone_mode=False)
    assert message in json.loads(capsys.readouterr().out)["warnings"][-1]
    assert not (study.parent / "out").exists()


TOKENIZERS = [
    ("gpt3", "unknown tokenizer 'gpt3' (did you mean 'gpt2'?)"),
    ("bpe:256", "'bpe:256' is not bpe:V with V from 257"),
    ("HERE/nowhere.json", "nowhere.json cannot be read (No such file or directory)"),
    ("HERE/text.json", "text.json is no tokenizer.json of Hugging Face's tokenizers"),
    ("bpe:30000", "set bpe:"),
]


@pytest.mark.parametrize(("tokenizer", "message"), TOKENIZERS)
def test_tokenizers_that_cannot_be(
    tokenizer: str, message: str, study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (study.parent / "text.json").write_text("[1]")
    change = f"corpus.tokenizer={tokenizer.replace('HERE', str(study.parent))}"
    monkeypatch.setattr("sys.argv", ["scaling", "data", str(study), "--set", change])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1
    assert not list((study.parent / "out").rglob("*.*"))


def test_a_study_of_a_cluster_is_submitted_next(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What training takes on this machine is not what its reader asks for."""
    for command in ("plan", "status"):
        app([command, str(study), *SUBMIT[2:]], standalone_mode=False)
        shown = capsys.readouterr().out
        assert "next: scaling submit " in shown and "is expected to take" not in shown
        app([command, str(study)], standalone_mode=False)
        assert "next: scaling run " in capsys.readouterr().out


def test_text_that_is_likely_too_little_is_a_warning(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n_tokens, warned in ((25600, False), (34816, True)):  # of 36,000 bytes, a tenth held out
        app(["run", str(study), "--dry-run", "--json", "--set", f"training.n_tokens={n_tokens}"], standalone_mode=False)
        assert ("but the text probably has about" in str(json.loads(capsys.readouterr().out)["warnings"])) is warned
    app(["run", str(study), "--dry-run", "--set", "training.n_tokens=100000", "--set", "corpus.epochs=5"],
        standalone_mode=False)  # fmt: skip


@pytest.mark.parametrize("pack", [gzip, lzma, bz2])
def test_too_little_text_is_seen_in_compressed_files_too(
    pack: ModuleType, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study.parent / "packed text"
    folder.mkdir()
    for i in range(2):
        (folder / f"{i}.jsonl.packed").write_bytes(pack.compress((study.parent / "text.jsonl").read_bytes()))
    words = ["--set", f"corpus.source={folder}"]
    for n_tokens, warned in ((60_000, False), (68_000, True)):  # twice 36,000 bytes and their keys, a tenth held out
        app(["plan", str(study), *words, "--set", f"training.n_tokens={n_tokens}"], standalone_mode=False)
        assert ("but the text probably has about" in capsys.readouterr().out) is warned
    app(["plan", str(study), *words, "--set", "training.n_tokens=200000"], standalone_mode=False)
    assert "warning: no run can begin" in capsys.readouterr().out


def test_more_held_out_tokens_than_the_text_can_hold_are_refused(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(n_tokens: int, *more: str) -> None:
        changes = ("corpus.validation_fraction=null", f"corpus.validation_tokens={n_tokens}", *more)
        sets = [word for change in changes for word in ("--set", change)]
        app(["run", str(study), "--dry-run", "--json", *sets], standalone_mode=False)

    with pytest.raises(InputError, match=r"corpus\.validation_tokens: 90,000 tokens are asked for, and the text holds"):
        run(90_000)
    run(33_000, "corpus.max_bytes=30000")  # every document has an end-of-text token too
    assert "but the text probably has about 0" in str(json.loads(capsys.readouterr().out)["warnings"])


def test_a_corpus_that_is_there_is_asked_for_its_tokens(study: Path) -> None:
    app(["data", str(study)], standalone_mode=False)
    (study.parent / "text.jsonl").unlink()  # nobody reads it again
    before = sorted((path, path.stat().st_mtime_ns) for path in (study.parent / "out").rglob("*"))
    for change, message in (("training.n_tokens=60000", "is too small: "), ("corpus.seed=5", "of other settings")):
        for command in DRY_RUNS:
            with pytest.raises(InputError, match=message):
                app([command[0], str(study), *command[1:], "--set", change], standalone_mode=False)
    app(["run", str(study), "--dry-run"], standalone_mode=False)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (study.parent / "out").rglob("*"))


def test_files_that_were_touched_since_are_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def warnings() -> str:
        capsys.readouterr()
        app(["run", str(study), "--dry-run", "--json"], standalone_mode=False)
        return " ".join(json.loads(capsys.readouterr().out)["warnings"])

    app(["data", str(study)], standalone_mode=False)
    text, changed = study.parent / "text.jsonl", "its files have changed since the corpus was made, or are others"
    assert changed not in warnings()
    os.utime(text, ns=(1, 1))
    assert changed in warnings()
    app(["data", str(study)], standalone_mode=False)  # the same text: noted again
    assert changed not in warnings()
    text.write_text(text.read_text() + json.dumps({"text": "One more."}) + "\n")
    assert changed in warnings()
    with pytest.raises(InputError, match=r"has changed since .*text\.jsonl differs"):
        app(["data", str(study)], standalone_mode=False)


def test_few_held_out_documents_are_a_warning(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--set", "corpus.validation_fraction=null", "--set", "corpus.validation_tokens=100"]
    app(["data", str(study), *few], standalone_mode=False)
    assert "only 1 document held out, so the held-out loss says little about other text" in capsys.readouterr().out


def test_what_is_left_out_is_counted(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = study.with_name("text.jsonl")
    lines = text.read_text().splitlines()
    text.write_text("\n".join([*lines, lines[0], "{}", "{}"]) + "\n")
    app(["data", str(study)], standalone_mode=False)
    assert " (left out: 1 duplicate, 2 invalid records); " in capsys.readouterr().out


def test_status_counts_pairs_of_a_checkpoint_and_a_task(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def row(*sets: str) -> dict[str, int | None]:
        words = [word for change in sets for word in ("--set", change)]
        app(["status", str(study), "--json", *words], standalone_mode=False)
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        return {name: run[name] for name in ("evaluated", "to_evaluate")}

    steps = load_study(study).runs()[0].checkpoint_steps
    for step in steps:
        folder = study.parent / f"out/s/runs/tnl-14k-c64-s0/evals/{step:08d}"
        folder.mkdir(parents=True)
        for name in ("validation.json", "lambada.json", "piqa.failed"):
            (folder / name).write_text("{}")
    assert row() == {"evaluated": len(steps), "to_evaluate": len(steps)}
    tasks = "evaluation.tasks=[piqa, lambada]"
    assert row(tasks) == {"evaluated": 2 * len(steps), "to_evaluate": 3 * len(steps)}
    assert row("evaluation.tasks=[piqua]")["to_evaluate"] is None
    app(["status", str(study), "--set", tasks], standalone_mode=False)
    assert f" {2 * len(steps)}/{3 * len(steps)} " in capsys.readouterr().out


def test_a_known_entropy_rate_of_the_text_is_printed(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `scaling data` and in the manifest; a source that cannot be is refused, and the plan says so."""
    app(["data", str(study), "--set", "corpus.source=powerlaw:0:60000"], standalone_mode=False)
    line = "entropy rate of the text, by its source: 1.0103 nats/byte, ends of documents counted; 1.4589 bits/byte"
    assert line in " ".join(capsys.readouterr().out.split())
    manifest = json.loads((study.parent / "out" / "s" / "corpus" / "manifest.json").read_text())
    assert "entropy_rate" in manifest
    wrong = ["--set", "corpus.source=powerlaw:0:60000:9"]
    app(["plan", str(study), *wrong], standalone_mode=False)
    assert "zipf 9: give 1.1" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InputError, match=r"corpus\.source: 'powerlaw:0:60000:9': zipf 9"):
        app(["data", str(study), *wrong], standalone_mode=False)
