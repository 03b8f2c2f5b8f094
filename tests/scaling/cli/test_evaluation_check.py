"""An evaluation that is impossible is refused by every command before anything runs, in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from arch.errors import InputError
from scaling.cli.evaluation import check_evaluations
from scaling.cli.main import app
from scaling.cli.request import Request
from scaling.study.spec import load_study
from tests.commands import printed

COMMANDS = (["run"], ["run", "--dry-run"], ["train"], ["train", "--dry-run"], ["submit"])
SUBMIT = ["submit", "--dry-run", "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}"]  # for which data may come later


def write(folder: Path, **evaluation: Any) -> Path:
    study = {
        "name": "s",
        "out": str(folder / "out"),
        "corpus": {"source": "synthetic:0:60000"},
        "grid": {"archs": ["tnl"], "sizes": ["14k"]},
        "model": {"context_length": 64},
        "training": {"n_tokens": 25600, "batch_tokens": 256},
        "evaluation": evaluation,
    }
    (folder / "text.txt").write_text("A sentence of some words. " * 20)
    (folder / "needle").mkdir(exist_ok=True)
    (folder / "needle/text.txt").write_text("A sentence of some words. " * 20)
    (folder / "study.yaml").write_text(yaml.safe_dump(study).replace("HERE", str(folder)))
    return folder / "study.yaml"


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"tasks": ["perplexity"], "settings": {"perplexity": {"file": "HERE/text.txt", "stride": 65}}},
     "stride 65 is larger than the window of 64 tokens"),
    ({"settings": {"perplexity": {"file": ""}}}, "evaluation.settings.perplexity: file: "),
    ({"settings": {"niah-easy": {"first_length": 900, "last_length": 800}}},
     "first_length 900 is over last_length 800"),
    ({"settings": {"niah-easy": {"n_lengths": 1e18}}}, "n_lengths: must be less than or equal to 10000"),
    ({"settings": {"extrapolate": {"n_tokens": 10**30}}}, "n_tokens: must be less than or equal to"),
    ({"settings": {"extrapolate": {"lengths": [64, 64]}}}, "evaluation.settings.extrapolate: lengths: names 64 twice"),
    ({"settings": {"extrapolate": {"lengths": []}}}, "evaluation.settings.extrapolate: lengths: "),
    ({"tasks": ["extrapolate"], "settings": {"extrapolate": {"file": "HERE/text.txt", "lengths": [2000]}}},
     "the text has 521 tokens, too few for one window of 2,000"),
    ({"tasks": ["piqa"], "settings": {"piqa": {"max_new_tokens": 64}}},
     "leaves no room for a prompt in a window of 64"),
    ({"tasks": ["niah-easy"], "data": "HERE", "settings": {"niah-easy": {"first_length": 100}}},
     "niah-easy: a length of 100 tokens leaves no room for needle, question and answer, which need "),
    ({"tasks": ["niah-easy"], "data": "HERE", "settings": {"niah-easy": {"first_length": 400, "last_length": 9000}}},
     "niah-easy: the haystack has 520 tokens and "),
    ({"tasks": ["piqua"]}, "evaluation task 'piqua' is unknown (did you mean 'piqa'?)"),
    ({"tasks": ["tests.analysis.evals.tiny_tasks:one", "tests.scaling.cli.test_evaluation_check:one"]},
     "another task has the name 'one'"),
    ({"tasks": ["tests.scaling.cli.test_evaluation_check:broken"]},
     "cannot be made (ZeroDivisionError: division by zero)"),
]  # fmt: skip


def make(name: str, place: Any) -> Any:
    from tests.analysis.evals.tiny_tasks import Tiny

    return Tiny(name, place) if name == "one" else 1 / 0


@pytest.mark.parametrize(("evaluation", "message"), CONTRADICTIONS)
def test_settings_that_cannot_be(evaluation: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, **evaluation)
    for later in (False, True):
        with pytest.raises(InputError) as error:
            check_evaluations(Request(load_study(path, own=True)), later)
        assert message in str(error.value) and "\n" not in str(error.value)


MISSING: list[tuple[dict[str, Any], str]] = [
    ({"data": "HERE/nowhere"}, "nowhere` fills one, `scaling eval list` says what it must hold"),
    ({"tasks": ["perplexity"], "data": "HERE"}, "wikitext/test.jsonl does not exist: run `scaling eval fetch"),
    ({"tasks": ["piqa"]}, "piqa: needs piqa/validation.jsonl: set the data folder"),
    ({"tasks": ["niah-easy"]}, "niah-easy: needs needle: set the data folder"),
    ({"tasks": ["perplexity"], "settings": {"perplexity": {"file": "/nowhere/at/all.txt"}}},
     "perplexity: /nowhere/at/all.txt does not exist: put it there"),
    ({"tasks": ["perplexity-b"], "settings": {"perplexity-b": {"file": "HERE/b.txt"}}}, "perplexity-b: "),
]  # fmt: skip


@pytest.mark.parametrize(("evaluation", "message"), MISSING)
def test_data_that_are_missing(evaluation: dict[str, Any], message: str, tmp_path: Path) -> None:
    request = Request(load_study(write(tmp_path, **evaluation), own=True))
    with pytest.raises(InputError) as error:
        check_evaluations(request)
    assert message in str(error.value) and "\n" not in str(error.value)
    (line,) = check_evaluations(request, data_later=True)
    assert message in line


def test_a_plan_whose_data_are_missing_does_not_name_a_command_that_refuses(tmp_path: Path) -> None:
    path = write(tmp_path, tasks=["piqa"], data="HERE/nowhere")
    assert printed("plan", path).splitlines()[-1].startswith("next: correct what the warnings say, then `scaling run ")


def test_what_a_missing_data_folder_must_hold_is_printed_by_the_command_that_is_named(tmp_path: Path) -> None:
    tasks = ["csr", "niah", "perplexity-b", "tests.analysis.evals.tiny_tasks:one"]
    settings = {"perplexity-b": {"file": "HERE/text.txt"}}
    path = write(tmp_path, tasks=tasks, settings=settings, data="HERE/nowhere")
    with pytest.raises(InputError) as error:
        check_evaluations(Request(load_study(path, own=True)))
    command = str(error.value).split("`")[3]
    assert command == "scaling eval list --rows csr,niah,perplexity-b"
    shown = printed(*command.split()[1:])
    assert "piqa: piqa/validation.jsonl below the data folder" in shown and "niah-easy: needle/ below" in shown


def test_every_command_tells_it_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, tasks=["perplexity"], data="HERE/nowhere")
    for command in COMMANDS:
        with pytest.raises(InputError, match="nowhere is no folder"):
            app([command[0], str(path), *command[1:]], standalone_mode=False)
    assert not (tmp_path / "out").exists() and capsys.readouterr().out == ""
    app([SUBMIT[0], str(path), *SUBMIT[1:]], standalone_mode=False)
    assert "warning: evaluation: " in capsys.readouterr().err
    app(["plan", str(path)], standalone_mode=False)
    assert "warning: evaluation: " in capsys.readouterr().out
    app(["plan", str(path), "--json"], standalone_mode=False)
    assert "nowhere is no folder" in json.loads(capsys.readouterr().out)["warnings"][-1]


def test_what_can_be_is_left_alone(tmp_path: Path) -> None:
    """An absolute file needs no data folder; the corpus, which is not made yet, is not asked for."""
    text = {"file": "HERE/text.txt", "stride": 64}
    tasks = ["perplexity", "perplexity-two", "extrapolate"]
    path = write(tmp_path, tasks=tasks, settings={"perplexity": text, "perplexity-two": text})
    assert check_evaluations(Request(load_study(path))) == []
