"""What every architecture is held to (scaling/check.py), those of this package and the page's; and that each check can
fail, on mixers with one mistake each."""

import sys
from dataclasses import replace

import pytest
import torch

from arch import registry
from arch.config import ARCHS
from arch.errors import InputError
from arch.model.mixer import Stream
from flops import register
from flops.cores import gated_core
from flops.registry import ENTRIES
from scaling.check import CHECKS, check_models, main, moved_model, small
from scaling.study.spec import load_study
from tests.registries import as_registered

from .eighth import page_files


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory):
    """The page's modules can be imported and `gla` is registered."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in page_files().items():
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    registry.load_plugins(["gla"])
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("gla_mixer", None)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("arch", [*ARCHS, "gla"])
def test_every_architecture_keeps_the_contract(arch, check):
    CHECKS[check](small(arch))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("layers", [["hgrn2", "softmax"], ["hgrn1", "mamba2", "llama"]])
def test_hybrids_keep_the_contract(layers, check):
    """A layer of each: the bounds of one HGRN layer are fixed, so that their parameter has a gradient of zero."""
    with as_registered():
        registry.register_pattern("mix", layers)
        CHECKS[check](small("mix"))


def test_padding_is_checked_in_the_linear_layers_of_a_hybrid(monkeypatch):
    """A state that is wrong after padding changes no logit yet."""
    from arch.architectures.hgrn2.mixer import HGRN2Mixer

    own = HGRN2Mixer.mix

    def mix(self, x, stream, cache):
        mixed, after = own(self, x, stream, cache)
        return mixed, after if stream.padding_mask is None else {"state": after["state"] * 1.001}

    monkeypatch.setattr(HGRN2Mixer, "mix", mix)
    with as_registered():
        registry.register_pattern("mix", ["softmax", "hgrn2"])
        with pytest.raises(AssertionError, match="state 'state' of layer 1 after padding"):
            CHECKS["padding"](small("mix"))


def test_the_pages_mixer_computes_its_equations():
    """A plain loop over what its docstring says, in fp64."""
    mixer = moved_model(small("gla")).decoder.layers[0].mixer
    weight = {name: layer.weight.T for name, layer in mixer.project.items()}
    x = torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(0)).double()
    q, k, v, r = (x[0] @ weight[name] for name in ("query", "key", "value", "gate"))
    f = torch.sigmoid(x[0] @ mixer.down.weight.T @ mixer.up.weight.T + mixer.up.bias) ** (1 / 16)
    state, out = torch.zeros(2, 16, 16).double(), []
    for t in range(40):
        q_t, k_t, v_t, f_t = (projected[t].reshape(2, 16) for projected in (q, k, v, f))
        state = f_t[:, :, None] * state + k_t[:, :, None] * v_t[:, None, :]
        out.append(torch.cat([q_t[head] @ state[head] for head in range(2)]))
    expected = (mixer.norm(torch.stack(out)) * r * torch.sigmoid(r)) @ mixer.out.weight.T
    mixed, after = mixer(x, Stream(torch.arange(40)), {})
    torch.testing.assert_close(mixed[0], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(after["state"][0], state, rtol=1e-9, atol=1e-12)


AFTER = '"value"))\n'  # the end of the line that makes queries, keys and values
MASKS = "stream.mask(key),  # padding brings nothing in\n            stream.mask(value),"

POWER = "/ self.config.options.gate_temperature"

# The check that must see it, what the page's mixer says, and what one with a mistake says instead.
MISTAKES = [
    ("parameters", "bias=False)", "bias=True)"),
    ("flop", AFTER, AFTER + "        value = value + 0 * self.heads(self.project['key'](x))\n"),
    ("gradients", "self.up(self.down(x))", "self.up(self.down(x)).detach()"),
    ("causality", AFTER, AFTER + "        value = value + x.mean(1)[:, None, None, :1]\n"),
    ("causality", "document_starts=stream.document_starts", "document_starts=x[..., 0] == x[..., 0]"),
    ("batch", AFTER, AFTER + "        value = value + x.mean(0)[None, :, None, :1]\n"),
    ("state", 'initial_state=cache.get("state")', "initial_state=None"),
    ("state", '{"state": state}', '{"state": state, "x": nnf.pad(cache["x"], (0, 0, 1, 0)) if cache else x}'),
    ("state size", '{"state": state}', '{"state": state.double()}'),
    ("packing", "document_starts=stream.document_starts", "document_starts=None"),
    ("packing", AFTER, AFTER + "        key = key * key.new_ones(key.shape[:2]).cumsum(1)[..., None, None]\n"),
    ("padding", MASKS, "key,\n            value,"),
    ("backends", AFTER, AFTER + "        value = value + 0.01 * (stream.backend == 'naive')\n"),
    ("autocast", POWER, "/ (16 if x.dtype.itemsize > 2 else 0)"),
    ("file", POWER, "/ self.__dict__.setdefault('tau', 16 + nn.Linear(1, 1).weight.item())"),
]


@pytest.mark.parametrize(
    ("check", "right", "wrong"), MISTAKES, ids=[f"{case[0]}-{i}" for i, case in enumerate(MISTAKES)]
)
def test_each_check_sees_a_mistake(check, right, wrong):
    source = page_files()["gla_mixer.py"]
    assert source.count(right) == 1
    scope: dict[str, type] = {}
    exec(source.replace(right, wrong), scope)
    page = registry.ARCHITECTURES["gla"]
    registry.register("broken", mixer=lambda: scope["GLAMixer"], options=page.options, preset=page.preset)
    ENTRIES["broken"] = ENTRIES["gla"]
    with pytest.raises(AssertionError):
        CHECKS[check](small("broken"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"excess": lambda cfg, n: {"mixer.inside": 27 * sum(gated_core(cfg, n).values())}},
            "backward: flops counts .*ex",
        ),
        (
            {"excess": lambda cfg, n: {}, "unseen": ("mixer.state",)},
            r"2 x 128 tokens: forward: .* of them unseen, torch",
        ),
    ],
)
def test_the_backward_pass_and_what_is_unseen_are_counted_too(changes, message):
    costs = ENTRIES["gla"]
    try:
        ENTRIES["gla"] = replace(costs, **changes)
        with pytest.raises(AssertionError, match=r"layer 0 \(gla\): " + ".*" + message):
            CHECKS["flop"](small("gla"))
    finally:
        ENTRIES["gla"] = costs


def test_the_command(capsys):
    assert main(["gla", "--plugin", "gla"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS) and all("  ok  " in line for line in lines)
    assert main(["glaa", "--plugin", "gla"]) == 2
    assert "unknown architecture 'glaa' (did you mean 'gla'?)" in capsys.readouterr().err
    assert main(["gla", "--plugin", "no_such_plugin"]) == 2
    assert "is no module that Python finds" in capsys.readouterr().err
    ENTRIES["gla"], costs = ENTRIES["llama"], ENTRIES["gla"]
    try:
        assert main(["gla"]) == 1
    finally:
        ENTRIES["gla"] = costs
    out = capsys.readouterr().out
    assert "parameters  FAILED: layer 0 (gla): flops counts " in out and out.count("FAILED") >= 2


def test_an_architecture_without_costs_is_refused():
    page = registry.ARCHITECTURES["gla"]
    registry.register("broken", mixer=page.mixer, options=page.options)
    ENTRIES.pop("broken", None)
    with pytest.raises(InputError, match=r"architecture .broken. has no costs: call flops\.register"):
        CHECKS["parameters"](small("broken"))
    with pytest.raises(InputError, match=r"the costs of 'tnl' are those of flops\.architectures: "):
        register("tnl", ENTRIES["gla"])


# Mistakes of layer 3 alone, or of all, and the line that a study ends in before anything is trained.
WRONG = [
    (
        {AFTER: AFTER + "        value = value + (self.layer == 3) * x.mean(1)[:, None, None, :1]\n"},
        r"check `causality`: layer 3 \(broken\): token 0 changes its output|"
        r"check `causality`: layer 3 \(broken\): token 31 changes its output, \[2, 70, 32\], at token 0 \(sum .*\): it "
        r"sees the future",
    ),
    (
        {'{"state": state}': '{"state": state if self.layer != 3 else 0 * state}'},
        r"check `state`: layer 3 \(broken\): its output after 33 tokens in the cache, \[2, 1, 32\], is .*, not .*, at ",
    ),
    (
        {AFTER: AFTER + "        value = value + 0 * self.heads(self.project['key'](x)) * (self.layer == 3)\n"},
        r"check `flop`: layer 0 \(broken\): 2 x 128 tokens: forward: flops counts [\d,]* FLOP, torch [\d,]*;",
    ),
    (
        {"bias=False)": "bias=layer == 3)"},
        r"check `parameters`: layer 3 \(broken\): flops counts [\d,]* parameters, the layer has .*'mixer.down.bias': ",
    ),
    (
        {AFTER: AFTER + "        assert self.layer < 3, 'no more'\n        [][self.layer // 3]\n"},
        r"check `flop`: IndexError: list index out of range \(",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_study_of_a_wrong_mixer_ends_before_it_trains(tmp_path, changes, message):
    source = page_files()["gla_mixer.py"]
    for right, wrong in changes.items():
        assert source.count(right) == 1
        source = source.replace(right, wrong)
    scope: dict[str, type] = {}
    exec(source, scope)
    page = registry.ARCHITECTURES["gla"]
    registry.register("broken", mixer=lambda: scope["GLAMixer"], options=page.options, preset=page.preset)
    ENTRIES["broken"] = ENTRIES["gla"]
    (tmp_path / "study.yaml").write_text(
        'name: s\ncorpus: {source: "synthetic:0:1000"}\n'
        "grid: {archs: [tnl, broken], sizes: [{s: {n_layers: 2, d_model: 16}}, {m: {n_layers: 5, d_model: 32}}]}\n"
        "training: {n_tokens: 1M, batch_tokens: 8192, lr: 1e-3}\n"
    )
    with pytest.raises(InputError, match=message) as error:
        check_models(load_study(tmp_path / "study.yaml").runs(), "study.yaml")
    assert "\n" not in str(error.value) and "--set jobs.checked=false" in str(error.value)
    assert "`python -m scaling.check broken --plugin=tests.scaling.test_check` makes all" in str(error.value)
    unchecked = load_study(tmp_path / "study.yaml", ["jobs.checked=false"]).runs("arch=broken")
    assert check_models(unchecked, "study.yaml") == []
    assert {run.model_dump()["checked"] for run in unchecked} == {False}
