"""The decode state's figure against the state of a real model."""

import dataclasses

import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model, load_model
from arch.presets import preset
from flops import decode_state
from flops.registry import ENTRIES
from tests.flops.test_against_torch import ABLATED, name_of

CASES = [
    *((arch, {}) for arch in ARCHS),
    ("mamba1", {"conv_width": 1, "expand": 3, "ssm_state": 5}),
    ("mamba2", {"conv_width": 6, "expand": 3, "ssm_state": 5}),
    ("hgrn2", {"n_heads": 4}),
    ("cosformer2", {"tpe_dim": 7}),
    *ABLATED,
]


@pytest.mark.parametrize("arch, changes", CASES, ids=name_of)
@torch.no_grad()
def test_bytes_are_those_of_a_real_models_state(arch, changes, tmp_path):
    """After several tokens in one pass and after one more, in fp32 and with the weights in bf16."""
    model = build_model(preset(arch, "14k", **{"n_layers": 3} | changes), seed=0)
    model.save_pretrained(tmp_path)
    for batch, dtype, size in ((1, torch.float32, 4), (3, torch.bfloat16, 2)):
        model = load_model(tmp_path, dtype)
        ids, cache, read = torch.zeros(batch, 9, dtype=torch.int64), None, 0
        for length in (9, 1):
            read += length
            cache = model(input_ids=ids[:, :length], cache=cache, use_cache=True).cache
            assert cache.n_bytes == batch * decode_state(model.model_config, read, activation_bytes=size)["bytes"]


def test_bad_arguments_and_an_entry_without_a_state(monkeypatch):
    cfg = preset("tnl", "14k")
    for arguments in ((0,), (-1,), (2.5,), (True,), (10, 0)):
        with pytest.raises(InputError, match="must be a positive integer"):
            decode_state(cfg, *arguments)
    monkeypatch.setitem(ENTRIES, "tnl", dataclasses.replace(ENTRIES["tnl"], state=None))
    with pytest.raises(InputError, match="the costs of 'tnl' have no decode state"):
        decode_state(cfg)
