"""`python -m benchmarks.tiles`: the sizes that it tries are sizes that there are."""

import pytest

from arch.errors import InputError
from arch.ops import common
from benchmarks import tiles


@pytest.mark.skipif(not common.WITH_TRITON, reason="triton is not installed (pip install triton==3.7.1)")
@pytest.mark.parametrize(
    ("case", "rules"),
    [
        ("hgrn2", "gated_for_device"),
        ("hgrn2-silu", "gated_for_device"),
        ("hgrn2-far", "gated_for_device"),
        ("cosformer2", "rotary_for_device"),
        ("cosformer2-silu", "rotary_for_device"),
        ("tnl", "decay_config"),
        ("tnl-silu", "decay_config"),
    ],
)
def test_sweeps_set_sizes_that_there_are(case, rules, monkeypatch):
    from arch import kernel_config
    from arch.ops.triton import device_config

    monkeypatch.setattr(device_config, "trusted_assembler", lambda: False)
    trials = tiles.trials(case, 128)
    for trial in trials:
        with kernel_config.override(**trial):
            result = getattr(device_config if rules.endswith("device") else kernel_config, rules)(128, 128, False)
        assert {name: getattr(result, name) for name in trial} == trial
    if case == "tnl":  # their own sizes are those of the kernels by mma.sync, which must be what runs
        assert all(trial["tma"] is False for trial in trials if "warps" in trial)


def test_a_case_without_kernels_is_refused():
    with pytest.raises(InputError, match="unknown 'llama'"):
        tiles.main(["--only", "llama"])


@pytest.mark.skipif(not common.WITH_TRITON, reason="triton is not installed (pip install triton==3.7.1)")
def test_every_timed_kernel_is_where_it_is_launched():
    for module, names in tiles.timed_kernels().items():
        assert not [name for name in names if not hasattr(module, name)], module.__name__
