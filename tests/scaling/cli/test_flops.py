"""`flops study`: the packaged studies' costs, whose sums, disk and hours follow from the runs'."""

from __future__ import annotations

import json
import math

import pytest

from arch.errors import InputError
from arch.presets import preset
from flops import checkpoint_bytes, count_params, state_bytes, train_flops_per_token, training_memory
from flops.hardware import DEVICES, device_of
from flops.ladder import Ladder, rung
from flops.pace import pace
from flops.shapes import free_shape
from flops.tables import duration
from scaling.cli.flops import to_dict
from scaling.study.cost import StudyCost, states_kept, study_cost
from scaling.study.plan import plan
from scaling.study.spec import load_study
from tests.flops.test_cli import flops, must, rows_of

PAPER_STEPS = 76_294  # 300e9 tokens in batches of 480 x 8192, rounded up


def cost_of(name: str, *sets: str, device: str = "h100", gpus: int = 1, convention: str = "exact") -> StudyCost:
    study = load_study(name, list(sets))
    return study_cost(study, study.runs(), device_of(device), 0.4, gpus, convention)


def test_the_papers_compute_by_its_own_table() -> None:
    """Under convention `paper` a run's FLOP are table 7's PFLOP a step times its steps."""
    flops_of = {(row.run.arch, row.run.size): row.flops for row in cost_of("paper", convention="paper").runs}
    assert len(flops_of) == 24
    for arch, size, pflop in (
        ("llama", "7b", 202.7),
        ("tnl", "7b", 154.4),
        ("hgrn2", "1b", 22.0),
        ("llama", "70m", 1.6),
    ):
        assert flops_of[arch, size] == pytest.approx(pflop * 1e15 * PAPER_STEPS, rel=0.05 / pflop)
    assert flops_of["llama", "7b"] / 8.64e19 == pytest.approx(179.0, abs=0.1)


@pytest.mark.parametrize("name", ["paper", "four-architectures"])
def test_totals_are_sums_and_agree_with_the_plan(name: str) -> None:
    study, costs = load_study(name), cost_of(name)
    data, planned = to_dict(costs), plan(study, study.runs())
    rows, totals = data["runs"], data["totals"]
    for key in ("n_tokens", "n_steps", "flops", "device_hours", "checkpoint_bytes", "state_bytes", "n_checkpoints"):
        assert totals[key] == pytest.approx(sum(row[key] for row in rows), rel=1e-12)
    once = 19  # seconds more: the process that trains them all starts once
    assert totals["wall_seconds"] == pytest.approx(once + sum(row["wall_seconds"] for row in rows), rel=1e-12)
    assert totals["n_runs"] == len(planned.runs) == len(rows)
    assert (totals["n_checkpoints"], totals["checkpoint_bytes"]) == (planned.n_checkpoints, planned.checkpoint_bytes)
    assert totals["n_tokens"] == planned.n_tokens
    assert costs.flops == pytest.approx(planned.flops_exact, rel=1e-12)


def test_the_command_counts_forecast_runs_as_the_plan_does() -> None:
    study = load_study("quickstart")
    planned, data = plan(study, study.all_runs()), json.loads(must("study", "quickstart", "--json"))
    assert [(row["run_id"], row["role"], row["round"]) for row in data["runs"]] == [
        (run.run_id, run.role, run.round) for run in planned.runs
    ]
    totals = data["totals"]
    assert (totals["n_runs"], totals["n_tokens"]) == (len(planned.runs), planned.n_tokens)
    assert totals["flops"] == pytest.approx(planned.flops_exact, rel=1e-12)
    first = study.forecast_runs()[0]
    assert f"{first.run_id} (forecast)" in must("study", "quickstart", "--only", f"seed={first.seed}")
    assert [row["run_id"] for row in rows_of("study", "quickstart")] == [run.run_id for run in planned.runs] + ["total"]


def test_hours_by_hand() -> None:
    """H100: 989.5e12 x 0.4 FLOP/s; 60 of them share a run, whose device hours stay what they are, but for the start of
    60 processes, and where the host is slower than the FLOP."""
    single, many = cost_of("paper"), cost_of("paper", gpus=60)
    for row, shared in zip(single.runs, many.runs, strict=True):
        cfg = preset(row.run.arch, row.run.size)
        assert row.flops == train_flops_per_token(cfg, "exact") * PAPER_STEPS * 480 * 8192
        by_flops = row.flops / (989.5e12 * 0.4)
        for cost, gpus in ((row, 1), (shared, 60)):
            assert cost.device_hours == pytest.approx(gpus * cost.wall_seconds / 3600)
            start = 20 if gpus > 1 else 1  # one process trains the runs of one GPU
            if cost.pace.bound_by == "flops":
                assert cost.wall_seconds == pytest.approx(start + by_flops / gpus)
            else:
                assert cost.wall_seconds > start + by_flops / gpus
    assert {row.run.size for row in many.runs if row.pace.bound_by == "flops"} >= {"1b", "3b", "7b"}
    slower = cost_of("paper", "grid.sizes=[7b]", "grid.extra_seeds={}", device="a100")
    of_7b = sum(row.device_hours for row in single.runs if row.run.size == "7b")
    assert sum(row.device_hours for row in slower.runs) / of_7b == pytest.approx(989.5 / 312, rel=1e-4)


def test_a_quickstart_takes_the_minutes_it_took_on_two_cores() -> None:
    """8 min 44 s with corpus, evaluation, fits and report (README.md): 28 runs, two at once, a thread each."""
    study = load_study("four-architectures")
    both, single = (study_cost(study, study.runs(), device_of("cpu"), None, cores, "exact") for cores in (2, 1))
    assert 7 * 60 < both.wall_seconds < 8.75 * 60 and both.at_once == 2
    assert all(row.devices == 1 for row in both.runs), "a run of one thread has no use for a second core"
    assert single.wall_seconds == pytest.approx(2 * both.wall_seconds, rel=0.05)


def test_small_models_on_a_gpu_take_as_long_as_their_host_or_their_kernels() -> None:
    """HGRN2, 65,536 tokens a step in the trainer on an H200, where the FLOP of 8 layers of width 256 take 6 ms: 48 ms
    where the host starts every kernel, 13.3 ms replayed; 24 heads of 16 channels at width 384 take 25.4."""
    cfg, h200 = free_shape("hgrn2", 256, 8, vocab_size=257, context_length=2048), device_of("h200")
    eager = pace(cfg, 65_536, h200, replayed=False)
    assert eager.bound_by == "host" and 0.040 < eager.step_seconds < 0.055 and "H200" in eager.basis
    four = pace(cfg, 65_536, h200, passes=4, replayed=False)
    assert four.step_seconds == pytest.approx(4 * eager.step_seconds)
    replayed = pace(cfg, 65_536, h200)
    assert replayed.bound_by == "kernels" and replayed.step_seconds == pytest.approx(13.3e-3, rel=0.1)
    assert replayed.step_seconds / 2 < pace(cfg, 65_536, h200, units=2).step_seconds < replayed.step_seconds
    assert replayed.step_seconds < pace(cfg, 65_536, h200, passes=4).step_seconds < 1.5 * replayed.step_seconds
    wide = rung("hgrn2", Ladder(225e3, 14.4e6, 7), 14.4e6, {"vocab_size": 257, "context_length": 2048}).cfg
    assert pace(wide, 65_536, h200).step_seconds == pytest.approx(25.4e-3, rel=0.15)
    large = pace(preset("hgrn2", "1b"), 65_536, h200)
    assert large.bound_by == "flops" and "40.0% of the peak" in large.basis
    warnings = cost_of("four-architectures", "training.zero_stage=1", gpus=4, device="h200").warnings
    assert any("28 of 28 runs are bound by the host" in line for line in warnings)


def test_disk_is_that_of_flops_memory() -> None:
    for name, n, kind in (("paper", 57, "bf16"), ("four-architectures", 6, "fp32")):
        for row in cost_of(name).runs:
            config = row.run.config
            assert row.n_checkpoints == len(row.run.checkpoint_steps) == n
            assert row.checkpoint_bytes == n * checkpoint_bytes(config, kind)
            assert row.state_bytes == 2 * state_bytes(config)
            if kind == "fp32":
                assert checkpoint_bytes(config, kind) == 4 * count_params(config).total


@pytest.mark.parametrize("every", [None, 100, 2048, 3000, 4096, 10**6])
@pytest.mark.parametrize("keep", [1, 2, 99])
def test_states_kept_are_those_that_the_trainer_saves(every: int | None, keep: int) -> None:
    """A run of five batches of 2,048 tokens, whose states are saved where a multiple of `every` was passed."""
    sets = ["training.n_tokens=10240", "training.batch_tokens=2048", f"training.keep_states={keep}"]
    sets += ["training.warmup_tokens=0", *([f"training.state_every_tokens={every}"] if every else [])]
    for run in load_study("four-architectures", sets).runs("size=6k,seed=0"):
        due = [step for step in range(1, 5) if every and step * 2048 // every > (step - 1) * 2048 // every]
        due = [*due, 5] if every else run.checkpoint_steps
        assert run.state_steps == due and states_kept(run) == min(len(due), keep)


def test_memory_of_a_run_and_what_does_not_fit() -> None:
    costs = cost_of("paper", "training.micro_batch_tokens=8192", "jobs.recompute=false", gpus=60)
    row = next(row for row in costs.runs if row.run.run_id.startswith("llama-7b"))
    least = training_memory(preset("llama", "7b"), micro_batch_tokens=8192, world_size=60, accumulate=False)["total"]
    assert row.memory_bytes is not None and row.memory_bytes >= least  # of each device: as many micro-batches
    core = next(row for row in cost_of("four-architectures", device="cpu").runs if row.run.arch == "hgrn2")
    gpu = next(row for row in cost_of("four-architectures").runs if row.run.run_id == core.run.run_id)
    assert gpu.memory_bytes != core.memory_bytes  # kernels on the one, plain forms on the other
    sizes = [f"training.micro_batch_tokens={n}" for n in (16384, 32768)]
    fits, large = ([line for line in cost_of("paper", size, gpus=60).warnings if "GB of" in line] for size in sizes)
    assert fits == [] and large[0].startswith("4 of 32 runs need more than 90% of the 80 GB of H100 SXM, up to 77")
    assert large[0].endswith("training.micro_batch_tokens=16384 makes it fit")
    assert any("GB of H100 SXM" in line and "jobs.recompute=1 makes it fit" in line for line in costs.warnings)
    again = cost_of("paper", "training.micro_batch_tokens=8192", "jobs.recompute=1", gpus=60)
    assert not any("GB of" in line for line in again.warnings)
    assert not cost_of("four-architectures", device="cpu").warnings
    assert not any("GB of" in line for line in cost_of("four-architectures").warnings)


def test_batches_that_do_not_split_are_warned_of() -> None:
    (line,) = (line for line in cost_of("paper", gpus=64).warnings if "split" in line)
    assert line == "a batch of 480 sequences does not split over 64 GPUs: 60 or 80 would do"
    assert not any("split" in line for line in cost_of("paper", gpus=60).warnings)
    assert "4 would do" in cost_of("four-architectures", gpus=1000).warnings[0]


def test_numbers_stay_finite_on_a_million_gpus() -> None:
    totals = to_dict(cost_of("paper", "training.n_tokens=300e12", gpus=10**6))["totals"]
    assert all(math.isfinite(value) and value > 0 for value in totals.values()) and totals["flops"] > 8e25


def test_device_peaks_are_dense() -> None:
    """Published with sparsity: H100 and H200 1,979 TFLOP/s, A100 624; sparsity doubles them."""
    published = {"h100": 1979e12, "h200": 1979e12, "a100": 624e12}
    assert {name: DEVICES[name].peak_flops_per_s * 2 for name in published} == published


def test_the_command() -> None:
    args = ["study", "paper", "--device", "H200", "--mfu", "0.35", "--gpus", "8", "--only", "size=7b"]
    data, rows = json.loads(must(*args, "--json")), rows_of(*args)
    assert [row["run_id"] for row in rows] == [row["run_id"] for row in data["runs"]] + ["total"]
    assert [float(row["flops"]) for row in rows] == [row["flops"] for row in data["runs"]] + [data["totals"]["flops"]]
    assert (data["mfu"], data["gpus"], data["device"], data["convention"]) == (0.35, 8, "H200 SXM", "exact")
    text = must(*args)
    for part in ("8 GPUs (H200 SXM), one after", "FLOP at 35% of the peak", "data sheet", "convention exact"):
        assert part in text
    result = flops("study", "four-architectures", "--set", "grid.archs=[hgrn1]", "--convention", "paper")
    assert result.returncode == 2 and "'paper' has no formula for hgrn1" in result.stderr
    with pytest.raises(InputError, match="did you mean 'a100'"):
        device_of("a10")


def test_duration() -> None:
    words = ["0.5 s", "45 s", "1.50 min", "1.00 h", "27.8 h", "2.31 d", "115.7 d"]
    assert [duration(s) for s in (0.5, 45, 90, 3600, 100_000, 200_000, 1e7)] == words
