"""choose.ipynb, on a drawn study of two architectures, one of which needs less compute."""

import numpy as np
import pytest

from tests.analysis.fits.synthetic import SIZES as NAMED
from tests.analysis.fits.synthetic import write_run
from tests.analysis.notebooks.execute import execute, plots_of, text_of

TOKENS = {"14k": 1_700_000, "25k": 1_300_000, "55k": 900_000, "98k": 700_000}


def world(b):
    return lambda n, d: 1.0 + 30 / n**0.3 + b / d**0.33


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("drawn") / "drawn", np.random.default_rng(0)
    shared = {(size, seed): 0.004 * rng.standard_normal() for size in TOKENS for seed in range(3)}
    for arch, b in (("llama", 300.0), ("hgrn2", 270.0)):
        for size, tokens in TOKENS.items():
            for seed in range(3 if size == "25k" else 1):
                shift = shared[size, seed] + 0.001 * rng.standard_normal()
                cost = 6.6 * NAMED[size] + 2e4
                options = {"seed": seed, "shift": shift, "noise": 0.005, "per_token": cost}
                write_run(folder, arch, size, tokens, world=world(b), **options)
    return folder


def test_the_notebook(study, tmp_path):
    outputs = execute("choose", tmp_path, STUDY_DIR=str(study), REPLICATES="60", TIMES="3")
    text = text_of(outputs)
    for part in (
        "(FLOP, exact), 3 times what all architectures reached",
        "C 6nd, N without embeddings",
        "hardware or speed is not recorded",
        "> 99% of draws",
        "compute for the lowest loss",
        "3 times above what all runs reached",
    ):
        assert part in text, part
    (figure,) = plots_of(outputs)
    assert {trace["name"] for trace in figure["data"] if trace.get("name")} == {"LLaMA"}
