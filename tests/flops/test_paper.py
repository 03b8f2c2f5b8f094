"""Counts against the paper's text: table 7's two columns, and table 1's formulas written out by hand."""

import csv

import pytest

from arch.config import ModelConfig
from arch.errors import InputError
from arch.presets import preset
from flops import by_module, conventions_of, cost_table, count_params, train_flops_per_token

ARCHS = {"LLaMA": "llama", "TNL": "tnl", "HGRN2": "hgrn2", "cos2": "cosformer2"}
STEP = 480 * 8192  # tokens of a training step in table 7

# Table 7 as printed (arch, size, millions of parameters, PFLOP per step): a corner of it that needs no other file.
PRINTED = [
    ("llama", "70m", 20.5, 1.6),
    ("llama", "7b", 6476.5, 202.7),
    ("tnl", "410m", 327.7, 7.9),
    ("tnl", "7b", 6509.6, 154.4),
    ("hgrn2", "1b", 906.0, 22.0),
    ("hgrn2", "7b", 6476.1, 153.6),
    ("cosformer2", "160m", 87.5, 2.3),
    ("cosformer2", "7b", 6511.0, 155.6),
]


def pflops_per_step(cfg):
    return train_flops_per_token(cfg, "paper", 8192) * STEP / 1e15


@pytest.mark.parametrize(("arch", "size", "params_million", "pflops"), PRINTED)
def test_printed_cells(arch, size, params_million, pflops):
    cfg = preset(arch, size)
    assert round(pflops_per_step(cfg), 1) == pflops
    if arch in ("tnl", "hgrn2"):  # the others' printed counts hold norm weights that the text does not describe
        assert round(count_params(cfg).non_embedding / 1e6, 1) == params_million


def test_all_of_table_7(shared):
    with open(shared / "reference/csv/003_table07_params_flops.csv") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 24
    for row in rows:
        cfg = preset(ARCHS[row["arch"]], row["size"].lower())
        assert (cfg.n_layers, cfg.d_model) == (int(row["l"]), int(row["d"])), row
        assert cfg.vocab_size == int(row["v"])
        assert f"{pflops_per_step(cfg):.1f}" == row["pflops_per_step"], row
        # The print rounds for TNL and HGRN2; LLaMA's holds 4ld of norms where we have (2l+1)d, cosFormer2's 7ld more
        # than the text where we have ld (its 3B row fits no formula).
        count = count_params(cfg).non_embedding
        extra = {"LLaMA": (2 * cfg.n_layers - 1) * cfg.d_model, "cos2": 6 * cfg.n_layers * cfg.d_model}
        count += extra.get(row["arch"], 0)
        if (row["arch"], row["size"]) != ("cos2", "3B"):
            assert f"{count / 1e6:.1f}" == row["params_million"], row


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


def test_exact_of_a_large_llama_is_near_6_n_with_head_and_half_the_square():
    cfg = preset("llama", "7b")
    params = count_params(cfg)
    matrices = params.total - (2 * cfg.n_layers + 1) * cfg.d_model  # tied: the head's matrix is the embedding's
    causal = 6 * cfg.n_layers * cfg.context_length * cfg.d_model
    assert train_flops_per_token(cfg, "exact") == pytest.approx(6 * matrices + causal, rel=1e-12)


def test_context_length_matters_where_it_should():
    for arch in ARCHS.values():
        cfg = preset(arch, "410m")
        for convention in ("paper", "exact"):
            short, long = (train_flops_per_token(cfg, convention, n) for n in (2048, 8192))
            assert (short < long) == (arch == "llama")
        assert train_flops_per_token(cfg, "6nd") == 6 * count_params(cfg).non_embedding


def test_no_overflow():
    """A study's total in floats equals the same sum in Python's unbounded integers."""
    cfg = preset("llama", "7b", context_length=10**9)
    matrices = count_params(cfg).total - (2 * cfg.n_layers + 1) * cfg.d_model
    total = (6 * matrices + 6 * cfg.n_layers * 10**9 * cfg.d_model) * 3 * 10**11 * 10**6
    assert total > 2**100
    assert train_flops_per_token(cfg, "exact") * 3e11 * 1e6 == pytest.approx(total, rel=1e-12)


def test_an_architecture_without_a_row_in_table_1_has_no_paper_count():
    cfg = preset("hgrn1", "14k")
    assert conventions_of(cfg) == ("executed", "exact", "6nd", "6nd_total")
    assert tuple(cost_table(cfg)["flops_per_token_train"]) == ("exact", "6nd")
    with pytest.raises(InputError, match="'paper' has no formula for hgrn1: use executed or exact or 6nd"):
        train_flops_per_token(cfg, "paper")


def test_bad_names_and_lengths():
    cfg = preset("tnl", "14k")
    with pytest.raises(InputError, match="did you mean 'exact'"):
        train_flops_per_token(cfg, "exat")
    for length in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="context length must be a positive integer"):
            train_flops_per_token(cfg, "paper", length)


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


@pytest.mark.parametrize("arch", ARCHS.values())
def test_appendix_is_the_sum_of_the_texts_operations(arch):
    n, d, h, g, v, t, e, layers = 96, 48, 3, 130, 301, 7, 5, 4
    shape = {"d_model": d, "n_layers": layers, "n_heads": h, "d_ffn": g, "vocab_size": v, "context_length": n}
    options = {"tnl": {"gate_rank": t}, "cosformer2": {"gate_rank": t, "tpe_dim": e}}.get(arch, {})
    cfg = ModelConfig.from_dict({"arch": arch} | shape | options)
    forward = layers * (of_the_text(arch, n, d, h, t, d / h) + 6 * n * d * g + n * g) + 4 * n * d * v
    forward += {"hgrn2": 4 * d * layers, "cosformer2": 4 * n * d * e}.get(arch, 0)
    assert train_flops_per_token(cfg, "appendix") * n == pytest.approx(3 * forward, rel=1e-13)
    many = by_module(cfg, "appendix", sequences=10)  # 12bndv, and HGRN2's 12dl without b
    assert sum(many.values()) * 10 * n == pytest.approx(
        30 * forward - (arch == "hgrn2") * 9 * 12 * d * layers, rel=1e-13
    )


def test_appendix_with_the_papers_substitutions_is_its_closed_form_corrected():
    """g = 8d/3, B = t = e = d/h; the corrected numbers stand beside the printed ones."""
    n, d, h, v, layers, b = 64, 48, 4, 301, 5, 6
    shape = {"d_model": d, "n_layers": layers, "n_heads": h, "d_ffn": 8 * d // 3, "vocab_size": v, "context_length": n}
    embedding = 12 * b * n * d * v  # printed 12ndv
    unit = 72 * b * n * layers * d**2
    expected = {
        "llama": unit * (1 + n / (6 * d) + 5 / (18 * d) + n * h / (8 * d**2)),  # printed h/(8d^2)
        "tnl": unit * (1 + 1 / (2 * h) + 5 / (18 * d)),
        "hgrn2": unit * (1 + 1 / (3 * h) + 29 / (72 * d)) + 12 * d * layers,
        "cosformer2": unit * (1 + 3 / (4 * h) + 35 / (72 * d)) + 12 * b * n * d**2 / h,  # printed 23/72d
    }
    for arch, flops in expected.items():
        lines = by_module(ModelConfig(arch=arch, **shape), "appendix", sequences=b)
        assert sum(lines.values()) * b * n == pytest.approx(flops + embedding, rel=1e-13)


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
    for arch in ARCHS.values():
        for tied in (True, False):
            cfg = preset(arch, "410m", tie_embeddings=tied)
            n = count_params(cfg).non_embedding
            assert train_flops_per_token(cfg, "6nd") == 6 * n
            assert train_flops_per_token(cfg, "6nd_total") == 6 * (n + 100_280 * 1024)
