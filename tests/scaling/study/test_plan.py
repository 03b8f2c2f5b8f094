"""The plan of a study: its figures are those of flops, its totals are sums, and it is quick."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arch.amounts import flop
from arch.presets import preset
from flops import checkpoint_bytes, count_params, train_flops_per_token
from scaling.cli.main import main
from scaling.cli.planning import design_notes, evaluation_time, fit_notes, timed_plan
from scaling.cli.request import Request
from scaling.study.plan import plan, show_plan
from scaling.study.spec import load_study
from tests.commands import in_this_process

MIXED = Path(__file__).parents[3] / "docs" / "research" / "second-study.yaml"


def test_paper_plan() -> None:
    study = load_study("paper")
    made = plan(study, study.runs())
    assert len(made.runs) == 24 + 8  # and two more seeds of the smallest size
    row = next(run for run in made.runs if run.run_id == "hgrn2-410m-c8192-s0")
    config = preset("hgrn2", "410m")
    assert row.n_params_non_embedding == count_params(config).non_embedding
    assert row.n_steps == 76_294 and row.n_tokens == 76_294 * 480 * 8192 >= 300e9
    for name in ("exact", "paper", "6nd"):
        assert row.flops[name] == train_flops_per_token(config, name) * row.n_tokens
    assert row.checkpoint_bytes == 57 * checkpoint_bytes(config, "bf16")
    assert len(made.runs) == 32 and made.n_checkpoints == 32 * 57
    assert made.flops_exact == pytest.approx(sum(run.flops["exact"] for run in made.runs), rel=1e-12)
    assert sum(row["share"] for row in made.to_dict()["runs"]) == pytest.approx(1.0)
    text = show_plan(made)
    assert all(run.run_id in text for run in made.runs) and "32 runs" in text


def test_set_and_only_reach_the_plan() -> None:
    study = load_study(
        "four-architectures", ["training.lr=1e-3", "training.n_tokens=20480", "training.checkpoint_dtype=fp32"]
    )
    (run,) = plan(study, study.runs("arch=hgrn2,size=25k,seed=0")).runs
    assert (run.lr, run.n_tokens) == (1e-3, 20_480) and run.run_id.endswith("-lr0.001-n_tokens20480")
    assert run.checkpoint_bytes == run.n_checkpoints * run.n_params * 4


def test_a_run_has_the_conventions_that_cover_its_architecture() -> None:
    study = load_study("four-architectures", ["grid.archs=[tnl, hgrn1]"])
    runs = plan(study, study.runs("size=25k,seed=0")).runs
    assert {run.arch: "paper" in run.flops for run in runs} == {"tnl": True, "hgrn1": False}


DRIFT = (
    "warning: tnl: decay slopes `paper` follow from the number of heads: the fastest half-life is 2.8 tokens at 70m "
    "and 0.8 at 7b, which confounds TNL's law; model.decay_slopes: fixed avoids it"
)


def test_drifting_decays_are_a_warning() -> None:
    """Of plan, and in the first lines of run; not where slopes are fixed, nor without TNL, nor with one size of it."""
    made = timed_plan(Request(load_study("paper")))
    assert made.headline.splitlines()[0] == DRIFT and DRIFT in show_plan(made.plan).splitlines()
    for sets, only in (
        (["model.decay_slopes=fixed"], None),
        ([], "arch=llama|hgrn2|cosformer2"),
        ([], "size=410m"),
        ([], "size=160m|410m"),
    ):
        study = load_study("paper", sets)
        assert not plan(study, study.runs(only)).warnings
    quick = load_study("four-architectures")
    assert not plan(quick, quick.runs()).warnings


def test_a_depth_that_jumps_between_neighbouring_sizes_is_a_warning() -> None:
    """As in the second study, whose forecasts missed; not where shapes of one size are what is compared."""
    mixed = load_study(MIXED)
    line, heads = sorted(plan(mixed, mixed.runs()).warnings)
    assert heads.startswith("transformer: ")
    assert line.startswith("llama, hgrn2, tnl, hgrn2-3to1: from n3.11m to n3.41m the width falls from 256 to 192 and")
    assert not plan(mixed, mixed.runs("size=n190k|n934k")).warnings
    for name in ("books", "paper-aspect", "paper-aspect-tiny", "quickstart"):
        study = load_study(name)
        assert not any("the width falls" in line for line in plan(study, study.runs()).warnings)


@pytest.mark.parametrize(
    "command",
    [
        ["plan"],
        ["run", "--dry-run"],
        ["submit", "--dry-run", "--set=jobs.cluster={nodes: 1, cpus_per_node: 8}", "--set=training.threads=1"],
    ],
)
def test_the_commands_show_it_once(command: list[str], tmp_path: Path, ranks: None) -> None:
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


def test_what_the_fits_lack_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PLANNED)
    study = load_study(tmp_path / "s.yaml")
    lines = [
        "fits: tnl, llama can have no law of N_opt: it takes 3 sizes",
        "fits: no size has two seeds: no intervals",
    ]
    assert fit_notes(study.runs()) == lines
    (tmp_path / "s.yaml").write_text(PLANNED.replace("seeds: [0]", "seeds: [0], extra_seeds: {6k: [1]}"))
    assert fit_notes(load_study(tmp_path / "s.yaml").runs()) == lines[:1]
    assert fit_notes(load_study("four-architectures").runs()) == []
    assert design_notes(study.runs(), study) == [], "of a law that there cannot be no width is promised"
    (tmp_path / "s.yaml").write_text(PLANNED.replace("[6k, 14k]", "[6k, 14k, 25k]"))
    study = load_study(tmp_path / "s.yaml")
    assert fit_notes(study.runs())[0] == (
        "fits: tnl, llama can have no law of N_opt by the envelope, which needs 3 pairs of neighbouring sizes whose "
        "curves cross; the parametric surface and isoFLOP may give one"
    )
    assert "will be known to" in design_notes(study.runs(), study)[0]


def test_the_time_of_the_evaluations_is_planned(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PLANNED)
    n_checkpoints = sum(len(run.checkpoint_steps) for run in load_study(tmp_path / "s.yaml").runs())
    (line,) = evaluation_time(Request(load_study(tmp_path / "s.yaml")))
    assert f"{n_checkpoints} checkpoints, " in line and "(assumed pace of one core" in line
    missing = ["evaluation.tasks=[piqa]", f"evaluation.data={tmp_path}"]
    assert evaluation_time(Request(load_study(tmp_path / "s.yaml", missing))) == []
    shown = in_this_process(main, "plan", tmp_path / "s.yaml").stdout
    assert "\nevaluations are expected to take about " in shown and "\nfits: no size has two seeds" in shown
    assert "fits: " not in in_this_process(main, "plan", tmp_path / "s.yaml", "--set", "grid.sizes=[6k]").stdout


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


def test_a_long_plan_puts_seeds_and_branches_together(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(MANY)
    study = load_study(tmp_path / "many.yaml")
    made = plan(study, study.runs())
    lines = show_plan(made).splitlines()
    assert len(made.runs) == 3 * 3 * (4 + 4 + 4 + 3)  # at 6 M parameters two branches end at the cap
    assert made.n_tokens == sum(run.trained_tokens for run in study.runs()), "a trunk's tokens once"
    assert len(lines) < 40
    row = next(line for line in lines if line.startswith("llama-n400k-c1024-s* "))
    assert row.split()[1] == "12" and "2.03M to 31.8M" in row  # three trunks with three branches each
    shares = [float(line.split()[-1].rstrip("%")) for line in lines if line.startswith(("llama", "tnl", "mamba2"))]
    assert len(shares) == 12 and sum(shares) == pytest.approx(100, abs=0.7)
    assert "n6m (llama, tnl, mamba2): d20n, d80n cut to one run, d50m" in lines
    few = study.runs("size=n400k,arch=llama|tnl")
    assert (
        len(plan(study, few).runs)
        == 24
        == sum(line.startswith(("llama", "tnl")) for line in show_plan(plan(study, few)).splitlines())
    )


def test_plans_say_what_will_not_be_identified() -> None:
    study = load_study("four-architectures")
    lines = design_notes(study.runs("arch=llama"), study)
    assert lines[0] == "design: llama: the exponent of N_opt will be known to ±0.25 or worse (limit 0.08)"
    assert lines[-1].startswith("design: computed to first order, for noise between seeds of ")
    command = re.search(r"For the same compute `scaling design (.*)` proposes", lines[-1])
    spent = flop(plan(study, study.runs("arch=llama")).flops_exact)
    assert command and command[1] == f"--arch llama --budget {spent} --context 256 --least-size 5.97k --device cpu"
    many = load_study("four-architectures", ["grid.seeds=[0,1,2,3,4,5,6,7,8,9,10]"]).runs()
    assert len(many) > 200 and design_notes(many, study) == ["design: not checked (more than 200 runs): docs/design.md"]


def test_heads_that_share_keys_unevenly_are_a_warning() -> None:
    """7 heads of queries at one size read a head of keys, and 2 of 8 at the next; LLaMA's heads share none."""
    study = load_study(MIXED)
    runs = [run for run in study.runs("size=n2.77m|n3.11m") if run.arch == "hgrn2-3to1"]
    assert plan(study, runs).warnings == [
        "transformer: 7 heads of queries read a head of keys at n2.77m and 2 at n3.11m, which confounds a law; "
        "n_kv_heads in overrides.by_size evens it, or sizes whose heads are even"
    ]
    assert not plan(study, [run for run in runs if run.size == "n2.77m"]).warnings
    books = load_study("books")
    assert not plan(books, books.runs()).warnings


def test_notes_that_differ_by_size_and_number_are_one_line() -> None:
    books = load_study(Path(__file__).parents[3] / "docs" / "research" / "books.yaml")
    made = plan(books, Request(books).runs)
    shown = [line for line in show_plan(made).splitlines() if "swept" in line and not line.startswith("recipe")]
    assert len(shown) < 15 < len([note for note in made.notes if "swept" in note])
    assert any(line.startswith("n13.6m, the farthest of 2 sizes (llama): N lies 1.51 times further") for line in shown)
    assert any(
        line.startswith("n190k and 31 more sizes (hgrn2-3to1): its rate was swept with layers=") for line in shown
    )
