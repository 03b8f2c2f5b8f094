"""Tasks of lm-eval by name: any of its tasks and groups over local rows, as lm-eval's own class scores the export."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from analysis.evals.lmeval import fetch as fetching
from analysis.evals.lmeval.named import Rows, make
from analysis.evals.registry import layout_of, make_tasks, texts_of
from analysis.evals.task import MissingData, TaskContext
from arch.errors import InputError
from arch.outside import modules_of
from scaling.checkpoints.export import export_hf
from scaling.cli.main import app
from tests.analysis.evals.small_study import write_checkpoint, write_study
from tests.analysis.evals.test_lmeval_tasks import SHARED, loaded

SCIQ = [
    {"support": f"A {name} is {what}.", "question": f"What is a {name}?", "correct_answer": what}
    | {f"distractor{i}": f"wrong {i}" for i in (1, 2, 3)}
    for name, what in (("cat", "an animal"), ("rose", "a plant"), ("quartz", "a mineral"))
]


def write_rows(folder: Path, file: str, rows: list[dict[str, Any]]) -> None:
    path = folder / "lm_eval" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def named(name: str, folder: Path | None, **settings: Any) -> Any:
    (task,) = make_tasks([name], TaskContext(Path("corpus"), folder, {name: settings} if settings else {}))
    return task


def scores(name: str, folder: Path, model: Any = None, **settings: Any) -> dict[str, Any]:
    task, model = named(name, folder, **settings), model or loaded(context_length=512)
    return task.evaluate(model, task.prepare(model.tokenizer))


def test_rows_are_asked_for_and_fetched_by_what_the_task_reads(tmp_path: Path) -> None:
    folder = tmp_path / "my data 数据"
    with pytest.raises(MissingData, match=r"allenai/sciq/test.jsonl is missing: test of allenai/sciq.*eval fetch"):
        named("lm_eval:sciq", folder).data_hash()
    with pytest.raises(MissingData, match=r"below the data folder is missing"):
        named("lm_eval:sciq", None).data_hash()
    with pytest.raises(InputError, match=r"no task or group of that name \(did you mean 'sciq'\?\)"):
        named("lm_eval:sciqq", folder).data_hash()
    with pytest.raises(InputError, match="no task or group"):
        fetching.data_sets(["lm_eval:../sciq"])

    sciq = layout_of("lm_eval:sciq").splitlines()
    assert sciq[0].startswith("lm_eval/allenai/sciq/test.jsonl below the data folder")
    columns = ("support", "question", "distractor1", "distractor2", "distractor3", "correct_answer")
    assert sciq[1] == f"columns of its prompts: {', '.join(columns)}"
    with pytest.raises(InputError, match=r"did you mean 'sciq'"):
        layout_of("lm_eval:sciqq")
    assert "lm_eval:mmlu_stem, " in layout_of("lm_eval:mmlu")
    assert "columns that its own code reads, or makes of others: " in layout_of("lm_eval:logiqa")

    asked = []

    def download(data: Any) -> tuple[list[dict[str, Any]], str]:
        asked.append((data.hub, data.config, data.split))
        return SCIQ, "f00d"

    names = fetching.data_sets(["piqa", "lm_eval:sciq"])
    assert names == ["piqa", "lm_eval:sciq"] and fetching.missing(folder, names) == names
    (result,) = fetching.fetch(folder, ["lm_eval:sciq"], lambda line: None, download)
    assert (result.state, result.rows, asked) == ("fetched", 3, [("allenai/sciq", None, "test")])
    assert fetching.missing(folder, names) == ["piqa"]
    assert fetching.fetch(folder, ["lm_eval:sciq"], lambda line: None, download)[0].state == "there" and len(asked) == 1
    task = named("lm_eval:sciq", folder)
    assert task.data_path() == folder / "lm_eval/allenai/sciq/test.jsonl"

    def broken(data: Any) -> tuple[list[dict[str, Any]], str]:
        raise ConnectionError("no network")

    (result,) = fetching.fetch(folder, ["lm_eval:gsm8k"], lambda line: None, broken)
    assert (result.state, result.reason) == ("failed", "ConnectionError: no network")


def test_a_named_task_has_scores_with_errors_and_examples(tmp_path: Path) -> None:
    write_rows(tmp_path, "allenai/sciq/test.jsonl", SCIQ)
    zero = scores("lm_eval:sciq", tmp_path)
    assert zero["n_documents"] == 3 and zero["n_requests"] == 12 and zero["n_truncated"] == 0
    assert {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"} < zero.keys() and not zero["extrapolated"]
    assert scores("lm_eval:sciq", tmp_path, limit=2)["n_documents"] == 2
    with pytest.raises(MissingData, match="train of allenai/sciq"):
        scores("lm_eval:sciq", tmp_path, num_fewshot=2)
    write_rows(tmp_path, "allenai/sciq/train.jsonl", SCIQ)
    task, model = named("lm_eval:sciq", tmp_path, num_fewshot=2, max_length=700), loaded(context_length=512)
    prepared = task.prepare(model.tokenizer)
    values = task.evaluate(model, prepared)
    prompts = {request.args[0] for request in prepared.tasks["tasks"]["sciq"].instances}
    assert all(prompt.count("Question:") == 3 for prompt in prompts) and values["extrapolated"]
    assert task.evaluate(model, prepared) == values
    again = named("lm_eval:sciq", tmp_path, num_fewshot=2, max_length=700)
    other = again.prepare(model.tokenizer)
    assert again.evaluate(model, other) == values  # another process draws the same examples
    assert {request.args[0] for request in other.tasks["tasks"]["sciq"].instances} == prompts


def test_a_group_has_its_average_and_its_tasks(tmp_path: Path) -> None:
    for i, part in enumerate(("bio", "chem", "cyber")):
        rows = [{"question": f"{part} {k}?", "choices": ["a", "b", "c", "d"], "answer": k % 4} for k in range(4 + i)]
        write_rows(tmp_path, f"cais/wmdp/wmdp-{part}/test.jsonl", rows)
    values = scores("lm_eval:wmdp", tmp_path)
    tasks = values["by_task"]
    assert tasks.keys() == {"wmdp_bio", "wmdp_chem", "wmdp_cyber"} and values["n_documents"] == 15
    mean = sum(n * tasks[f"wmdp_{part}"]["acc"] for n, part in ((4, "bio"), (5, "chem"), (6, "cyber"))) / 15
    assert values["acc"] == pytest.approx(mean) and values["acc_stderr"] > 0


def test_what_a_model_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_rows(tmp_path, "openai/gsm8k/main/test.jsonl", [{"question": "1 + 1?", "answer": "So 2.\n#### 2"}] * 6)
    write_rows(tmp_path, "openai/gsm8k/main/train.jsonl", [{"question": "2 + 2?", "answer": "So 4.\n#### 4"}] * 6)
    with pytest.raises(InputError, match=r"every prompt would be cut, the shortest needs 3\d\d tokens and the window"):
        scores("lm_eval:gsm8k", tmp_path, loaded(context_length=192))
    with pytest.raises(InputError, match=r"gsm8k.max_new_tokens=64 leaves no room"):
        scores("lm_eval:gsm8k", tmp_path, loaded(context_length=64), max_new_tokens=64)
    values = scores("lm_eval:gsm8k", tmp_path, max_new_tokens=8, num_fewshot=0, limit=2)
    assert values["max_new_tokens"] == 8 and values["exact_match@strict-match"] == 0.0
    write_rows(tmp_path, "allenai/sciq/test.jsonl", [{"support": "no question"}])
    with pytest.raises(InputError, match=r"lm_eval:sciq: lm-eval cannot make it of its rows"):
        named("lm_eval:sciq", tmp_path).data_hash()
    write_rows(tmp_path, "allenai/sciq/test.jsonl", [])
    with pytest.raises(InputError, match="must have a JSON object on every line"):
        named("lm_eval:sciq", tmp_path).data_hash()
    with pytest.raises(InputError, match="mmmu_val_art needs pictures or sound"):
        named("lm_eval:mmmu_val_art", tmp_path).data_hash()
    with pytest.raises(InputError, match="humaneval runs the programs that a model writes"):
        named("lm_eval:humaneval", tmp_path).data_hash()


def test_a_name_imports_nothing_and_its_text_is_looked_for_in_the_corpus() -> None:
    assert modules_of(["lm_eval:sciq", "mine:task"]) == ["mine"]
    assert texts_of(["validation", "lm_eval:sciq"], {}) == ["lm_eval:sciq"]


def test_a_study_names_it_and_shows_its_error(tmp_path: Path) -> None:
    write_rows(tmp_path, "allenai/sciq/test.jsonl", SCIQ)
    more = (
        f"evaluation:\n  data: {tmp_path}\n  tasks: [lm_eval:sciq]\n  settings:\n    lm_eval:sciq: {{max_length: 200}}"
    )
    write_study(tmp_path, steps=1, archs="tnl", more=more)
    study = str(tmp_path / "small.yaml")
    assert CliRunner().invoke(app, ["eval", "worker", study]).exit_code == 0
    shown = CliRunner().invoke(app, ["eval", "study", study])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"lm_eval:sciq, each run's newest checkpoint\n.*acc.*\n.*\n?.*±", shown.stdout), shown.stdout
    assert "eval: 0 of 2 evaluations to do" in shown.stdout


def real_rows(folder: Path) -> None:
    """LAMBADA's test set and WikiText-2, in the form of the tasks that read them."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder: real evaluation data are not part of the repository")
    lambada = [json.loads(line) for line in (SHARED / "lambada/lambada_test.jsonl").read_text().splitlines()[:12]]
    write_rows(folder, "EleutherAI/lambada_openai/default/test.jsonl", lambada)
    text = (SHARED / "wikitext-2/test.txt").read_text()
    starts = [heading.start() for heading in re.finditer(r"(?m)^ = [^=].*[^=] = $", text)][:3]
    write_rows(
        folder, "allenai/paloma/wikitext_103/test.jsonl", [{"text": text[a:b][:2000]} for a, b in pairwise(starts)]
    )


@pytest.mark.parametrize("arch", ["hgrn2", "llama"])
def test_log_likelihoods_are_those_of_lm_evals_own_class_on_the_export(tmp_path: Path, arch: str) -> None:
    """Two tasks that the project does not list, on real text: every request within 1e-5 of a nat in fp32."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    from analysis.evals.model import load_guarded
    from data.corpus import open_corpus

    real_rows(tmp_path)
    study = write_study(tmp_path, steps=1, archs=arch)
    (run,) = study.runs()
    path = write_checkpoint(study, run.run_id, 1)
    model = load_guarded(path, open_corpus(study.directory / "corpus"), "cpu", False)
    export_hf(path, tmp_path / "export", "fp32")
    theirs = HFLM(
        pretrained=str(tmp_path / "export"),
        trust_remote_code=True,
        device="cpu",
        dtype="float32",
        max_length=1024,
        batch_size=4,
    )
    for name in ("lambada_openai_cloze_yaml", "paloma_wikitext_103"):
        task = named(f"lm_eval:{name}", tmp_path, max_length=1024, batch_size=4)
        prepared = task.prepare(model.tokenizer)
        values = task.evaluate(model, prepared)
        ours = [request.resps for request in prepared.tasks["tasks"][name].instances]
        peer = make(name, Rows(tmp_path), {})
        with torch.no_grad():
            wanted = evaluate(lm=theirs, task_dict=peer, bootstrap_iters=10)["results"][name]
        answers = [request.resps for request in peer["tasks"][name].instances]
        assert len(ours) == len(answers) > 1
        for (mine,), (other,) in zip(ours, answers, strict=True):
            mine, other = (pair[0] if isinstance(pair, tuple) else pair for pair in (mine, other))
            assert mine == pytest.approx(other, abs=1e-5, rel=1e-6)
        for key, value in wanted.items():
            metric, comma, _ = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                assert values[metric] == pytest.approx(value, rel=1e-6)
