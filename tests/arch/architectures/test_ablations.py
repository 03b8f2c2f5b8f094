"""HGRN1, HGRN2 and their ablations: each against its equation in float64. In every layout: model/test_layouts.py."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from arch.architectures.common.forget_gates import lower_bounds
from arch.config import ARCHS, ModelConfig
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
    {"lower_bound": "one", "input_gate": "own"},
]
EXPANSIONS = ("naive", "lr", "glt", "glti", "krp", "kp")
CASES = [
    *(("hgrn2", changes) for changes in SHARED),
    *(("hgrn1", changes) for changes in SHARED),
    ("hgrn1", REAL),
    ("hgrn1", REAL | SHARED[7]),
    *(("hgrn1", form | changes) for form in (PAIRS, OWN_GATES) for changes in ({}, *SHARED[-3:])),
    ("hgrn1", OWN_GATES | {"lower_bound": "random"}),
    ("hgrn1", {"data_dependent_theta": True}),
    ("hgrn1", {"data_dependent_theta": True} | SHARED[7]),
    *(("hgrn1", REAL | {"expansion": kind, "expand_ratio": 2 if kind == "naive" else 4}) for kind in EXPANSIONS),
    ("hgrn1", REAL | {"expansion": "lr", "expand_ratio": 3} | SHARED[7]),
    ("hgrn1", REAL | {"expansion": "glti", "expand_ratio": 2, "lower_bound": "random", "input_gate": "own"}),
    ("hgrn1", REAL | {"expansion": "kp", "expand_ratio": 5, "output_gate": False, "input_gate": "none"}),
]


def option_of(config, name, otherwise=None):
    """An option that HGRN1 alone has."""
    return getattr(config.options, name, otherwise)


def name_of(case):
    return ",".join(f"{name}={value}" for name, value in case.items()) if isinstance(case, dict) else str(case)


def ablated(arch, size, changes, **more):
    """A preset, of a width that an expansion of 5 divides where there is one."""
    return preset(arch, size, **more | ({"d_model": 60} if changes.get("expand_ratio") == 5 else {}) | changes)


PLAIN = [(arch, {}) for arch in ARCHS]
# of each way along a sequence: bounds by another formula and dense matrices in another form change none
ALONG = [
    *((arch, changes) for arch in ("hgrn2", "hgrn1") for changes in ({"input_gate": "none"}, SHARED[7])),
    ("hgrn2", SHARED[8]),
    ("hgrn1", PAIRS | SHARED[7]),
    ("hgrn1", OWN_GATES),
    ("hgrn1", OWN_GATES | SHARED[8]),
    ("hgrn1", {"data_dependent_theta": True}),
    CASES[-1],
]
every_model = pytest.mark.parametrize("arch, changes", [*PLAIN, *CASES], ids=name_of)


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
    if config.options.lower_bound == "one":
        bound = torch.ones_like(bound)
    elif config.options.lower_bound != "off":
        bound = reference_bounds(model.decoder.gamma.detach(), config.options.lower_bound, layer)
    bound = torch.cat([bound] * n)
    f = (
        bound.expand(len(x), -1)
        if config.options.lower_bound in ("only", "one")
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
    bounds = None if kind in ("off", "one") else lower_bounds(model.decoder.gamma.detach(), kind)
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


@pytest.mark.parametrize("arch, changes", CASES, ids=name_of)
@torch.no_grad()
def test_forget_gates_and_token_mixing(arch, changes):
    """The mixing matrix is the equation's, with padding and a boundary; the gates are those inside it."""
    model, x = scattered(arch, changes), normal(2, 9, 12)
    config, mixer = model.model_config, model.decoder.layers[1].mixer
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[1, :3] = False
    document_starts = torch.zeros(2, 9, dtype=torch.bool)
    document_starts[0, 5] = True
    stream = stream_of(model, 9, padding_mask=~keep, document_starts=document_starts)
    f, mixing = mixer.forget_gates(x, stream), mixer.token_mixing(x, stream)
    gates_a_channel = 2 if option_of(config, "hgrn1_state") == "real_2d" else option_of(config, "expand_ratio", 1)
    assert f.shape == (2, 9, 12 * gates_a_channel) and f.min() >= 0 and f.max() <= 1
    assert (f[1, :3] == 1).all() and mixing.shape == (2, 3 if arch == "hgrn2" else 1, 9, 9)
    if config.options.lower_bound == "one":
        assert (f == 1).all()
    elif config.options.lower_bound != "off":
        bound = stream.bounds[1].repeat(option_of(config, "expand_ratio", 1))
        assert (f >= bound * (1 - 1e-12)).all()
        same = torch.allclose(f[0], bound.expand(9, -1), rtol=1e-12)
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
        for t in range(9):
            for s in range(9):
                between = gates[row, s + 1 : t + 1].prod(0)
                seen = s <= t and not document_starts[row, s + 1 : t + 1].any()
                per_channel = (query[row, t] * between.real * key[row, s] * seen).double()
                heads = per_channel.reshape(3, -1).sum(1) if arch == "hgrn2" else per_channel.mean()[None]
                torch.testing.assert_close(mixing[row, :, t, s], heads, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", EXPANSIONS)
@torch.no_grad()
def test_expansions_start_as_wide_as_a_dense_projection(kind):
    """Standard deviation of the whole output on unit inputs, mean over seeds (KP and GLTI have few random factors)."""
    squares = []
    for seed in range(8):
        changes = REAL | {
            "d_ffn": 64,
            "expansion": kind,
            "expand_ratio": 8,
            "d_model": 128,
            "n_heads": 1,
            "n_layers": 1,
        }
        mixer = build_model(preset("hgrn1", "25k", **changes), seed).decoder.layers[0].mixer
        squares.append(mixer.project["forget"].double()(normal(50, 128, seed=seed)).square().mean())
    assert torch.stack(squares).mean().sqrt() == pytest.approx(0.02 * math.sqrt(128), rel=0.15)


@pytest.mark.parametrize("arch", ["hgrn1", "hgrn2"])
def test_lower_bounds_at_the_start(arch):
    """Four layers: their values, and that a gate keeps them."""
    starts = {
        "increasing": [0, 0.25, 0.5, 0.75],
        "decreasing": [0.75, 0.5, 0.25, 0],
        "only": [1 / 8, 3 / 8, 5 / 8, 7 / 8],
    }
    for kind, expected in starts.items():
        model = build_model(preset(arch, "25k", lower_bound=kind, n_layers=4), seed=0)
        bounds = lower_bounds(model.decoder.gamma, kind)
        torch.testing.assert_close(bounds, torch.tensor(expected)[:, None].expand(-1, 32))
    assert build_model(preset(arch, "25k", lower_bound="off"), seed=0).decoder.gamma is None


def test_random_lower_bounds_are_independent_and_uniform():
    model = build_model(preset("hgrn2", "393k", lower_bound="random", n_layers=8), seed=0)
    bounds = lower_bounds(model.decoder.gamma, "random")
    assert bounds.min() >= 1 / 16 and bounds.max() <= 15 / 16
    assert bounds.mean(1).sub(0.5).abs().max() < 0.1 and bounds.std(1).sub(7 / 8 / math.sqrt(12)).abs().max() < 0.03
    assert torch.corrcoef(bounds)[~torch.eye(8, dtype=torch.bool)].abs().max() < 0.35
    assert torch.equal(build_model(model.model_config, seed=0).decoder.gamma, model.decoder.gamma)
    lower_bounds(model.decoder.gamma, "random")[3].sum().backward()
    assert (model.decoder.gamma.grad.abs().amax(1) > 0).tolist() == [False] * 3 + [True] + [False] * 4
