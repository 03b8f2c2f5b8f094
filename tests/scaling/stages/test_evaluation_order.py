"""The order in which a worker evaluates checkpoints."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from scaling.stages.evaluation_matrix import alike_together
from scaling.study.cost import expected_work
from scaling.study.spec import load_study


def test_runs_whose_models_are_built_once_follow_each_other_the_largest_first(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\ncorpus: {source: 'synthetic:0:60000'}\n"
        "grid: {archs: [llama, tnl], sizes: [6k, 14k], seeds: [0, 1, 2]}\n"
        "model: {context_length: 64}\n"
        "training: {n_tokens: 25600, batch_tokens: 256}\n"
        "overrides: {by_run: {llama/6k: {n_tokens: 256000}}}\n"
    )
    runs = list(load_study(tmp_path / "s.yaml").runs())
    order = alike_together(runs)
    assert {run.run_id for run in order} == {run.run_id for run in runs} and len(order) == len(runs) == 12
    kinds = [(run.arch, run.config.d_model) for run in order]
    assert sum(a != b for a, b in pairwise(kinds)) == 3, "each configuration once"
    heads = [expected_work(run) for run in order[::3]]
    assert heads == sorted(heads, reverse=True) and alike_together(order[::-1])[0].arch == order[0].arch
