"""Architectures from outside: what a registration changes, what is refused, and what is told."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from arch import registry
from arch.architectures.mixers import mixer_of
from arch.architectures.tnl.mixer import TNLMixer
from arch.config import ARCHS, DEFAULT_NORM, KNOWN, ONLY_FOR, ModelConfig
from arch.errors import InputError
from arch.model.lm import build_model, load_model
from arch.presets import RULES, SIZES, preset
from arch.registry import load_plugins, plugin_of, register, require

ROOT = Path(__file__).resolve().parents[2]
TABLES = (DEFAULT_NORM, ONLY_FOR, RULES, registry.REGISTERED)


@pytest.fixture(autouse=True)
def tables_as_they_were():
    before = [dict(table) for table in TABLES]
    yield
    for table, content in zip(TABLES, before, strict=True):
        table.clear()
        table.update(content)


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
    register("eighth", TNLMixer, norm="rms", fields=("conv_width",))
    assert "eighth" in KNOWN and "eighth" not in ARCHS
    for size in SIZES:  # the shared shapes
        config, shared = preset("eighth", size, conv_width=3), preset("llama", size)
        assert config.replace(arch="llama", conv_width=4) == shared
    assert config.norm == "rms" and config.to_dict()["conv_width"] == 3
    assert "ssm_state" not in config.to_dict() and ModelConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match="ssm_state means nothing to eighth"):
        preset("eighth", "14k", ssm_state=4)
    with pytest.raises(InputError, match="conv_width means nothing to tnl, only to mamba2, mamba1, eighth"):
        preset("tnl", "14k", conv_width=3)
    with pytest.raises(InputError, match=r"unknown architecture 'eigth' \(did you mean 'eighth'\?\)"):
        preset("eigth", "14k")
    assert isinstance(build_model(preset("eighth", "14k")).decoder.layers[0].mixer, TNLMixer)


def test_its_own_shape():
    register("eighth", TNLMixer, preset=lambda size, shared: {"d_ffn": shared["d_model"], "chunk_size": 16})
    config = preset("eighth", "14k")
    assert (config.d_ffn, config.chunk_size, config.n_layers, config.norm) == (24, 16, 2, "srms")
    assert preset("eighth", "14k", chunk_size=8).chunk_size == 8


def test_a_mixer_by_name_is_imported_when_a_model_is_built(plugin):
    plugin("late", "from arch.architectures.tnl.mixer import TNLMixer\nclass Mixer8(TNLMixer): pass\nnumber = 3")
    register("eighth", "late:Mixer8")
    preset("eighth", "14k")
    assert "late" not in sys.modules
    assert mixer_of("eighth").__name__ == "Mixer8" and "late" in sys.modules
    for mixer, told in (
        ("nowhere:Mixer", "its mixer nowhere:Mixer cannot be imported: No module named 'nowhere'"),
        ("late:Mixer9", "its mixer late:Mixer9 cannot be imported: module 'late' has no attribute 'Mixer9'"),
        ("late:number", "its mixer late:number is no subclass of arch.model.mixer.Mixer"),
        (dict, "is no subclass of arch.model.mixer.Mixer"),
    ):
        register("eighth", mixer)
        with pytest.raises(InputError) as error:
            build_model(preset("eighth", "14k"))
        assert told in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"name": "hgrn2"}, "architecture 'hgrn2' of tests.arch.test_registry is already one of linear-scaling"),
        ({"name": "My-Net"}, "a name is small letters, digits and _"),
        ({"name": "8th"}, "begins with a letter"),
        ({"mixer": "late.Mixer8"}, "is no class and not written as module:Class"),
        ({"norm": "srmss"}, "unknown norm 'srmss' (did you mean 'srms'?)"),
        ({"fields": ["conv_widt"]}, "no optional field 'conv_widt' (did you mean 'conv_width'?)"),
    ],
)
def test_a_wrong_registration_changes_nothing(arguments, told):
    before = [dict(table) for table in TABLES]
    with pytest.raises(InputError) as error:
        register(**{"name": "eighth", "mixer": "late:Mixer8"} | arguments)
    assert told in str(error.value) and [dict(table) for table in TABLES] == before


REGISTER = "from arch.registry import register\nregister('eighth', 'late:Mixer8', fields=('expand',))\n"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (None, "plugin 'mine' is no module that Python finds: install it, or name its folder in PYTHONPATH"),
        ("x = 1", "plugin 'mine' registers no architecture: call arch.registry.register in it"),
        ("import nothing_of_this_name", "plugin 'mine' cannot be imported: ModuleNotFoundError: No module named 'noth"),
        (REGISTER + "1 / 0", "plugin 'mine' cannot be imported: ZeroDivisionError: division by zero"),
        ("def f(:", "plugin 'mine' cannot be imported: SyntaxError"),
        (REGISTER.replace("eighth", "tnl"), "cannot be imported: architecture 'tnl' of mine is already one of linear"),
    ],
)
def test_a_plugin_that_does_not_work_is_told_in_one_line_and_leaves_nothing(plugin, source, told):
    before = [dict(table) for table in TABLES]
    if source is not None:
        plugin("mine", source)
    with pytest.raises(InputError) as error:
        load_plugins(["mine"])
    assert told in str(error.value) and "\n" not in str(error.value)
    assert [dict(table) for table in TABLES] == before


def test_two_plugins_may_not_share_a_name(plugin):
    plugin("mine", REGISTER)
    plugin("yours", REGISTER)
    load_plugins(["mine", "mine"])
    assert plugin_of("eighth") == "mine" and plugin_of("tnl") is None
    with pytest.raises(InputError, match="architecture 'eighth' of yours is already one of mine: choose another name"):
        load_plugins(["yours"])
    assert plugin_of("eighth") == "mine"


def test_the_plugin_is_what_was_asked_for_wherever_in_it_the_call_stands(plugin):
    """A package whose submodule registers; one that another one imports; one that was imported before."""
    plugin("folder.__init__", "from . import inner")
    plugin("folder.inner", REGISTER)
    plugin("outer", "import mine")
    plugin("mine", REGISTER.replace("eighth", "ninth"))
    load_plugins(["folder", "outer", "mine"])
    assert (plugin_of("eighth"), plugin_of("ninth")) == ("folder", "outer")
    load_plugins(["folder", "outer"])
    plugin("early", REGISTER.replace("eighth", "tenth"))
    __import__("early")
    load_plugins(["early"])
    assert plugin_of("tenth") == "early"


def test_planning_with_a_plugin_needs_no_torch(plugin, tmp_path):
    plugin("mine", REGISTER)
    code = "import sys; from arch.registry import load_plugins; from arch.presets import preset; import flops\n"
    code += "load_plugins(['mine']); preset('eighth', '7b')\nassert not {'torch', 'numpy'} & sys.modules.keys()"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True)
    assert result.returncode == 0, result.stderr


def test_an_unknown_architecture_names_the_plugin_it_came_from():
    require("tnl", None, "config.json")
    with pytest.raises(InputError, match=r"here: unknown architecture 'hgrn' \(did you mean 'hgrn2'\?\)"):
        require("hgrn", None, "here")
    with pytest.raises(InputError, match="here: architecture 'gla' comes from the plugin 'mine': import it first"):
        require("gla", "mine", "here")


def test_a_checkpoint_names_its_plugin(plugin, tmp_path):
    plugin("late", "from arch.architectures.tnl.mixer import TNLMixer\nclass Mixer8(TNLMixer): pass")
    load_plugins([plugin("mine", REGISTER)])
    build_model(preset("eighth", "14k")).save_pretrained(tmp_path / "model")
    assert load_model(tmp_path / "model").model_config.arch == "eighth"
    registry._forget("eighth")
    with pytest.raises(InputError, match=r"config.json: architecture 'eighth' comes from the plugin 'mine': import it"):
        load_model(tmp_path / "model")
