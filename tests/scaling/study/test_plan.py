"""The plan of a study: its figures are those of flops, its totals are sums, and it is quick."""

import pytest

from arch.presets import preset
from flops import count_params, train_flops_per_token
from flops.hardware import DEVICES
from scaling.cli.main import main
from scaling.stages.plan_notes import design_notes, evaluation_time, fit_notes
from scaling.stages.planning import headline
from scaling.stages.request import Request
from scaling.study.machine_cost import on_device
from scaling.study.plan import PF_DAY, plan
from scaling.study.plan_view import show_plan
from scaling.study.spec import load_study
from tests.commands import in_this_process


def test_paper_plan():
    study = load_study("paper")
    table = plan(study, study.runs())
    assert len(table["runs"]) == 24 + 8  # and two more seeds of the smallest size
    row = next(row for row in table["runs"] if row["run_id"] == "hgrn2-410m-c8192-s0")
    config = preset("hgrn2", "410m")
    assert row["n_params_non_embedding"] == count_params(config).non_embedding
    assert row["n_steps"] == 76_294 and row["n_tokens"] == 76_294 * 480 * 8192 >= 300e9
    for name in ("exact", "paper", "6nd"):
        assert row[f"flops_{name}"] == train_flops_per_token(config, name) * row["n_tokens"]
    assert row["checkpoint_bytes"] == 57 * 2 * count_params(config).total
    totals = table["totals"]
    assert totals["n_runs"] == 32 and totals["n_checkpoints"] == 32 * 57
    assert totals["flops_exact"] == pytest.approx(sum(row["flops_exact"] for row in table["runs"]), rel=1e-12)
    assert totals["pf_days_exact"] == totals["flops_exact"] / PF_DAY
    assert sum(row["share"] for row in table["runs"]) == pytest.approx(1.0)
    text = show_plan(table)
    assert all(row["run_id"] in text for row in table["runs"])
    assert "32 runs" in text and "days of one H200" in text


def test_set_and_only_reach_the_plan():
    study = load_study("quickstart", ["training.lr=1e-3", "training.n_tokens=20480", "training.checkpoint_dtype=fp32"])
    rows = plan(study, study.runs("arch=hgrn2,size=25k,seed=0"))["runs"]
    assert [(row["lr"], row["n_tokens"]) for row in rows] == [(1e-3, 20_480)]
    assert rows[0]["run_id"].endswith("-lr0.001-n_tokens20480")
    assert rows[0]["share"] == 1.0
    assert rows[0]["checkpoint_bytes"] == rows[0]["n_checkpoints"] * rows[0]["n_params"] * 4


def test_a_run_without_a_paper_count_has_none_and_neither_have_the_totals():
    study = load_study("quickstart", ["grid.archs=[tnl, hgrn1]"])
    table = plan(study, study.runs("size=25k,seed=0"))
    assert {row["arch"]: "flops_paper" in row for row in table["runs"]} == {"tnl": True, "hgrn1": False}
    assert "flops_paper" not in table["totals"] and table["totals"]["flops_6nd"] > 0
    line = next(line for line in show_plan(table).splitlines() if line.startswith("hgrn1"))
    assert line.split()[-2] == "-"


DRIFT = (
    "warning: tnl: decay slopes `paper` follow from the number of heads: the fastest half-life is 2.8 tokens at 70m "
    "and 0.8 at 7b, which confounds TNL's law; model.decay_slopes: fixed avoids it"
)


def test_drifting_decays_are_a_warning():
    """By plan, by run's first lines; not where slopes are fixed, nor without TNL, nor with one size of it."""
    study = load_study("paper")
    table = plan(study, study.runs())
    assert [f"warning: {line}" for line in table["warnings"]] == [DRIFT]
    assert DRIFT in show_plan(table).splitlines()
    assert headline(Request(study)).splitlines()[0] == DRIFT
    for sets, only in (
        (["model.decay_slopes=fixed"], None),
        ([], "arch=llama|hgrn2|cosformer2"),
        ([], "size=410m"),
        ([], "size=160m|410m"),
    ):
        study = load_study("paper", sets)
        table = plan(study, study.runs(only))
        assert not table["warnings"] and "warning" not in show_plan(table)
        assert "warning" not in headline(Request(study, only))
    quick = load_study("quickstart")
    assert not plan(quick, quick.runs())["warnings"]


@pytest.mark.parametrize(
    "command", [["plan"], ["run", "--dry-run"], ["submit", "--local", "--dry-run", "--set", "training.threads=1"]]
)
def test_the_commands_tell_it_once(command, tmp_path, ranks):
    no_tasks = ["--set", "evaluation.tasks=null", "--set", "evaluation.data=null"]  # their data are not here
    no_tasks += ["--set", "corpus.source=synthetic:0:100000000000000"]  # nor is its text
    done = in_this_process(main, command[0], "paper", *command[1:], *no_tasks, "--out", tmp_path)
    assert done.returncode == 0 and (done.stdout + done.stderr).splitlines().count(DRIFT) == 1


PLANNED = """
name: s
corpus: {source: "synthetic:0:60000"}
grid: {archs: [tnl, llama], sizes: [6k, 14k], seeds: [0]}
model: {context_length: 64}
training: {n_tokens: 2560, batch_tokens: 256, lr: 3e-3}
"""


def test_what_the_fits_lack_is_a_warning(tmp_path):
    (tmp_path / "s.yaml").write_text(PLANNED)
    study = load_study(tmp_path / "s.yaml")
    assert fit_notes(study.runs()) == (
        "fits: pairs of neighbouring sizes: tnl, llama: 1; the curves of 3 pairs must cross for a law of N_opt, so "
        "tnl, llama can have none; no size has two seeds: no intervals"
    )
    quick = fit_notes(load_study("quickstart").runs())
    assert "can have none" not in quick and quick.endswith("; sizes with two seeds or more: 1 of 5")
    (tmp_path / "s.yaml").write_text(PLANNED.replace("seeds: [0]", "seeds: [0], extra_seeds: {6k: [1]}"))
    runs = [run for run in load_study(tmp_path / "s.yaml").runs() if (run.arch, run.seed) != ("tnl", 1)]
    assert fit_notes(runs).endswith("; sizes with two seeds or more: tnl: 0 of 2; llama: 1 of 2")


def test_the_time_of_the_evaluations_is_planned(tmp_path):
    (tmp_path / "s.yaml").write_text(PLANNED)
    time = evaluation_time(Request(load_study(tmp_path / "s.yaml")))
    assert time["seconds"] > 0 and time["basis"] == {"validation": "assumed"}
    assert time["checkpoints"] == sum(len(run.checkpoint_steps) for run in load_study(tmp_path / "s.yaml").runs())
    missing = ["evaluation.tasks=[piqa]", f"evaluation.data={tmp_path}"]
    assert evaluation_time(Request(load_study(tmp_path / "s.yaml", missing))) is None
    shown = in_this_process(main, "plan", tmp_path / "s.yaml").stdout
    assert "all evaluations are expected to take about " in shown and "\nfits: pairs of " in shown


MANY = """
name: many
corpus: {source: "stdlib:"}
grid:
  archs: [llama, tnl, mamba2]
  sizes: {from: 400k, to: 6M, count: 4}
  seeds: [0, 1, 10]
model: {context_length: 1024}
training: {schedule: wsd, branches: [5N, 20N, 80N], max_tokens: 50e6, batch_tokens: 65_536, lr: 2e-3}
"""


def test_a_long_plan_puts_seeds_and_branches_together(tmp_path):
    (tmp_path / "many.yaml").write_text(MANY)
    study = load_study(tmp_path / "many.yaml")
    table = plan(study, study.runs())
    lines = show_plan(table).splitlines()
    assert len(table["runs"]) == 3 * 3 * (4 + 4 + 4 + 3)  # at 6 M parameters two branches end at the cap
    assert table["totals"]["n_tokens"] == sum(run.trained_tokens for run in study.runs()), "a trunk's tokens once"
    assert len(lines) < 40
    row = next(line for line in lines if line.startswith("llama-n400k-c1024-s* "))
    assert row.split()[1] == "12" and "2.03M to 31.8M" in row  # three trunks with three branches each
    shares = [float(line.split()[-1].rstrip("%")) for line in lines if line.startswith(("llama", "tnl", "mamba2"))]
    assert len(shares) == 12 and sum(shares) == pytest.approx(100, abs=0.7)
    assert "n6m (llama, tnl, mamba2): d20n, d80n cut to one run, d50m" in lines
    few = study.runs("size=n400k,arch=llama|tnl")
    assert [len(line.split()) for line in show_plan(plan(study, few)).splitlines()[2:26]] == [10] * 24


def test_plans_say_what_will_not_be_identified_and_the_time_on_a_device():
    study = load_study("quickstart")
    lines = design_notes(study.runs("arch=llama"), study.fit)
    assert lines[0] == "design: llama: the exponent of N_opt will be known to ±0.25 or worse (limit 0.08)"
    assert "of a point 0.0062 nats/byte (3.5 of one token alone, means over 325,120 tokens)" in lines[-1]
    many = load_study("quickstart", ["grid.seeds=[0,1,2,3,4,5,6,7,8,9,10]"]).runs()
    assert len(many) > 200 and design_notes(many, study.fit) == [
        "design: not checked (more than 200 runs): docs/design.md"
    ]
    time = on_device(study, study.runs(), DEVICES["h200"])["on_device"]
    assert time["seconds"] > 0 and "on one H200 SXM" in time["text"]
