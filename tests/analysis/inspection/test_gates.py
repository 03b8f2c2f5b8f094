"""Forget-gate statistics and token-mixing matrices: against numpy, against the models' own outputs, and as files."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf

from analysis.inspection.gates import (
    Counter,
    Inspection,
    additive_recurrences,
    gate_statistics,
    mixing_matrices,
    read_rows,
)
from analysis.inspection.page import ADDITIVE, NO_GATE, SOFTMAX, figures, gates_table, page, write_inspection
from arch.architectures.common.mamba_options import inner_width
from arch.architectures.tnl.decays import fixed_slopes
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model
from arch.presets import preset
from arch.registry import ARCHITECTURES
from data.corpus import prepare
from data.settings import CorpusSettings
from data.tokenizer import get_tokenizer


def model_of(arch, **changes):
    return build_model(preset(arch, "14k", init_std=0.15, **changes), seed=1).double().eval()


def rows_of(n=3, length=40, seed=0):
    return np.random.default_rng(seed).integers(0, 257, (n, length))


def mixer_call(model, ids, layer=1, **options):
    """The mixer of one layer, its input and stream, and what its submodules read and gave, by name."""
    mixer, seen = model.decoder.layers[layer].mixer, {}
    hooks = [mixer.register_forward_pre_hook(lambda module, args: seen.update(x=args[0], stream=args[1]))]
    for name, module in mixer.named_modules():
        if name:
            hooks.append(module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: (args, out)})))
    with torch.no_grad():
        model(torch.from_numpy(ids), **options)
    for hook in hooks:
        hook.remove()
    return mixer, seen


def test_a_counter_is_numpys_mean_and_quantiles():
    values = np.random.default_rng(0).beta(5, 0.7, (7, 1001, 3)).astype(np.float32)
    counter = Counter()
    for part in values:
        counter.add(torch.from_numpy(part))
    statistics = counter.statistics()
    assert statistics.n == values.size and statistics.mean == pytest.approx(values.mean(), abs=1e-6)
    for name, share in (("median", 0.5), ("q05", 0.05), ("q95", 0.95)):
        assert getattr(statistics, name) == pytest.approx(np.quantile(values, share), abs=2e-4), name
    assert statistics.above_099 == pytest.approx((values > 0.99).mean(), abs=1e-9)
    expected = np.histogram(values, 50, (0, 1))[0] / values.size
    assert statistics.histogram == pytest.approx(expected, abs=1e-4) and sum(statistics.histogram) == pytest.approx(1)


@pytest.mark.parametrize("value", [0.0, 0.3, 1 - 1e-6, 1.0])
def test_a_constant_gate_has_its_value(value):
    counter = Counter()
    counter.add(torch.full((5, 4), value, dtype=torch.float64))
    statistics = counter.statistics()
    assert [statistics.mean, statistics.median, statistics.q05, statistics.q95] == pytest.approx([value] * 4, abs=1e-7)
    assert statistics.above_099 == (value > 0.99)


@pytest.mark.parametrize("arch", ARCHS)
def test_gates_of_a_model(arch):
    """Shares, layers and values; the batches that the rows are read in do not matter."""
    model, rows = model_of(arch), rows_of(5)
    statistics = gate_statistics(model, rows)
    assert len(statistics) == model.model_config.n_layers
    if arch == "deltanet" or not ARCHITECTURES[arch].constant_state:
        assert statistics == [None, None]
        return
    mixer, seen = mixer_call(model, rows)
    gates = mixer.forget_gates(seen["x"], seen["stream"])
    assert gates.shape[:2] == rows.shape and (gates >= 0).all() and (gates <= 1).all()
    assert statistics[1].n == gates.numel()
    assert statistics[1].mean == pytest.approx(gates.double().mean().item(), abs=1e-6)
    if arch == "tnl":
        slopes = np.array(fixed_slopes(2))
        assert statistics[0].q05 == pytest.approx(np.exp(-slopes[0] * (1 + 1e-5)), abs=1e-7)
        assert statistics[0].mean == pytest.approx(np.exp(-slopes).mean(), abs=1e-5)
    elif arch == "cosformer2":
        assert statistics[0].mean == statistics[0].q05 == 1
    else:
        assert statistics[1].q05 < statistics[1].median < statistics[1].q95 < 1


@pytest.mark.parametrize(
    "arch", ["llama", "tnl", "hgrn2", "cosformer2", "mamba2", "transformer", "gla", "retnet", "deltanet"]
)
def test_token_mixing_times_values_is_the_output(arch):
    model, rows = model_of(arch), rows_of(2)
    mixer, seen = mixer_call(model, rows)
    with torch.no_grad():
        weights = mixer.token_mixing(seen["x"], seen["stream"])
    if arch == "mamba2":
        inner = inner_width(model.model_config)
        value = seen["conv"][1][0][..., :inner]
        expected = seen["norm"][0][0] / nnf.silu(seen["project.input"][1][..., :inner])
    elif arch == "deltanet":
        value, expected = seen["conv"][1][0][..., -model.model_config.d_model :], seen["norm"][0][0].flatten(2)
    else:
        value = seen["project.value"][1]
        expected = seen["out" if arch in ("llama", "transformer") else "norm"][0][0].flatten(2)
        if arch == "transformer":  # one head of keys and values for two of queries
            value = value.repeat(1, 1, 2)
    split = (model.model_config.n_heads, -1)
    output = torch.einsum("bhts,bshp->bthp", weights, value.unflatten(-1, split))
    torch.testing.assert_close(output, expected.unflatten(-1, split), rtol=1e-9, atol=1e-12)


def test_token_mixing_of_mamba1_is_the_mean_over_channels():
    model, rows = model_of("mamba1"), rows_of(1, 12)
    mixer, seen = mixer_call(model, rows)
    with torch.no_grad():
        mixing = mixer.token_mixing(seen["x"], seen["stream"])[0, 0]
        value = seen["conv"][1][0]
        rank, key, query = mixer.select(value)[0].split(mixer.widths, -1)
        dt = nnf.softplus(mixer.step(rank) + mixer.dt_bias)  # [T, D]
        for t in range(12):
            for s in range(t + 1):
                decay = (-mixer.A_log.exp() * dt[s + 1 : t + 1].sum(0)[:, None]).exp()  # [D, N]
                weights = dt[s] * (decay * key[s] * query[t]).sum(-1) + (mixer.D if s == t else 0)
                assert mixing[t, s].item() == pytest.approx(weights.mean().item(), rel=1e-9)


@pytest.mark.parametrize("arch", ARCHS)
def test_token_mixing_keeps_to_the_past_the_document_and_the_text(arch):
    model, rows = model_of(arch), rows_of(2, 20)
    documents = torch.tensor([0] * 8 + [1] * 12).expand(2, -1)
    mask = torch.ones(2, 20, dtype=torch.int64)
    mask[1, :6] = 0
    for options in ({"documents": documents}, {"attention_mask": mask}):
        mixer, seen = mixer_call(model, rows, **options)
        weights = mixer.token_mixing(seen["x"], seen["stream"])
        assert weights.shape[0] == 2 and weights.shape[2:] == (20, 20)
        assert (weights.triu(1) == 0).all() and (weights[:, :, 8:].abs().amax((1, 3)) > 0).all()
        if "documents" in options:
            assert (weights[:, :, 8:, :8] == 0).all()
        else:
            assert (weights[1, :, 6:, :6] == 0).all() and (weights[0, :, 6:, :6] != 0).any()


def test_matrices_are_mean_magnitudes_over_heads():
    model, rows = model_of("cosformer2"), rows_of(1)
    mixer, seen = mixer_call(model, rows)
    with torch.no_grad():
        weights = mixer.token_mixing(seen["x"], seen["stream"])
    matrix = mixing_matrices(model, rows)["mixing"][1]
    assert (weights < 0).any()
    np.testing.assert_allclose(matrix, weights[0].abs().mean(0).numpy(), rtol=1e-5)


def test_rows_of_a_text_and_of_a_corpus(tmp_path):
    tokenizer = get_tokenizer("bytes")
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij" * 10)
    assert read_rows(text, tokenizer, 16, 48).shape == (3, 16)
    assert read_rows(text, tokenizer, 16, 10_000).shape == (6, 16)
    assert read_rows(text, tokenizer, 500, 10_000).shape == (1, 99)
    assert bytes(read_rows(text, tokenizer, 10, 10)[0].tolist()) == b"abcdefghij"
    text.write_bytes(b"line\r\n" * 9)  # as a corpus is read
    assert bytes(read_rows(text, tokenizer, 12, 12)[0].tolist()) == b"line\r\nline\r\n"
    corpus = prepare(CorpusSettings(source="synthetic:0:60000"), tmp_path / "corpus")
    rows = read_rows(tmp_path / "corpus", tokenizer, 64, 640)
    assert rows.shape == (10, 64) and rows[0].tolist() == corpus.validation[:64].tolist()


def test_texts_that_cannot_be_read(tmp_path):
    tokenizer = get_tokenizer("bytes")
    (tmp_path / "one.txt").write_text("x")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (("one.txt", "fewer than two"), ("binary", "UTF-8"), ("nowhere.txt", "no such text")):
        with pytest.raises(InputError, match=message):
            read_rows(tmp_path / name, tokenizer, 16, 100)


@pytest.fixture(scope="module")
def inspection():
    model, rows = model_of("hgrn2", n_layers=5), rows_of(2)
    mixing = mixing_matrices(model, rows[:1])
    return Inspection("hgrn2", "<run>", 7, "a & b.txt", rows.size, gate_statistics(model, rows), mixing, [None] * 5)


def test_the_table_and_the_page_hold_the_numbers(inspection):
    table, html = gates_table(inspection), page(inspection, figures(inspection))
    for gate in inspection.gates:
        assert f"{gate.mean:.4f}" in table and f"{gate.median:.4f}" in html
    assert table.count("\n") == 3 + len(inspection.gates)
    assert "a &amp; b.txt" in html and "<run>" not in html
    for loaded in ('src="http', "src='http", 'href="http', "@import"):  # it needs no network
        assert loaded not in html.split("</script>")[-1] and f"<script {loaded}" not in html


def test_figures_have_a_panel_a_layer(inspection):
    drawn = figures(inspection)
    assert [len(drawn[name].data) for name in ("gates", "mixing")] == [5, 5]
    for gate, bars in zip(inspection.gates, drawn["gates"].data, strict=True):
        assert list(bars.y) == gate.histogram
    for heat in drawn["mixing"].data:
        assert np.nanmax(heat.z) == 0 and np.nanmin(heat.z) >= -4 and np.isnan(heat.z[0, 1])


def test_files(inspection, tmp_path, browser):
    (tmp_path / "mine.txt").write_text("left alone")
    result = write_inspection(inspection, tmp_path)
    names = {"gates.json", "index.html", "mine.txt"}
    names |= set() if result["no_pictures"] else {"gates.png", "mixing.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    stored = json.loads((tmp_path / "gates.json").read_text())
    assert stored["layers"][2]["median"] == inspection.gates[2].median and len(stored["layers"][0]["histogram"]) == 50


def inspected(arch, **options):
    model, rows = model_of(arch, **options), rows_of(1)
    mixing, additive = mixing_matrices(model, rows), additive_recurrences(model, rows)
    return model, Inspection(arch, "run", 1, "text", 40, gate_statistics(model, rows), mixing, additive)


def test_a_model_without_gates_is_reported_and_its_matrices_are_drawn():
    _, inspection = inspected("llama")
    drawn = figures(inspection)
    assert SOFTMAX in gates_table(inspection) and list(drawn) == ["mixing"]
    assert SOFTMAX.capitalize() in page(inspection, drawn)
    np.testing.assert_allclose(inspection.mixing["mixing"][0].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("arch, options", [("llama", {}), ("transformer", {"n_heads": 4, "n_kv_heads": 2})])
def test_softmax_is_an_additive_recurrence(arch, options):
    """Its gates, one by one from the layer's attention."""
    model, inspection = inspected(arch, **options)
    mixer, seen = mixer_call(model, rows_of(1))
    with torch.no_grad():
        weights = mixer.token_mixing(seen["x"], seen["stream"]).double()
    gates = [
        float(weights[0, h, t, :j].sum() / weights[0, h, t, : j + 1].sum())
        for h in range(weights.shape[1])
        for t in range(weights.shape[2])
        for j in range(1, t + 1)
    ]
    layer = inspection.additive[1]
    assert layer.gates.n == len(gates) and layer.gates.mean == pytest.approx(np.mean(gates), abs=1e-5)
    assert layer.gates.median == pytest.approx(np.median(gates), abs=2e-4) and layer.difference < 1e-5
    text, html = gates_table(inspection), page(inspection, figures(inspection))
    assert f"{layer.gates.mean:.4f}" in text and f"{layer.gates.mean:.4f}" in html and ADDITIVE in text
    assert inspection.to_dict()["softmax_as_recurrence"][1]["gates"]["n"] == len(gates)


def test_a_window_is_no_additive_recurrence():
    _, inspection = inspected("transformer", window=5)
    assert inspection.additive == [None, None] and ADDITIVE not in gates_table(inspection)


@pytest.mark.parametrize("arch, options", [("hgrn1", {}), ("hgrn1", {"data_dependent_theta": True}), ("lru", {})])
def test_magnitudes_and_angles_are_the_factors_of_the_weights(arch, options):
    """HGRN's eq. 7, channel by channel; with a boundary and padding no weight is read where there is none."""
    model, rows = model_of(arch, **options), rows_of(2, 12)
    mixer, seen = mixer_call(model, rows)
    with torch.no_grad():
        log_decay, gate, theta = mixer.operands(seen["x"], seen["stream"])
        magnitudes, cosines = (m[:, 0] for m in mixer.mixing_factors(seen["x"], seen["stream"]))
        mixing = mixer.token_mixing(seen["x"], seen["stream"])[:, 0]
    theta = theta.expand(log_decay.shape)
    product = torch.zeros_like(mixing)
    for t in range(rows.shape[1]):
        for s in range(t + 1):
            kept = log_decay[:, s + 1 : t + 1].sum(1).exp() * gate[:, s]
            turned = theta[:, s + 1 : t + 1].sum(1).cos()
            torch.testing.assert_close(magnitudes[:, t, s], kept.mean(-1), rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(cosines[:, t, s], turned.mean(-1), rtol=1e-6, atol=1e-9)
            product[:, t, s] = (kept * turned).mean(-1)
    torch.testing.assert_close(product, mixing, rtol=1e-6, atol=1e-9)
    assert (cosines.triu(1) == 0).all()
    _, inspection = inspected(arch, **options)
    drawn = figures(inspection)
    assert [len(drawn[name].data) for name in ("mixing", "magnitudes", "angles")] == [2, 2, 2]
    assert "Lambda" in page(inspection, drawn)


def test_weights_that_do_not_rotate_have_no_factors():
    _, inspection = inspected("hgrn1", hgrn1_state="real")
    assert list(figures(inspection)) == ["gates", "mixing"]


def test_a_mixer_that_tells_nothing_is_not_taken_for_attention():
    inspection = Inspection("eighth", "run", 1, "text", 40, [None], {"mixing": [None]}, [None])
    html = page(inspection, figures(inspection))
    assert NO_GATE in gates_table(inspection) and "softmax" not in gates_table(inspection) + html.partition("<body>")[2]
    assert "no token-mixing weights" in html and "the layer's largest" not in html


def test_a_directory_that_cannot_be_written(inspection, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="another --out"):
        write_inspection(inspection, tmp_path / "file")
