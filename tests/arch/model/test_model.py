"""Whole models: batching, initialisation, backends, files."""

import math

import pytest
import torch
from safetensors.torch import save

from arch.architectures.common.forget_gates import lower_bounds
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.cache import DecodeCache
from arch.model.lm import LanguageModel, build_model, load_model
from arch.presets import SIZES, preset
from tests.arch.architectures.test_ablations import ALONG, PLAIN, ablated, every_model, name_of


def tokens(config, rows=2, length=70, seed=0):
    return torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("arch", ARCHS)
def test_initialisation_by_group(arch):
    config = preset(arch, "393k", n_layers=8)
    model = build_model(config, seed=0)
    spread = []  # Mamba2's A, of all layers
    for name, parameter in model.named_parameters():
        if name.endswith(("mixer.out.weight", "channel.down.weight")):
            writers = 8 if arch.startswith("mamba") else 16
            assert parameter.std().item() == pytest.approx(0.02 / math.sqrt(writers), rel=0.05), name
        elif arch == "lru" and name.endswith((".nu", ".theta", ".log_gamma")):
            square = {"nu": lambda p: (-2 * p.exp()).exp(), "theta": lambda p: p.exp() / (2 * math.pi)}
            uniform = square.get(name.rpartition(".")[2], lambda p: 1 - (2 * p).exp())(parameter.detach())
            assert uniform.min() > 0 and uniform.max() < 1, name  # |lam|^2, the share of a turn, |lam|^2
            assert uniform.mean().item() == pytest.approx(0.5, abs=0.12), name
            assert uniform.std().item() == pytest.approx(12**-0.5, rel=0.2), name
        elif name.endswith(".dt_bias"):
            dt = torch.nn.functional.softplus(parameter)
            assert dt.min() >= 0.99e-3 and dt.max() <= 0.101, name
            if len(dt) > 100:  # log-uniform, over two decades
                assert dt.log10().mean().item() == pytest.approx(-2, abs=0.15), name
                assert dt.log10().std().item() == pytest.approx(2 / math.sqrt(12), rel=0.15), name
        elif name.endswith((".conv.weight", ".conv.bias")):
            assert 0.45 < parameter.abs().max() <= 0.5 and abs(parameter.mean().item()) < 0.05, name
        elif name.endswith(".step.weight"):
            limit = parameter.shape[1] ** -0.5
            assert 0.95 * limit < parameter.abs().max() <= limit, name
        elif name.endswith((".forget_bias", "norm.bias")):
            assert (parameter == 0).all(), name
        elif name.endswith(".D"):
            assert (parameter == 1).all(), name
        elif name.endswith(".A_log"):
            least = 1e-4 if arch == "gated_deltanet" else 1.0  # uniform from 0 on, from 1 on in the others
            assert parameter.min() >= math.log(least) and parameter.max() <= math.log(16) + 1e-6, name
            if arch == "mamba1":
                torch.testing.assert_close(parameter.exp(), torch.arange(1.0, 17).expand_as(parameter))
            else:
                spread.append(parameter.exp().detach())
        elif name.endswith("gamma"):
            bounds = lower_bounds(parameter)
            torch.testing.assert_close(bounds[:, 0], torch.arange(8) / 8)
        elif name.endswith("theta"):
            flat = parameter.flatten()
            assert flat[0] == 1 and flat[-1].item() == pytest.approx(10_000 ** (-2 * 127 / 128))
        elif name.endswith("tpe.mix"):
            assert parameter[:, 0].std() > 3 * parameter[:, -1].std()  # slow poles sum over many tokens
        elif name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        else:
            wide = parameter.numel() > 1000
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05 if wide else 0.25), name
            assert abs(parameter.mean().item()) < (2e-3 if wide else 6e-3), name
    if spread:  # uniform within 1 .. 16
        rates = torch.cat(spread)
        assert rates.mean().item() == pytest.approx(8.5, abs=3) and 2 < rates.std() < 6 and len(rates.unique()) > 8


@pytest.mark.parametrize("size, context", [("14k", 256), ("393k", 256), ("70m", 2048)])
def test_tpe_starts_at_half_the_embedding_at_every_width_and_context(size, context):
    from arch.model.mixer import Stream

    model = build_model(preset("cosformer2", size, n_layers=1, context_length=context, vocab_size=64), seed=0)
    x = torch.randn(4, context, model.model_config.d_model, generator=torch.Generator().manual_seed(1))
    added = model.decoder.tpe(x, Stream(torch.arange(context)), {})[0] - x
    assert added[:, context // 2 :].std().item() == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_what_modules_fill_themselves_with_is_nowhere(arch, tied):
    """It is left out where a model is built: after it, and without it, initialisation by the seed gives the same."""
    config = preset(arch, "14k", tie_embeddings=tied)
    filled = LanguageModel(config)
    filled.reset_parameters(3)
    model = build_model(config, 3)
    for (name, actual), expected in zip(model.named_parameters(), filled.parameters(), strict=True):
        assert torch.equal(actual, expected), name
    assert not torch.equal(model.lm_head.weight, build_model(config, 4).lm_head.weight)


@every_model
def test_every_parameter_has_a_gradient(arch, changes):
    config = ablated(arch, "14k", changes)
    model = build_model(config, 0)
    ids = tokens(config)
    model(input_ids=ids, targets=ids.roll(-1, 1)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        # the lower bound of the first layer is 0 whatever gamma is, but the softmax couples all layers
        rows = parameter.grad if name == "decoder.gamma" else parameter.grad[None]
        assert (rows.flatten(1).abs().amax(1) > 0).all(), name


@every_model
def test_weight_decay_leaves_vectors_and_time_scales_alone(arch, changes):
    model = build_model(ablated(arch, "14k", changes), 0)
    scales, names = ("theta", "gamma", "A_log", "D", "dt_bias"), dict(model.named_parameters())
    assert model.no_weight_decay() == {name for name, p in names.items() if p.dim() < 2 or name.endswith(scales)}


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch != "vanilla"])  # whose positions are absolute
def test_only_position_differences_matter(arch):
    """Also at t = 10^6: angles are formed in float64."""
    config = preset(arch, "55k")
    model = build_model(config, 0)
    ids = tokens(config)
    late = DecodeCache(config, torch.full((2,), 1_000_000), [{} for _ in range(config.n_layers)], {}, n_read=0)
    torch.testing.assert_close(
        model(input_ids=ids).logits, model(input_ids=ids, cache=late).logits, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("arch, changes", [*PLAIN, *ALONG], ids=name_of)
@torch.no_grad()
def test_autocast_keeps_loss_and_state_in_fp32(arch, changes):
    config = ablated(arch, "55k", changes)
    model = build_model(config, 0)
    ids = tokens(config)
    full = model(input_ids=ids, targets=ids.roll(-1, 1)).loss
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(input_ids=ids, targets=ids.roll(-1, 1), use_cache=True)
    assert mixed.loss.dtype == torch.float32
    assert mixed.loss.item() == pytest.approx(full.item(), rel=1e-2) and mixed.loss.item() != full.item()
    states = [layer["state"] for layer in mixed.cache.layers if "state" in layer]
    assert all(state.dtype == torch.float32 for state in states)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tied", [True, False])
def test_save_and_load(arch, tied, tmp_path):
    config = preset(arch, "14k", tie_embeddings=tied)
    model = build_model(config, 0)
    model.save_pretrained(tmp_path)
    ids = tokens(config)
    assert torch.equal(load_model(tmp_path)(input_ids=ids).logits, model(input_ids=ids).logits)
    model.save_pretrained(tmp_path, torch.bfloat16)
    rounded, keep = load_model(tmp_path), model.keep_fp32()
    weights = {name: p.detach() if name in keep else p.detach().bfloat16() for name, p in model.named_parameters()}
    assert (tmp_path / "model.safetensors").read_bytes() == save(weights, {"format": "pt"})
    for name, parameter in model.named_parameters():
        expected = parameter if name in keep else parameter.bfloat16().float()
        assert torch.equal(dict(rounded.named_parameters())[name], expected), name


def test_load_names_the_first_mismatch(tmp_path):
    with pytest.raises(InputError, match="no model here"):
        load_model(tmp_path)
    build_model(preset("tnl", "14k"), 0).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"d_ffn": 64', '"d_ffn": 72'))
    with pytest.raises(InputError, match=r"channel\.up\.weight.*\[64, 24\].*\[72, 24\]"):
        load_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"model\.safetensors: is damaged"):
        load_model(tmp_path)
    for text in ("{", "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=r"config\.json: is no JSON object"):
            load_model(tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_roughly_what_their_names_say(size):
    """Non-embedding parameters within 35% of LLaMA's, whatever a layer is made of."""
    counts = {}
    for arch in ARCHS:
        with torch.device("meta"):
            decoder = LanguageModel(preset(arch, size)).decoder
        counts[arch] = sum(p.numel() for p in decoder.layers.parameters())
    assert all(abs(count / counts["llama"] - 1) < 0.35 for count in counts.values()), counts


def test_decays_of_tnl_are_no_weights():
    """Neither a dtype nor empty memory takes them away."""
    model = build_model(preset("tnl", "98k", context_length=64))
    decays = [layer.mixer.decays for layer in model.decoder.layers]
    model.bfloat16().to("meta").to_empty(device="cpu")
    for layer, expected in zip(model.decoder.layers, decays, strict=True):
        assert layer.mixer.decays.dtype == torch.float32 and torch.equal(layer.mixer.decays, expected)
