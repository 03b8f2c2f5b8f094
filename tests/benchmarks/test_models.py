"""`python -m benchmarks.models`: which models it measures, and that peers have our shape. Its steps need a GPU."""

import pytest
import torch

from arch.bench.whole_model import config_of
from arch.errors import InputError
from arch.model.lm import build_model
from benchmarks.model_peers import make_peer
from benchmarks.models import cases, main, parser


def test_an_unknown_peer_is_refused():
    with pytest.raises(InputError, match=r"--peers hf-lama: unknown .valid: all, hf-llama"):
        main(["--model", "llama", "--peers", "hf-lama"])


def test_every_size_and_vocabulary_with_its_peers():
    options = parser().parse_args(
        ["--model", "tnl,llama", "--size", "4x128,6k", "--vocab-size", "257,8192", "--peers", "fla-gla"]
    )
    chosen = [(model, size, config.vocab_size) for model, size, config in cases(options)]
    assert chosen == [
        (model, size, vocab)
        for size in ("4x128", "6k")
        for vocab in (257, 8192)
        for model in ("tnl", "llama", "fla-gla")
    ]


def test_the_peer_has_our_shape():
    """transformers' LLaMA of the same numbers has our parameters, but for the norms' gains, which ours has as well."""
    config = config_of("llama", "2x128", 257, 64)
    ours = build_model(config, 0)
    peer, loss_of = make_peer("hf-llama", config, "cpu")
    ids = torch.randint(257, (2, 65))
    assert abs(float(loss_of(ids)) - 5.55) < 0.3
    counts = [sum(p.numel() for p in model.parameters() if p.dim() == 2) for model in (ours, peer)]
    assert counts[0] == counts[1]


def test_what_liger_replaced_for_a_model_is_not_in_the_next():
    from transformers.models.llama import modeling_llama

    config = config_of("llama", "2x128", 257, 64)
    make_peer("hf-llama", config, "cpu")
    names = ("LlamaMLP", "LlamaRMSNorm", "apply_rotary_pos_emb")
    before = [getattr(modeling_llama, name) for name in names]
    for name in names:
        setattr(modeling_llama, name, None)  # as Liger does, with its own
    make_peer("hf-llama", config, "cpu")
    assert [getattr(modeling_llama, name) for name in names] == before
