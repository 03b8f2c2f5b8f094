"""`python -m arch.bench --model`: what it refuses, the shapes it measures, and how it sorts kernels. Its steps need a
GPU."""

import pytest
import torch

from arch.bench import command as bench
from arch.bench.kernels import kind_of
from arch.bench.whole_model import config_of, make, measure, parser
from arch.errors import InputError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model llam", "did you mean 'llama'"),
        ("--model llama,tnl --size 411m", "unknown size '411m'"),
        ("--model llama --size 8x", "--size 8x: unknown size.* or LAYERSxWIDTH, as 8x256"),
        ("--size 8x256", "--size: belongs to --model"),
        ("--model llama --vocab-size 0", "whole numbers"),
    ],
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


@pytest.mark.parametrize(
    ("size", "heads", "d_ffn"), [("4x128", 1, 344), ("8x256", 2, 688), ("8x384", 3, 1024), ("10x512", 4, 1376)]
)
def test_sizes_by_layers_and_width(size, heads, d_ffn):
    config = config_of("hgrn2", size, 257, 2048)
    assert (config.n_heads, config.d_ffn, config.vocab_size) == (heads, d_ffn, 257)
    assert f"{config.n_layers}x{config.d_model}" == size


@pytest.mark.gpu
def test_a_step_trains_and_is_replayed():
    options = parser().parse_args(["--model", "tnl", "--size", "98k", "--batch", "2", "--context-length", "64"])
    training = make("tnl", config_of("tnl", "98k", None, 64), options)
    losses = [float(training.step()) for _ in range(20)]
    assert losses[-1] < losses[0]
    row = measure(training, options)
    assert row["launches"] > 10 and row["graph_ms"] <= row["step_ms"]
