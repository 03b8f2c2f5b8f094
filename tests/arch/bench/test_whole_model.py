"""`python -m arch.bench --model`: what it refuses, and how it sorts kernels. Its steps need a GPU."""

import pytest
import torch

from arch.bench import command as bench
from arch.bench.whole_model import Training, kind_of
from arch.errors import InputError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [("--model llam", "did you mean 'llama'"), ("--model llama,tnl --size 411m", "unknown size '411m'")],
)
def test_bad_arguments_are_one_line(arguments, message):
    with pytest.raises(InputError, match=message):
        bench.main(arguments.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(InputError, match="needs a GPU"):
        bench.main(["--model", "tnl", "--size", "6k"])


def test_kernels_by_kind():
    names = {
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": "matrix products",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26": "attention",
        "decay_attend": "sequence kernels",
        "activate": "sequence kernels",
        "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float>>": "optimizer",
        "norm_backward": "other",
    }
    assert {name: kind_of(name) for name in names} == names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_trains():
    from arch.bench.whole_model import parser

    options = parser().parse_args(["--model", "tnl", "--size", "98k", "--batch", "2", "--context-length", "64"])
    training = Training("tnl", options)
    losses = [float(training.step()) for _ in range(20)]
    assert losses[-1] < losses[0]
