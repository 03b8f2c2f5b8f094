"""What every architecture is held to (scaling/check.py), those of this package and the page's; and that each check can
fail, on mixers with one mistake each."""

import sys
from dataclasses import replace

import pytest

from arch import registry
from arch.config import ARCHS
from arch.errors import InputError
from flops import register
from flops.cores import gated_core
from flops.registry import ENTRIES
from scaling.check import CHECKS, check_models, main, small
from scaling.study.spec import load_study
from tests.registries import as_registered

from .eighth import mixer_source, module


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory):
    """The page's module can be imported and `average` is registered."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "average.py").write_text(module())
    sys.path.insert(0, str(folder))
    registry.load_plugins(["average"])
    yield
    sys.path.remove(str(folder))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("arch", [*ARCHS, "average"])
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


FORGET = 'self.project["forget"](x)'
INPUT = 'value = (1 - forget) * self.project["value"](x)\n'
STARTS = "starts, rows = stream.document_starts, []"
BEFORE = 'cache["state"] if cache else torch.zeros_like(value[:, 0])'
AFTER = '{"state": state}'
NAMES = '("forget", "value", "gate"))'


def then(line: str) -> str:
    """What a mistake adds behind the values."""
    return f"{INPUT}        {line}\n"


# The check that must see it, what the page's mixer says, and what one with a mistake says instead.
MISTAKES = [
    ("parameters", NAMES, NAMES + "; self.more = torch.nn.Parameter(torch.zeros(3))"),
    ("flop", INPUT, then("value = value + 0 * self.project['gate'](x)")),
    ("gradients", FORGET, FORGET + ".detach()"),
    ("causality", INPUT, then("value = value + x.mean(1)[:, None, :1]")),
    ("causality", STARTS, "starts, rows = x[..., 0] == x[..., 0], []"),
    ("batch", INPUT, then("value = value + x.mean(0)[None, :, :1]")),
    ("state", BEFORE, "torch.zeros_like(value[:, 0])"),
    ("state", AFTER, '{"state": state, "x": nnf.pad(cache["x"], (0, 0, 1, 0)) if cache else x}'),
    ("state size", AFTER, '{"state": state.double()}'),
    ("packing", STARTS, "starts, rows = None, []"),
    ("packing", INPUT, then("value = value * value.new_ones(value.shape[:2]).cumsum(1)[..., None]")),
    ("padding", f"stream.mask({FORGET}, torch.inf)", FORGET),
    ("backends", INPUT, then("value = value + 0.01 * (stream.backend == 'naive')")),
    ("autocast", INPUT, then("value = value * (1 if value.dtype.itemsize > 2 else torch.inf)")),
    ("file", INPUT, then("value = value * self.__dict__.setdefault('tau', 2 + torch.nn.Linear(1, 1).weight.item())")),
]


@pytest.mark.parametrize(
    ("check", "right", "wrong"), MISTAKES, ids=[f"{case[0]}-{i}" for i, case in enumerate(MISTAKES)]
)
def test_each_check_sees_a_mistake(check, right, wrong):
    source = mixer_source()
    assert source.count(right) == 1
    scope: dict[str, type] = {}
    exec(source.replace(right, wrong), scope)
    page = registry.ARCHITECTURES["average"]
    registry.register("broken", mixer=lambda: scope["Average"], options=page.options)
    ENTRIES["broken"] = ENTRIES["average"]
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
    assert main(["average", "--plugin", "average"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS) and all("  ok  " in line for line in lines)
    assert main(["averagee", "--plugin", "average"]) == 2
    assert "unknown architecture 'averagee' (did you mean 'average'?)" in capsys.readouterr().err
    assert main(["average", "--plugin", "no_such_plugin"]) == 2
    assert "is no module that Python finds" in capsys.readouterr().err
    costs = ENTRIES["average"]
    ENTRIES["average"] = replace(costs, matrices=lambda cfg: {})
    try:
        assert main(["average"]) == 1
    finally:
        ENTRIES["average"] = costs
    out = capsys.readouterr().out
    assert "parameters  FAILED: layer 0 (average): flops counts " in out and out.count("FAILED") >= 2


def test_an_architecture_without_costs_is_refused():
    page = registry.ARCHITECTURES["average"]
    registry.register("broken", mixer=page.mixer, options=page.options)
    ENTRIES.pop("broken", None)
    with pytest.raises(InputError, match=r"architecture .broken. has no costs: call flops\.register"):
        CHECKS["parameters"](small("broken"))
    with pytest.raises(InputError, match=r"the costs of 'tnl' are those of flops\.architectures: "):
        register("tnl", ENTRIES["average"])


# Mistakes of layer 3 alone, or of all, and the line that a study ends in before anything is trained.
WRONG = [
    (
        {INPUT: then("value = value + (self.layer == 3) * x.mean(1)[:, None, :1]")},
        r"check `causality`: layer 3 \(broken\): token 0 changes its output|"
        r"check `causality`: layer 3 \(broken\): token 31 changes its output, \[2, 70, 32\], at token 0 \(sum .*\): it "
        r"sees the future",
    ),
    (
        {AFTER: '{"state": state if self.layer != 3 else 0 * state}'},
        r"check `state`: layer 3 \(broken\): its output after 33 tokens in the cache, \[2, 1, 32\], is .*, not .*, at ",
    ),
    (
        {INPUT: then("value = value + 0 * self.project['gate'](x) * (self.layer == 3)")},
        r"check `flop`: layer 0 \(broken\): 2 x 128 tokens: forward: flops counts [\d,]* FLOP, torch [\d,]*;",
    ),
    (
        {NAMES: NAMES + "; self.out.bias = torch.nn.Parameter(torch.zeros(32)) if layer == 3 else None"},
        r"check `parameters`: layer 3 \(broken\): flops counts [\d,]* parameters, the layer has .*'mixer.out.bias': ",
    ),
    (
        {INPUT: then("assert self.layer < 3, 'no more'\n        [][self.layer // 3]")},
        r"check `flop`: IndexError: list index out of range \(",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_study_of_a_wrong_mixer_ends_before_it_trains(tmp_path, changes, message):
    source = mixer_source()
    for right, wrong in changes.items():
        assert source.count(right) == 1
        source = source.replace(right, wrong)
    scope: dict[str, type] = {}
    exec(source, scope)
    page = registry.ARCHITECTURES["average"]
    registry.register("broken", mixer=lambda: scope["Average"], options=page.options)
    ENTRIES["broken"] = ENTRIES["average"]
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
