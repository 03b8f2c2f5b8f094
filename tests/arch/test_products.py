"""Trainer and evaluations multiply in fp32 where the environment asks for TF32, as NVIDIA's containers do."""

import os
import subprocess
import sys

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
AGAIN = "torch.set_float32_matmul_precision('high')"


def test_no_tf32_by_the_environment(tmp_path):
    environment = os.environ | {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    code = "\n".join([SHOW, TRAINING, SHOW, AGAIN, SHOW, EVALUATION, SHOW])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    *first, last = done.stdout.splitlines()
    assert (first[:3], last) == (["high True", "highest False", "high True"], "highest False"), done.stderr
