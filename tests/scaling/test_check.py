"""What every architecture is held to (scaling/check.py), those of this package and the page's; and that each check can
fail, on mixers with one mistake each."""

import inspect
import sys
from dataclasses import replace

import pytest
import torch
import yaml

from arch import registry
from arch.config import ARCHS
from arch.errors import InputError
from arch.model import mixer
from flops import Entry, register
from flops.cores import gated_core
from flops.registry import ENTRIES
from scaling.check import CHECKS, check_models, main, small
from scaling.cli.main import main as scaling_main
from scaling.study.plan import plan
from scaling.study.spec import load_study
from tests.commands import in_this_process
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


SEES = "value = value + x.mean(1)[:, None, :1].to(value) * ({})"

# The check that must see it, what the page's mixer says, and what one with a mistake says instead.
MISTAKES = [
    ("parameters", NAMES, NAMES + "; self.more = torch.nn.Parameter(torch.zeros(3))"),
    ("flop", INPUT, then("value = value + 0 * self.project['gate'](x)")),
    ("flop", INPUT, then("x @ x.mT if x.shape[1] > 128 else x")),
    ("gradients", FORGET, FORGET + ".detach()"),
    ("gradients", INPUT, then("value = WrongGradient.apply(value)")),
    ("gradients", INPUT, then("value = WrongGradient.apply(value) if self.layer else value")),
    ("causality", INPUT, then("value = value + x.mean(1)[:, None, :1]")),
    ("causality", INPUT, then(SEES.format("x.shape[1] > 128"))),
    ("causality", INPUT, then(SEES.format("x.requires_grad"))),
    ("causality", STARTS, "starts, rows = x[..., 0] == x[..., 0], []"),
    ("batch", INPUT, then("value = value + x.mean(0)[None, :, :1]")),
    ("batch", INPUT, then(SEES.format("len(x) == 1"))),
    ("batch", INPUT, then("value = nnf.dropout(value, 0.1)")),
    ("state", BEFORE, "torch.zeros_like(value[:, 0])"),
    ("state", AFTER, "kept_in_place(cache, state)"),
    ("state", AFTER, '{"state": cache.pop("state", state) * 0 + state}'),
    ("state", AFTER, '{"state": state, "x": nnf.pad(cache["x"], (0, 0, 1, 0)) if cache else x}'),
    ("state size", AFTER, '{"state": state.double()}'),
    ("packing", STARTS, "starts, rows = None, []"),
    ("packing", INPUT, then("value = value * value.new_ones(value.shape[:2]).cumsum(1)[..., None]")),
    ("packing", INPUT, then(SEES.format("stream.document_starts is not None"))),
    ("padding", f"stream.mask({FORGET}, torch.inf)", FORGET),
    ("encoder", INPUT, then(SEES.format("stream.scans is not None"))),
    ("encoder", INPUT, then("value = value * (1 if stream.scans is None else 1.5)")),
    ("backends", INPUT, then("value = value + 0.01 * (stream.backend == 'naive')")),
    ("autocast", INPUT, then("value = value * (1 if value.dtype.itemsize > 2 else torch.inf)")),
    ("autocast", INPUT, then(SEES.format("torch.is_autocast_enabled('cpu')"))),
    ("file", INPUT, then("value = value * self.__dict__.setdefault('tau', 2 + torch.nn.Linear(1, 1).weight.item())")),
]


@pytest.mark.parametrize("mistake", ["total", "(total + {}) / 2", "total + other.view(total.shape)"])
def test_encoders_add_up_scans(monkeypatch, mistake):
    source, turned = inspect.getsource(mixer.Scans), "other.flatten(0, 1)[order]"
    assert source.count(f"total + {turned}") == 1
    exec(source.replace(f"total + {turned}", mistake.format(turned)), scope := vars(mixer).copy())
    monkeypatch.setattr(mixer, "Scans", scope["Scans"])
    with pytest.raises(AssertionError):
        CHECKS["encoder"](small("hgrn2"))


class WrongGradient(torch.autograd.Function):
    """The identity, whose gradient sees later tokens."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 0.5 * gradient.flip(1)


def kept_in_place(cache, state):
    """The cache that was given, with another state in the same memory."""
    if not cache:
        return {"state": state}
    cache["state"].copy_(state)
    return cache


@pytest.mark.parametrize(
    ("check", "right", "wrong"), MISTAKES, ids=[f"{case[0]}-{i}" for i, case in enumerate(MISTAKES)]
)
def test_each_check_sees_a_mistake(check, right, wrong):
    source = mixer_source()
    assert source.count(right) == 1
    scope: dict[str, type] = {}
    exec(source.replace(right, wrong), scope)
    scope |= {"torch": torch, "WrongGradient": WrongGradient, "kept_in_place": kept_in_place}
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
            r"1 x 70 tokens: forward: .* of them unseen, torch",
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
        r"check `flop`: layer 0 \(broken\): 32 wide, 1 x 70 tokens: forward: flops counts [\d,]* FLOP, torch [\d,]*;",
    ),
    (
        {NAMES: NAMES + "; self.out.bias = torch.nn.Parameter(torch.zeros(32)) if layer == 3 else None"},
        r"check `parameters`: layer 3 \(broken\): flops counts [\d,]* parameters, the layer has .*'mixer.out.bias': ",
    ),
    (
        {INPUT: then("[0][self.layer // 3]")},
        r"check `flop`: layer 3 of broken: IndexError: list index out of range \(",
    ),
    (
        {INPUT: then("assert self.layer < 3, 'no more'")},
        r"check `flop`: layer 3 of broken: AssertionError: no more \(",
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
    warnings = plan(load_study(tmp_path / "study.yaml", ["jobs.checked=false"]), unchecked).warnings
    assert "broken: not checked before training (jobs.checked: false)" in warnings


def small_study(folder, archs, more=""):
    (folder / "study.yaml").write_text(
        f'name: s\ncorpus: {{source: "synthetic:0:1000"}}\n{more}'
        f"grid: {{archs: [{archs}], sizes: [{{s: {{n_layers: 2, d_model: 32}}}}]}}\n"
        "training: {n_tokens: 1M, batch_tokens: 8192, lr: 1e-3}\n"
    )
    return load_study(folder / "study.yaml").runs()


def test_two_architectures_of_one_mixer_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.check.QUICK", ())  # others hold that this mixer passes them
    page = registry.ARCHITECTURES["average"]
    registry.register("broken", mixer=page.mixer, options=page.options, preset=page.preset)
    ENTRIES["broken"] = ENTRIES["average"]
    patterns = "architectures: {a: {layers: [average, llama]}, b: {layers: [broken, llama]}}\n"
    for archs, more in (("average, broken", ""), ("a, b", patterns)):
        with pytest.raises(
            InputError, match=r"average-s-c8192-s0 and broken-.* same model|a-s-.* and b-s-.* same model"
        ):
            check_models(small_study(tmp_path, archs, more), "study.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matrices": lambda cfg: {}["x"]}, r"costs of 'broken': matrices: KeyError: 'x' \(.*test_check.py:\d+\)"),
        ({"matrices": lambda cfg: {"q": "x"}}, r"costs of 'broken': matrices must give numbers by name, not 'x'"),
        ({"core": lambda cfg, n: 5}, r"costs of 'broken': core must give \{name: number\}, not 5"),
        ({"core": lambda cfg, n: {"q": float("nan")}}, r"check `flop`: costs of 'broken': core must give numbers"),
        ({"excess": None}, r"costs of 'broken': excess must be a function, not None"),
    ],
)
def test_costs_that_cannot_be_counted_end_in_one_line(tmp_path, changes, message):
    page, costs = registry.ARCHITECTURES["average"], ENTRIES["average"]
    registry.register("broken", mixer=page.mixer, options=page.options, preset=page.preset)
    given = {name: getattr(costs, name) for name in ("matrices", "vectors", "core")} | changes
    with pytest.raises(InputError, match=message) as error:
        register("broken", Entry(**given))
        check_models(small_study(tmp_path, "broken"), "study.yaml")
    assert "\n" not in str(error.value)


LEAKY = """
from arch.registry import register
from flops import Entry
from flops import register as register_costs
from flops.entry import square
from arch.model.mixer import Mixer

class Leaky(Mixer):
    def __init__(self, config, layer):
        super().__init__(config, layer, ("value",))

    def mix(self, x, stream, cache):
        return self.project["value"](x) + (self.layer == 3) * x.mean(1, keepdim=True), {}

register("leaky", mixer=lambda: Leaky)
register_costs("leaky", Entry(matrices=lambda cfg: square(cfg, "v", "o"), core=lambda cfg, n: {}))
"""
SIZES = (("narrow", 32), ("wide", 48), ("wider", 64))
SWEEP = {"tokens": [20_000], "rates": [1e-3, 2e-3, 4e-3, 8e-3], "share": None}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "study.yaml"],
        ["train", "study.yaml"],
        ["submit", "study.yaml", "--dry-run", "--cluster", "./one.yaml"],
        ["sweep", "study.yaml"],
        ["try", "variant.yaml", "--against", "base.yaml", "--train-baseline"],
        ["recall", "recall.yaml", "--plugin", "leaky"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_trains_refuses_a_leak_of_the_fourth_layer(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    study = {
        "name": "base",
        "corpus": {"source": "synthetic:0:200000"},
        "grid": {"archs": ["tnl"], "sizes": [{size: {"n_layers": 4, "d_model": width}} for size, width in SIZES]},
        "model": {"context_length": 128},
        "training": {"n_tokens": 40_000, "batch_tokens": 2048, "lr": 3e-3},
    }
    wrong = study | {"name": "s", "plugins": ["leaky"], "sweep": SWEEP, "grid": study["grid"] | {"archs": ["leaky"]}}
    variant = {"name": "v", "plugins": ["leaky"], "arch": "leaky", "of": "tnl"}
    (tmp_path / "leaky.py").write_text(LEAKY)
    recall = {
        "name": "r",
        "archs": ["leaky"],
        "problems": [{"length": 16, "pairs": 2}],
        "widths": [16],
        "rates": [3e-3],
    }
    recall |= {"n_layers": 4}
    cluster = {"nodes": 1, "cpus_per_node": 2}
    files = {"base": study, "study": wrong, "variant": variant, "recall": recall, "one": cluster}
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    with as_registered():
        done = in_this_process(scaling_main, *words)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith(
        "error: architecture 'leaky' fails check `causality`: layer 3 (leaky): token "
    ), done.stdout + done.stderr
    assert not [*tmp_path.rglob("metrics.jsonl"), *tmp_path.rglob("cells")]
