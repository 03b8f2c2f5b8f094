"""`scaling design` from the command line."""

import json

import pytest
from typer.testing import CliRunner

from analysis.design.proposal import laid
from analysis.design.study_file import Setting
from arch.errors import InputError
from flops import train_flops_per_token
from flops.hardware import DEVICES
from scaling.cli import design_study
from scaling.cli.design_study import Question
from scaling.cli.main import app
from scaling.study.file import PACKAGED
from scaling.study.spec import load_study
from scaling.study.sweep import sweep_of
from tests.scaling.rated import rated


def test_a_question_becomes_a_study_that_costs_the_budget(tmp_path):
    file = tmp_path / "asked.yaml"
    words = ["design", "--arch", "llama,hgrn2", "--corpus", "books.txt", "--corpus-tokens", "50e6"]
    words += ["--budget", "2e16", "--tokenizer", "bpe:4096", "--studies", "8", "--name", "asked"]
    words += ["--write", str(file), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    computed = json.loads(result.stdout)
    best, naive = computed["proposals"][0], computed["naive"]
    runs = load_study(file).runs()
    swept = sweep_of(load_study(file)).runs()
    spent = sum(float(train_flops_per_token(run.config, "exact")) * run.trained_tokens for run in [*swept, *runs])
    assert best["sweep"]["runs"] == len(swept) == 60 and best["sweep"]["flops"] < 0.3 * best["flops"]
    assert spent == pytest.approx(best["flops"])
    assert all(0.97 * 2e16 <= row["flops"] <= 2e16 for row in (*computed["proposals"], naive)), "a budget is a limit"
    assert len(runs) + len(swept) == best["runs"]
    assert max(run.n_tokens for run in runs) <= 50e6 + runs[0].training.batch_tokens
    assert {run.arch for run in runs} == {"llama", "hgrn2"} and {run.config.vocab_size for run in runs} == {4096}
    for row in (*computed["proposals"], naive):
        assert 0 <= row["summary"]["right"] <= 1 and row["seconds"] > 0
        assert row["summary"]["half_a"] == sorted(row["summary"]["half_a"])
    assert file.read_text().startswith("# scaling design --arch llama,hgrn2 --budget 2e16 --corpus books.txt ")


def test_no_proposal_costs_more_than_the_budget(monkeypatch):
    """Real runs have sizes in steps: of those tried, the dearest that the budget pays for."""
    proposal = laid(3e5, 6, 32.0, 14.0, 1.0, (1, 1), 1e9)
    setting = Setting("x", ["llama"], "stdlib:", 2048, True)
    question = Question("exponent", 1.0, False, DEVICES["h200"], 1e9, 0.0, 0.005, setting)
    for shares, chosen in (([1.05, 0.95, 1.02, 0.97, 1.02, 0.96], 0.97), ([1.004, 0.999], 0.999)):
        costs = iter(shares)
        monkeypatch.setattr(design_study, "cost_of_file", lambda *_, costs=costs: {"flops": next(costs)})
        assert design_study.fitted_to(proposal, question)[1]["flops"] == chosen
    monkeypatch.setattr(design_study, "cost_of_file", lambda *_: {"flops": 1.001})
    with pytest.raises(InputError, match="cost more than the budget"):
        design_study.fitted_to(proposal, question)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arch", "lama", "--budget", "1e16"], "--arch: 'lama'"),
        (["--arch", "llama"], "give one of"),
        (["--arch", "llama,lama", "--budget", "1e16"], "--arch: 'lama'"),
        (["--arch", "llama", "--budget", "1e16", "--tokenizer", "byte"], "unknown tokenizer 'byte'"),
        (
            ["--arch", "llama", "--budget", "1e16", "--tokenizer", "gpt2", "--corpus", "stdlib:"],
            "before gpt2 has encoded",
        ),
        (["--arch", "llama", "--budget", "1e16", "--gpu-minutes", "3"], "give one of"),
        (["--arch", "llama", "--budget", "1e16", "--ask", "width"], "--ask: 'width'"),
        (["--arch", "llama", "--budget", "1e16", "--ask", "compare"], "another --arch"),
        (["--arch", "llama", "--budget", "1e16", "--write", "x.yaml"], "give --corpus"),
        (["--arch", "llama", "--budget", "1e16", "--corpus", "text.jsonl.xz"], "give --corpus-tokens"),
        (["--arch", "llama", "--budget", "1e16", "--corpus", "gone.txt"], "gone.txt: is not here, and how many tokens"),
        (["--arch", "llama", "--budget", "1e10", "--corpus", "synthetic:0:5000000"], "within 4.85M tokens of text"),
        (["--arch", "llama", "--gpu-minutes", "1", "--device", "cpu"], "is no GPU"),
        (["--arch", "llama", "--budget", "1e16", "--seed-noise", "50%"], "--seed-noise"),
        (
            ["--arch", "llama", "--budget", "1e16", "--pilot", "four-architectures"],
            "--pilot four-architectures: out/four-architectures: no run",
        ),
        (["--arch", "llama", "--budget", "1e16", "--lr-law", "no.json"], "no.json: no such law file"),
        (["--arch", "llama", "--budget", "1e12"], "FLOP would do"),
        (
            ["--arch", "llama", "--budget", "1e30", "--corpus-tokens", "1e8", "--no-sweep"],
            "FLOP can be used), or more text",
        ),
        (["--arch", "llama", "--budget", "2e15", "--target", "1e19"], "times what an architecture's runs cost"),
        (["--arch", "llama", "--budget", "1e16", "--name", "a/b"], "--name: 'a/b' becomes the name of a directory"),
        (["--arch", "llama", "--budget", "1e16", "--corpus", "x", "--write", "no/x.yaml"], "there is no directory no"),
        (
            [
                "--arch",
                "llama",
                "--budget",
                "1e16",
                "--corpus-tokens",
                "1e9",
                "--corpus",
                "x",
                "--write",
                "/proc/x.yaml",
            ],
            "--write /proc/x.yaml: cannot be written (No such file or directory)",
        ),
    ],
)
def test_what_is_wrong_is_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["design", *words])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception) and "\n" not in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_study_that_follows_a_law_is_trained_as_the_laws_runs_were(tmp_path):
    file, law = tmp_path / "tiny.yaml", PACKAGED / "quickstart-rates.json"
    words = ["design", "--arch", "hgrn2", "--corpus", "stdlib:", "--corpus-tokens", "20e6", "--wall-minutes", "2"]
    words += ["--least-size", "5k", "--lr-law", str(law), "--studies", "8", "--write", str(file)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    assert "no floor of the loss was seen" in result.stdout, "the prior of tiny models"
    assert file.read_text().splitlines()[0] == (
        f"# scaling design --arch hgrn2 --wall-minutes 2 --corpus stdlib: --corpus-tokens 20e6 --least-size 5k "
        f"--lr-law {law} --studies 8"
    )
    study = load_study(file)
    for run in rated(study):
        assert (run.config.init_std, run.training.batch_tokens, run.training.warmup_tokens) == (0.08, 1024, 20_480)
        assert run.rate is not None and not run.rate.followed.swept_model and run.training.schedule == "constant"
    assert (study.fit.loss, study.fit.control) == ("train_smoothed", "bigram")


def test_a_text_that_is_empty_is_told(tmp_path):
    (tmp_path / "empty.txt").touch()
    result = CliRunner().invoke(
        app, ["design", "--arch", "llama", "--budget", "1e16", "--corpus", str(tmp_path / "empty.txt")]
    )
    assert isinstance(result.exception, InputError) and "is empty" in str(result.exception)


@pytest.mark.slow
def test_minutes_of_a_gpu_for_four_architectures_buy_a_study(tmp_path):
    """Its curves are of held-out losses; with a law that has no term in the batch all sizes have the law's batch."""
    archs = ("llama", "tnl", "hgrn2", "cosformer2")
    words = [word for arch in archs for word in ("--arch", arch)]
    words += ["--corpus-tokens", "2.5e8", "--studies", "8"]
    result = CliRunner().invoke(app, ["design", *words, "--gpu-minutes", "8", "--no-sweep"])
    assert result.exit_code == 0, result.exception
    assert "sweeps are not in the budget" in result.stdout and "holds" in result.stdout and "/tmp" not in result.stdout
    law, path = PACKAGED / "quickstart-rates.json", tmp_path / "law.yaml"
    words += ["--gpu-minutes", "4", "--context", "256", "--corpus", "books.jsonl"]
    words += ["--lr-law", str(law), "--write", str(path)]
    result = CliRunner().invoke(app, ["design", *words])
    assert result.exit_code == 0, result.exception
    study = load_study(path)
    assert {run.training.batch_tokens for run in study.runs()} == {1024}
    assert study.fit.loss == "validation" and {run.training.n_checkpoints for run in study.runs()} == {18}
