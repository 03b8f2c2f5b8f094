"""Counts against the paper's text: the formulas of table 1 and of appendix A.1. Table 7: test_cli_table7.py."""

import pytest

from arch.config import ModelConfig
from arch.presets import preset
from flops import by_module, cost_table, count_params, train_flops_per_token
from flops.registry import entry_of

ARCHS = ("llama", "tnl", "hgrn2", "cosformer2")


def test_paper_is_table_1():
    shape = {"d_model": 24, "n_layers": 5, "n_heads": 3, "d_ffn": 7, "vocab_size": 11, "context_length": 40}
    unit = 72 * 5 * 24**2  # per token
    expected = {
        "llama": unit + unit * 40 / (6 * 24) + unit * 5 / (18 * 24),
        "tnl": unit + unit / 6 + unit * 5 / (18 * 24),
        "hgrn2": unit + unit / 9 + unit * 29 / (72 * 24),
        "cosformer2": unit + unit / 4 + unit * 23 / (72 * 24),
    }
    for arch, flops in expected.items():
        assert train_flops_per_token(ModelConfig(arch=arch, **shape), "paper") == pytest.approx(flops, rel=1e-12)


def test_cost_table_is_plain_data():
    cost = cost_table(preset("cosformer2", "55k", tie_embeddings=False))
    assert cost["n_params"] == cost["n_params_embedding"] + cost["n_params_non_embedding"]
    assert cost["n_params_embedding"] == 2 * 257 * 48
    assert tuple(cost["flops_per_token_train"]) == ("paper", "exact", "6nd")  # what run.json has always held


# A.1's operations of one layer and sequence, forward, term by term as printed; n tokens, B = d/h.
def of_the_text(arch, n, d, h, t, B):
    if arch == "llama":  # A.1.1, token mixer
        return 8 * n * d**2 + 4 * n**2 * d + 3 * n**2 * h + 4 * n * d
    if arch == "tnl":  # A.1.2: projections; n/B times intra, inter, kv update, output update; gate; gating; output
        block = (4 * B**2 * d + B**2 * h) + 2 * B * d**2 / h + (2 * B * d**2 / h + d**2 / h) + B * d
        return 6 * n * d**2 + n / B * block + 4 * n * d * t + n * d + 2 * n * d**2
    if arch == "hgrn2":  # A.1.3: the forget gate's 4nd; no output gate
        block = (4 * B**2 * d + B**2 * h) + 2 * B * d**2 / h + (2 * B * d**2 / h + d**2 / h) + B * d
        return 6 * n * d**2 + 4 * n * d + n / B * block + 2 * n * d**2
    block = (6 * B**2 * d + B**2 * h) + 4 * B * d**2 / h + (4 * B * d**2 / h + 2 * d**2 / h) + B * d
    return 6 * n * d**2 + 4 * n * d + n / B * block + 4 * n * d * t + n * d + 2 * n * d**2  # A.1.4, Lrpe's 4nd


@pytest.mark.parametrize("arch", ARCHS)
def test_appendix_is_the_sum_of_the_texts_operations(arch):
    n, d, h, g, v, t, e, layers = 96, 48, 3, 130, 301, 7, 5, 4
    shape = {"d_model": d, "n_layers": layers, "n_heads": h, "d_ffn": g, "vocab_size": v, "context_length": n}
    options = {"tnl": {"gate_rank": t}, "cosformer2": {"gate_rank": t, "tpe_dim": e}}.get(arch, {})
    cfg = ModelConfig.from_dict({"arch": arch} | shape | options)
    forward = layers * (of_the_text(arch, n, d, h, t, d / h) + 6 * n * d * g + n * g) + 4 * n * d * v
    forward += {"hgrn2": 4 * d * layers, "cosformer2": 4 * n * d * e}.get(arch, 0)
    assert train_flops_per_token(cfg, "appendix") * n == pytest.approx(3 * forward, rel=1e-13)
    single, ten = (entry_of(arch).appendix_once(cfg, n, sequences) for sequences in (1, 10))
    assert ten == pytest.approx({k: v / 10 if arch == "hgrn2" else v for k, v in single.items()})  # its 12dl without b


def test_the_papers_misprints_as_lines():
    """What table 1 lacks of A.1, with its own substitutions: named, and as much as the text says."""
    n, d, h, v, layers = 64, 48, 4, 301, 5
    shape = {"d_model": d, "n_layers": layers, "n_heads": h, "d_ffn": 8 * d // 3, "vocab_size": v, "context_length": n}
    lacking = {
        "llama": {"mixer.softmax.exp": 9 * n * h * layers},
        "tnl": {},
        "hgrn2": {"lower_bound.softmax": 12 * d * layers / n},
        "cosformer2": {"tpe.state": 12 * d * d / h, "mixer.lrpe": 12 * d * layers},
    }
    for arch, lines in lacking.items():
        cfg = ModelConfig(arch=arch, **shape)
        paper, appendix = by_module(cfg, "paper"), by_module(cfg, "appendix")
        expected = {"embedding": 6 * d * v, "head": 6 * d * v} | lines
        assert set(appendix) - set(paper) == set(expected) and set(paper) <= set(appendix)
        assert {name: appendix[name] for name in expected} == pytest.approx(expected, rel=1e-13)


def test_6nd_with_and_without_the_head():
    for arch in ARCHS:
        for tied in (True, False):
            cfg = preset(arch, "410m", tie_embeddings=tied)
            n = count_params(cfg).non_embedding
            assert train_flops_per_token(cfg, "6nd") == 6 * n
            assert train_flops_per_token(cfg, "6nd_total") == 6 * (n + 100_280 * 1024)
