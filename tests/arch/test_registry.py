"""Architectures from outside: what a registration changes, what is refused, and the messages."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path

import pytest

from arch.architectures.llama import register_this as register_llama
from arch.architectures.tnl.mixer import TNLMixer
from arch.config import ARCHS, ModelConfig, field_choices, reads
from arch.errors import InputError
from arch.model.lm import build_model, load_model
from arch.model.mixer import mixer_of
from arch.options import Options, option
from arch.presets import SIZES, preset
from arch.registry import ARCHITECTURES, KNOWN, check_plugins, load_plugins, plugins_of, register, require
from tests.commands import refused

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class EighthOptions(Options):
    gate_rank: int | None = option(None)
    taps: int = option(4)
    gate: str = option("sigmoid", choices=("sigmoid", "none"))

    def derived(self, config):
        return {"gate_rank": config.head_dim}

    def check(self, config):
        if self.taps > config.context_length:
            raise InputError(f"model.taps={self.taps} is more than the context")


def mixer():
    return EighthMixer


class EighthMixer(TNLMixer):
    def __init__(self, config, layer):
        tnl = preset("tnl", "14k").options
        super().__init__(config.__class__(**{**vars(config), "arch": "tnl", "options": tnl}), layer)


def eighth(**changes):
    register("eighth", **{"mixer": mixer, "options": EighthOptions} | changes)


@pytest.fixture(autouse=True)
def tables_as_they_were():
    before = dict(ARCHITECTURES)
    yield
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a module that Python finds."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, source):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return name

    yield write
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_registered_architecture_is_one_like_the_others():
    eighth(norm="rms")
    assert "eighth" in KNOWN and "eighth" not in ARCHS
    shared = ("d_model", "n_layers", "n_heads", "d_ffn", "vocab_size", "context_length", "chunk_size")
    for size in SIZES:
        config, other = preset("eighth", size, taps=3), preset("llama", size)
        assert [getattr(config, name) for name in shared] == [getattr(other, name) for name in shared]
    assert config.norm == "rms" and config.to_dict()["taps"] == 3
    assert "ssm_state" not in config.to_dict() and ModelConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match="ssm_state means nothing to eighth"):
        preset("eighth", "14k", ssm_state=4)
    with pytest.raises(InputError, match="taps means nothing to tnl, only to eighth"):
        preset("tnl", "14k", taps=3)
    with pytest.raises(InputError, match=r"unknown architecture 'eigth' \(did you mean 'eighth'\?\)"):
        preset("eigth", "14k")
    assert isinstance(build_model(preset("eighth", "14k")).decoder.layers[0].mixer, TNLMixer)


def test_options_of_its_own():
    """They follow from other fields, are judged, are part of the hash where they are not the default, and no other
    architecture's hash knows of them."""
    others = {arch: preset(arch, "14k").identity() for arch in ARCHS}
    eighth()
    assert reads("eighth", "taps") and not reads("tnl", "taps")
    config = preset("eighth", "14k")
    assert config.options == EighthOptions(gate_rank=config.head_dim, taps=4, gate="sigmoid")
    assert config.replace(n_heads=1).options.gate_rank == 24 and config.replace(gate_rank=5).options.gate_rank == 5
    assert "taps" not in config.identity() and config.replace(taps=2).identity()["taps"] == 2
    for changes, message in (
        ({"taps": 0}, "model.taps must be a positive integer, not 0"),
        ({"taps": 300}, "model.taps=300 is more than the context"),
        ({"gate": "relu"}, "model.gate must be one of sigmoid, none, not 'relu'"),
        ({"tapps": 3}, "unknown model key 'tapps' (did you mean 'taps'?)"),
    ):
        with refused(message):
            preset("eighth", "14k", **changes)
    assert others == {arch: preset(arch, "14k").identity() for arch in ARCHS}


def test_a_mixer_is_imported_when_a_model_is_built(plugin):
    plugin("late", "from tests.arch.test_registry import EighthMixer\nclass Mixer8(EighthMixer): pass\nnumber = 3")

    def importing(module, name):
        return lambda: getattr(__import__(module), name)

    eighth(mixer=importing("late", "Mixer8"))
    preset("eighth", "14k")
    assert "late" not in sys.modules
    assert mixer_of("eighth").__name__ == "Mixer8" and "late" in sys.modules
    for mixer, message in (
        (importing("nowhere", "Mixer"), "its mixer cannot be imported: No module named 'nowhere'"),
        (importing("late", "Mixer9"), "its mixer cannot be imported: module 'late' has no attribute 'Mixer9'"),
        (importing("late", "number"), "its mixer 3 is no subclass of arch.model.mixer.Mixer"),
        (lambda: dict, "is no subclass of arch.model.mixer.Mixer"),
    ):
        eighth(mixer=mixer)
        with refused(message):
            build_model(preset("eighth", "14k"))


def options_of(name, kind, value):
    return make_dataclass("Made", [(name, kind, value)], bases=(Options,), frozen=True)


def test_an_option_of_one_name_in_two_architectures_has_the_choices_of_both():
    choices = field_choices()["lower_bound"]
    eighth(options=options_of("lower_bound", "str", option("a", choices=("a", "b"))))
    assert field_choices()["lower_bound"] == (*choices, "a", "b")
    with pytest.raises(InputError, match=r"model\.lower_bound must be one of a, b, not 'off'"):
        preset("eighth", "14k", lower_bound="off")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": options_of("names", "int", option(3))}, "option 'names' has a name that is taken: rename it"),
        (
            {"options": type("Plain", (Options,), {"__annotations__": {"width": "int"}, "width": option(3)})},
            "Plain must be a @dataclass(frozen=True)",
        ),
        ({"aliases": ("llama",)}, "'llama' is also llama: choose another label or alias"),
        ({"label": "TNL"}, "'TNL' is also tnl: choose another label or alias"),
        ({"label": "a<b"}, "label 'a<b': a label is a line of 1 to 60 characters, without < > |"),
        ({"name": "hgrn2"}, "architecture 'hgrn2' of tests.arch.test_registry is already one of linear-scaling"),
        ({"name": "My-Net"}, "a name is small letters, digits and _"),
        ({"mixer": TNLMixer}, "mixer must be a function that imports and returns the mixer's class"),
        ({"norm": "srmss"}, "unknown norm 'srmss' (did you mean 'srms'?)"),
        ({"preset": lambda size, shared: {}}, "preset must take three arguments: size, shape, changes"),
        ({"color": "red"}, "color 'red' is not written as #rrggbb"),
        ({"options": dict}, "options must be a subclass of arch.options.Options"),
        ({"options": options_of("d_model", "int", option(3))}, "option 'd_model' is a common field of every model"),
        ({"options": options_of("expand", "bool", option(True))}, "option 'expand' is bool, but int in mamba2, and a"),
        ({"options": options_of("gate", "str", option("sigmoid"))}, "option 'gate' must be made by arch.options.opti"),
    ],
)
def test_a_wrong_registration_changes_nothing(arguments, message):
    before = dict(ARCHITECTURES)
    with pytest.raises(InputError) as error:
        register(**{"name": "eighth", "mixer": mixer} | arguments)
    assert message in str(error.value) and before == ARCHITECTURES


REGISTER = """
from arch.registry import register
def mixer():
    from late import Mixer8
    return Mixer8
register("eighth", mixer=mixer)
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "plugin 'mine' is no module that Python finds: install it, or name its folder in PYTHONPATH"),
        ("x = 1", "plugin 'mine' registers no architecture: call arch.registry.register in it"),
        (REGISTER + "1 / 0", "plugin 'mine' cannot be imported: ZeroDivisionError: division by zero"),
        ("def f(:", "plugin 'mine' cannot be imported: SyntaxError"),
        (REGISTER + "raise SystemExit('gone')", "plugin 'mine' cannot be imported: SystemExit: gone"),
        (REGISTER + "class Own(BaseException): pass\nraise Own", "plugin 'mine' cannot be imported: Own:"),
        (REGISTER.replace("eighth", "tnl"), "cannot be imported: architecture 'tnl' of mine is already one of linear"),
    ],
)
def test_a_plugin_that_does_not_work_is_one_line_and_leaves_nothing(plugin, source, message):
    before = dict(ARCHITECTURES)
    if source is not None:
        plugin("mine", source)
    with refused(message):
        load_plugins(["mine"])
    assert before == ARCHITECTURES


def test_a_plugin_that_is_only_referred_to_is_not_imported(plugin, tmp_path):
    plugin("mine", REGISTER + f"open({str(tmp_path / 'ran')!r}, 'w')")
    for name in ("mine", "venv.__main__", "json"):
        with pytest.raises(InputError, match=rf"refers to the plugin {name!r}: import it first \(--plugin"):
            check_plugins([name])
    assert not (tmp_path / "ran").exists()
    load_plugins(["mine"])
    check_plugins(["mine"])


def test_a_plugin_that_takes_a_name_of_this_package_before_it_is_there_is_to_blame(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "llama", replace(ARCHITECTURES["llama"], module="mine", plugin="mine"))
    with pytest.raises(InputError, match="architecture 'llama' of mine is already one of linear-scaling"):
        register_llama()


def test_two_plugins_may_not_share_a_name(plugin):
    plugin("mine", REGISTER)
    plugin("yours", REGISTER)
    load_plugins(["mine", "mine"])
    assert plugins_of(["eighth", "tnl"]) == ["mine"]
    with pytest.raises(InputError, match="architecture 'eighth' of yours is already one of mine: choose another name"):
        load_plugins(["yours"])
    assert plugins_of(["eighth"]) == ["mine"]


def test_the_plugin_is_what_was_asked_for_wherever_in_it_the_call_stands(plugin):
    """A package whose submodule registers; one that another one imports; one that was imported before."""
    plugin("folder.__init__", "from . import inner")
    plugin("folder.inner", REGISTER)
    plugin("outer", "import mine")
    plugin("mine", REGISTER.replace("eighth", "ninth"))
    load_plugins(["folder", "outer", "mine"])
    assert plugins_of(["eighth", "ninth"]) == ["folder", "outer"]
    load_plugins(["folder", "outer"])
    plugin("early", REGISTER.replace("eighth", "tenth"))
    __import__("early")
    load_plugins(["early"])
    assert plugins_of(["tenth"]) == ["early"]


def test_planning_with_a_plugin_needs_no_torch(plugin, tmp_path):
    plugin("mine", REGISTER)
    code = "import sys; from arch.registry import load_plugins; from arch.presets import preset; import flops\n"
    code += "load_plugins(['mine']); preset('eighth', '7b')\nassert not {'torch', 'numpy'} & sys.modules.keys()"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True)
    assert result.returncode == 0, result.stderr


def test_a_checkpoint_names_its_plugin(plugin, tmp_path):
    plugin("late", "from tests.arch.test_registry import EighthMixer as Mixer8")
    load_plugins([plugin("mine", REGISTER)])
    build_model(preset("eighth", "14k")).save_pretrained(tmp_path / "model")
    assert load_model(tmp_path / "model").model_config.arch == "eighth"
    del ARCHITECTURES["eighth"]
    with pytest.raises(InputError, match=r"here: unknown architecture 'hgrn' .did you mean 'hgrn2'"):
        require(["hgrn"], None, "here")
    with pytest.raises(InputError, match=r"config.json: architecture 'eighth' comes from the plugin 'mine': import it"):
        load_model(tmp_path / "model")
