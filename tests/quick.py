"""What `make check` tests: one quick file or more for every contract of every package. `python -m tests.quick` runs it.

All of it is to take less than a minute on two cores, so a file is listed here for what it covers in a few seconds; with
`::` a single test of a slower file. tests/test_quick.py sees to it that every package has its line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = {
    "arch: configurations and registry": ["tests/arch/test_config.py", "tests/arch/test_registry.py"],
    "arch: mixers are the papers' equations": [
        "tests/arch/architectures/test_equations.py",
        "tests/arch/architectures/test_ablations.py::test_mixers_equal_the_equations",
    ],
    "arch: operations agree with the naive recurrence": [
        "tests/arch/ops/test_ops.py::test_steps_are_the_chunk_backend"
    ],
    "arch: decoding agrees with reading at once": [
        "tests/arch/model/test_decode.py::test_greedy_is_the_argmax_of_full_passes",
    ],
    "data: the order of tokens follows from seed and step": ["tests/data/test_loader.py"],
    "data: a corpus follows from text and settings": ["tests/data/test_corpus.py"],
    "flops: counts agree with each other and the paper": [
        "tests/flops/test_conventions.py",
        "tests/flops/test_paper.py",
        "tests/flops/test_cli_table7.py",
    ],
    "scaling.study: a study file and its mistakes": ["tests/scaling/study/test_spec.py"],
    "scaling.study: packaged studies plan": ["tests/scaling/study/test_packaged.py"],
    "scaling.rundir: writes are whole or absent": [
        "tests/scaling/rundir/test_directory.py",
        "tests/scaling/rundir/test_lock.py",
        "tests/scaling/rundir/test_owner.py",
    ],
    "scaling.trainer: golden losses": ["tests/scaling/trainer/test_golden.py"],
    "scaling.trainer: what a run resumes from": [
        "tests/scaling/trainer/test_resume.py::test_a_damaged_state_is_passed_over",
        "tests/scaling/trainer/test_resume.py::test_a_state_ahead_of_its_rows_is_not_used",
        "tests/scaling/trainer/test_resume.py::test_a_state_of_another_spec_is_refused",
    ],
    "jobs: plan and scripts": ["tests/jobs/test_plan.py", "tests/jobs/test_render.py"],
    "analysis.fits: laws of known curves": [
        "tests/analysis/fits/test_crossings.py",
        "tests/analysis/fits/test_envelope.py",
    ],
    "analysis.source: published tables are those of the runs": [
        "tests/analysis/source/test_parquet.py",
        "tests/analysis/source/test_published.py",
    ],
    "analysis.evals: registry, data and claims": [
        "tests/analysis/evals/test_lmeval_rows.py",
        "tests/analysis/test_claims.py",
    ],
    "benchmarks: peers are given what ours have": ["tests/benchmarks/test_kernels.py"],
    "docs: generated tables and links": ["tests/docs/test_pages.py"],
    "the house: imports, sizes, words": ["tests/test_house.py"],
}


def main() -> int:
    tests = [test for tests in CONTRACTS.values() for test in tests]
    options = ["-m", "not slow", "-n", "2", "--dist", "loadfile", "-q", "--durations=5"]
    return int(pytest.main([*options, *tests, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
