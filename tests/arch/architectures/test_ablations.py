"""The ablations of HGRN and HGRN2: each against its equation in float64, and in every layout a model must stand."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from arch.architectures.common.forget_gates import lower_bounds
from arch.config import ModelConfig
from arch.model.lm import build_model
from arch.model.mixer import Stream
from arch.presets import preset

SIZE = {
    "d_model": 12,
    "n_layers": 3,
    "n_heads": 3,
    "d_ffn": 20,
    "vocab_size": 31,
    "context_length": 64,
    "chunk_size": 8,
}
REAL = {"hgrn1_state": "narrow"}
PAIRS, OWN_GATES = {"hgrn1_state": "real"}, {"hgrn1_state": "real_2d"}
SHARED = [
    *({"lower_bound": kind} for kind in ("off", "random", "decreasing", "only")),
    *({"input_gate": kind} for kind in ("own", "none")),
    {"output_gate": False},
    {"lower_bound": "only", "input_gate": "own", "output_gate": False},
    {"lower_bound": "off", "input_gate": "none", "output_gate": False},
]
EXPANSIONS = ("naive", "lr", "glt", "glti", "krp", "kp")
CASES = [
    *(("hgrn2", changes) for changes in SHARED),
    *(("hgrn1", changes) for changes in SHARED),
    ("hgrn1", REAL),
    ("hgrn1", REAL | SHARED[7]),
    *(("hgrn1", form | changes) for form in (PAIRS, OWN_GATES) for changes in ({}, *SHARED[-2:])),
    ("hgrn1", OWN_GATES | {"lower_bound": "random"}),
    ("hgrn1", {"data_dependent_theta": True}),
    ("hgrn1", {"data_dependent_theta": True} | SHARED[7]),
    *(("hgrn1", REAL | {"expansion": kind, "expand_ratio": 2 if kind == "naive" else 4}) for kind in EXPANSIONS),
    ("hgrn1", REAL | {"expansion": "lr", "expand_ratio": 3} | SHARED[7]),
    ("hgrn1", REAL | {"expansion": "glti", "expand_ratio": 2, "lower_bound": "random", "input_gate": "own"}),
    ("hgrn1", REAL | {"expansion": "kp", "expand_ratio": 5, "output_gate": False, "input_gate": "none"}),
]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def option_of(config, name, otherwise=None):
    """An option that HGRN1 alone has."""
    return getattr(config.options, name, otherwise)


def name_of(case):
    return case if isinstance(case, str) else ",".join(f"{name}={value}" for name, value in case.items())


every_case = pytest.mark.parametrize("arch, changes", CASES, ids=name_of)


def scattered(arch, changes):
    """A model in fp64 away from its start, where gates of all tokens are much alike."""
    model = build_model(ModelConfig.from_dict({"arch": arch, **SIZE, **changes, "init_std": 0.3}), seed=1).double()
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)).double()
    return model


def tokens(rows, length, seed=0):
    return torch.randint(0, SIZE["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(seed))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def dense(weights: dict[str, Tensor], kind: str, d: int, n: int) -> Tensor:
    """[d, n d]: the matrix that an expansion (HGRN2, table 2) stands for."""
    if kind == "lr":
        return weights["down.weight"].T @ weights["up.weight"].T
    if kind == "krp":
        return torch.cat([torch.diag(row) for row in weights["weight"]], 1)
    if kind == "kp":
        return torch.kron(weights["multiples"].T.contiguous(), weights["shared.weight"].T.contiguous())
    if kind in ("glt", "glti"):
        groups = weights["weight"]  # [n, e, d]
        blocks = torch.block_diag(*groups)  # a group reads its own e channels and writes its own copy
        mix = weights.get("mix", torch.eye(n, dtype=groups.dtype))
        return blocks @ torch.kron(mix, torch.eye(d, dtype=groups.dtype))
    return weights["weight"].T


def reference_bounds(gamma: Tensor, kind: str, layer: int) -> Tensor:
    """gates.py's table, by sums."""
    shares, last = torch.exp(gamma) / torch.exp(gamma).sum(0), len(gamma) - 1
    zero = torch.zeros_like(gamma[0])
    return {
        "increasing": lambda: sum((shares[i] for i in range(1, layer + 1)), zero),
        "random": lambda: sigmoid(gamma[layer]),
        "decreasing": lambda: sum((shares[i] for i in range(layer, last)), zero),
        "only": lambda: sum((shares[i] for i in range(layer)), zero) + shares[layer] / 2,
    }[kind]()


def reference(model, layer: int, x: Tensor) -> Tensor:
    """One mixer's output for x [T, d], token by token."""
    config, mixer = model.model_config, model.decoder.layers[layer].mixer
    d, n, p = config.d_model, option_of(config, "expand_ratio", 1), config.head_dim
    weights = {name: value.detach() for name, value in mixer.named_parameters()}

    def project(name):
        projections = {
            k.removeprefix(f"project.{name}."): v for k, v in weights.items() if k.startswith(f"project.{name}.")
        }
        return x @ dense(projections, option_of(config, "expansion", "none"), d, n)

    form = config.options.hgrn1_state if config.arch == "hgrn1" else ""
    bound = torch.zeros(2 * d if form == "real_2d" else d, dtype=x.dtype)
    if config.options.lower_bound != "off":
        bound = reference_bounds(model.decoder.gamma.detach(), config.options.lower_bound, layer)
    bound = torch.cat([bound] * n)
    f = (
        bound.expand(len(x), -1)
        if config.options.lower_bound == "only"
        else bound + (1 - bound) * sigmoid(project("forget"))
    )
    i = {"tied": lambda: 1 - f, "own": lambda: sigmoid(project("input_gate")), "none": lambda: torch.ones_like(f)}
    i = i[config.options.input_gate]()
    rows = []
    if config.arch == "hgrn2":
        q = silu(project("query")) if config.options.output_gate else torch.ones_like(x)
        v = project("value")
        for head in range(config.n_heads):
            part, state, out = slice(head * p, head * p + p), torch.zeros(p, p, dtype=x.dtype), []
            for t in range(len(x)):
                state = f[t, part][:, None] * state + torch.outer(i[t, part], v[t, part])
                out.append(q[t, part] @ state)
            rows.append(torch.stack(out))
        o = torch.cat(rows, 1)
    else:
        c, rotation = silu(project("input")), torch.ones(len(x), 1)
        if form in ("complex", "real"):  # two numbers side by side have one gate
            c, angle = torch.complex(c[:, 0::2], c[:, 1::2]), torch.zeros(d, dtype=x.dtype)
            if form == "complex":
                angle = weights["theta"] + (project("angle") if option_of(config, "data_dependent_theta") else 0)
            rotation = torch.exp(1j * angle).expand(len(x), -1)
        state = torch.zeros_like(c[0])
        for t in range(len(x)):
            state = f[t] * rotation[t] * state + i[t] * c[t]
            rows.append(torch.view_as_real(state).flatten() if form in ("complex", "real") else state)
        o = torch.stack(rows)
        o = o * sigmoid(project("gate")) if config.options.output_gate else o
        o = o.reshape(len(x), n, -1).sum(1)
    return o / torch.sqrt((o**2).mean(-1, keepdim=True) + 1e-6) @ weights["out.weight"].T


def stream_of(model, length, **more):
    kind = model.model_config.options.lower_bound
    bounds = None if kind == "off" else lower_bounds(model.decoder.gamma.detach(), kind)
    return Stream(torch.arange(length), bounds=bounds, **more)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("arch, changes", [("hgrn1", {}), ("hgrn2", {}), *CASES], ids=name_of)
@torch.no_grad()
def test_mixers_equal_the_equations(arch, changes):
    """Each mixer inside a whole model, on what reaches it there."""
    model, seen = scattered(arch, changes), []
    for layer in model.decoder.layers:
        layer.mixer.register_forward_hook(lambda mixer, inputs, output: seen.append((inputs[0][0], output[0][0])))
    model(input_ids=tokens(1, 21))
    for layer, (x, result) in enumerate(seen):
        torch.testing.assert_close(result, reference(model, layer, x), rtol=1e-9, atol=1e-10)
    assert len(seen) == 3


@every_case
@torch.no_grad()
def test_padding_packing_and_decoding_change_nothing(arch, changes):
    """The logits of three sequences alone, padded at either end, packed in a row, and token by token."""
    model = scattered(arch, changes)
    lengths, widest = [1, 11, 19], 21
    alone = [tokens(1, n, seed=n) for n in lengths]
    plain = [model(input_ids=ids, use_cache=True) for ids in alone]
    expected = torch.cat([out.logits[0] for out in plain])
    for left in (True, False):
        ids, mask = torch.full((3, widest), 5), torch.zeros(3, widest, dtype=torch.int64)
        for row, n in enumerate(lengths):
            span = slice(widest - n, widest) if left else slice(0, n)
            ids[row, span], mask[row, span] = alone[row], 1
        out = model(input_ids=ids, attention_mask=mask, use_cache=left)
        torch.testing.assert_close(out.logits[mask.bool()], expected, **CLOSE)
        for row in range(3 if left else 0):
            for actual, state in zip(out.cache.layers, plain[row].cache.layers, strict=True):
                torch.testing.assert_close(actual["state"][row], state["state"][0], **CLOSE)
    packed, documents = torch.cat(alone, 1), torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    together = model(input_ids=packed, documents=documents).logits[0]
    torch.testing.assert_close(together, expected, **CLOSE)
    packed[0, 1:12] = (packed[0, 1:12] + 1) % SIZE["vocab_size"]
    other = model(input_ids=packed, documents=documents).logits[0]
    assert not (other[1:12] == together[1:12]).any()
    if option_of(
        model.model_config, "data_dependent_theta"
    ):  # the scan sums angles over the row: its frame differs, no result does
        torch.testing.assert_close(other[12:], together[12:], rtol=1e-12, atol=1e-12)
    else:
        assert torch.equal(other[12:], together[12:])
    cache, steps = None, []
    for t in range(19):
        out = model(input_ids=alone[2][:, t : t + 1], cache=cache, use_cache=True)
        cache = out.cache
        steps.append(out.logits[0])
    torch.testing.assert_close(torch.cat(steps), plain[2].logits[0], **CLOSE)


@every_case
@torch.no_grad()
def test_padding_after_a_state_leaves_it(arch, changes):
    """Also where it is not 0: angles must not rotate it."""
    model, x = scattered(arch, changes), normal(2, 12, 12)
    mixer = model.decoder.layers[1].mixer
    _, before = mixer(x[:, :6], stream_of(model, 6), {})
    keep = torch.zeros(2, 6, dtype=torch.bool)
    _, after = mixer(x[:, 6:], stream_of(model, 6, padding_mask=~keep), before)
    torch.testing.assert_close(after["state"], before["state"], rtol=1e-12, atol=1e-12)
    keep[1, 3] = True
    _, after = mixer(x[:, 6:], stream_of(model, 6, padding_mask=~keep), before)
    assert not torch.isclose(after["state"][1], before["state"][1]).all()


@every_case
def test_every_parameter_trains(arch, changes):
    """From the start in fp32: a gradient in every row of gamma and in all else, and a batch learned by heart."""
    model = build_model(ModelConfig.from_dict({"arch": arch, **SIZE, **changes}), seed=0)
    ids = tokens(4, 32)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.02), []
    for step in range(25):
        loss = model(input_ids=ids, targets=ids.roll(-1, 1)).loss
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        for name, parameter in model.named_parameters() if step in (0, 24) else ():
            assert torch.isfinite(parameter.grad).all(), name
            rows = parameter.grad if name == "decoder.gamma" else parameter.grad[None]
            assert (rows.flatten(1).abs().amax(1) > 0).all(), name
        optimizer.step()
    assert losses[0] == pytest.approx(math.log(31), rel=0.02) and losses[-1] < 0.8 * losses[0]


@every_case
@torch.no_grad()
def test_bf16_autocast_is_near_fp32(arch, changes):
    model = build_model(ModelConfig.from_dict({"arch": arch, **SIZE, **changes, "init_std": 0.1}), seed=0)
    ids = tokens(2, 40)
    exact = model(input_ids=ids, targets=ids.roll(-1, 1)).loss
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(input_ids=ids, targets=ids.roll(-1, 1), use_cache=True)
    assert rounded.loss.item() == pytest.approx(exact.item(), rel=1e-2) and rounded.loss != exact
    assert all(x.dtype == torch.float32 for x in rounded.cache.tensors() if x.is_floating_point())


@every_case
@torch.no_grad()
def test_forget_gates_and_token_mixing(arch, changes):
    """The mixing matrix is the equation's, with padding and a boundary; the gates are those inside it."""
    model, x = scattered(arch, changes), normal(2, 17, 12)
    config, mixer = model.model_config, model.decoder.layers[1].mixer
    keep = torch.ones(2, 17, dtype=torch.bool)
    keep[1, :4] = False
    document_starts = torch.zeros(2, 17, dtype=torch.bool)
    document_starts[0, 9] = True
    stream = stream_of(model, 17, padding_mask=~keep, document_starts=document_starts)
    f, mixing = mixer.forget_gates(x, stream), mixer.token_mixing(x, stream)
    gates_a_channel = 2 if option_of(config, "hgrn1_state") == "real_2d" else option_of(config, "expand_ratio", 1)
    assert f.shape == (2, 17, 12 * gates_a_channel) and f.min() >= 0 and f.max() <= 1
    assert (f[1, :4] == 1).all() and mixing.shape == (2, 3 if arch == "hgrn2" else 1, 17, 17)
    if config.options.lower_bound != "off":
        bound = stream.bounds[1].repeat(option_of(config, "expand_ratio", 1))
        assert (f >= bound * (1 - 1e-12)).all()
        same = torch.allclose(f[0], bound.expand(17, -1), rtol=1e-12)
        assert same == (config.options.lower_bound == "only")
    if arch == "hgrn2":
        query, key, _, _ = mixer.operands(x, stream)
        query = silu(query) if config.options.output_gate else query
        key = (1 - f if key is None else key.flatten(2)) * keep[..., None]
        query, key, gates = query.flatten(2), key, f.to(torch.complex128)
    else:
        _, key, angles = mixer.operands(x, stream)
        query = torch.ones_like(key)
        gates = f * torch.exp(1j * (torch.zeros_like(f) if angles is None else angles))
    for row in range(2):
        for t in range(17):
            for s in range(17):
                between = gates[row, s + 1 : t + 1].prod(0)
                seen = s <= t and not document_starts[row, s + 1 : t + 1].any()
                per_channel = (query[row, t] * between.real * key[row, s] * seen).double()
                heads = per_channel.reshape(3, -1).sum(1) if arch == "hgrn2" else per_channel.mean()[None]
                torch.testing.assert_close(mixing[row, :, t, s], heads, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_token_mixing_is_what_forward_does():
    """HGRN2: the mixing matrix times the values, normalised and projected."""
    model, x = scattered("hgrn2", {"input_gate": "own"}), normal(2, 17, 12)
    mixer, stream = model.decoder.layers[1].mixer, stream_of(model, 17)
    values = mixer.heads(mixer.project["value"](x)).transpose(1, 2)
    mixed = (mixer.token_mixing(x, stream) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer.out(mixer.norm(mixed)), mixer(x, stream, {})[0], **CLOSE)


@pytest.mark.parametrize("ratio", [4, 16, 256])
@torch.no_grad()
def test_expand_ratio_of_hgrn2(ratio):
    """Head dimensions 4 to 256: the same parameters, a state of d x ratio numbers, equal backends."""
    config = preset("hgrn2", "25k", d_model=256, n_heads=256 // ratio, init_std=0.1)
    model, ids = build_model(config, seed=0), tokens(2, 40)
    assert sum(p.numel() for p in model.parameters()) == 257 * 256 + 2 * (4 * 256**2 + 3 * 256 * 88) + 2 * 256
    chunk, naive = (model(input_ids=ids, backend=backend, use_cache=True) for backend in (None, "naive"))
    assert chunk.cache.layers[0]["state"][0].numel() == 256 * ratio
    torch.testing.assert_close(chunk.logits, naive.logits, rtol=1e-4, atol=1e-4)


def test_default_models_have_the_parameters_they_had():
    names = {
        "hgrn1": ["gate", "input", "forget"],
        "hgrn2": ["query", "forget", "value"],
    }
    for arch, projections in names.items():
        model = build_model(preset(arch, "14k"), seed=0)
        parameters = {
            name.removeprefix("decoder.layers.0.mixer.") for name, _ in model.named_parameters() if ".0.mixer." in name
        }
        expected = {f"project.{name}.weight" for name in projections} | {"out.weight"}
        assert parameters == expected | ({"theta"} if arch == "hgrn1" else set())
        assert model.decoder.gamma.shape == (2, 24) and not model.decoder.gamma.any()


@every_case
def test_weight_decay_takes_projections_and_leaves_time_scales(arch, changes):
    model = build_model(ModelConfig.from_dict({"arch": arch, **SIZE, **changes}), seed=0)
    excluded = {name.removeprefix("decoder.") for name in model.no_weight_decay()}
    expected = set() if model.decoder.gamma is None else {"gamma"}
    if model.model_config.arch == "hgrn1" and model.model_config.options.hgrn1_state == "complex":
        expected |= {f"layers.{layer}.mixer.theta" for layer in range(3)}
    assert excluded == expected
