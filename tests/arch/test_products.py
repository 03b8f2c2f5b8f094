"""Trainer and evaluations multiply in fp32 where the environment asks for TF32, as NVIDIA's containers do."""

import os
import subprocess
import sys

import pytest

TRAINING = "from scaling.trainer.process import set_numerics; set_numerics('cuda', 1)"
EVALUATION = """
from contextlib import suppress
from arch.errors import InputError
from scaling.cli.evaluation import eval_worker
from scaling.cli.evaluation import EvalOptions
from scaling.cli.request import Request
from scaling.study.spec import load_study
with suppress(InputError):  # there is no corpus
    eval_worker(Request(load_study("four-architectures")), EvalOptions(), None)
"""


SHOW = "import torch; print(torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32)"


@pytest.mark.parametrize("work", [TRAINING, EVALUATION], ids=["training", "evaluation"])
def test_no_tf32_by_the_environment(work, tmp_path):
    environment = os.environ | {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    code = f"{SHOW}\n{work}\n{SHOW}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    words = done.stdout.split()
    assert (words[:2], words[-2:]) == (["high", "True"], ["highest", "False"]), done.stderr
