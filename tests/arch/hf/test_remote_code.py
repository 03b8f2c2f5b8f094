"""The flat copy of arch/hf/auto.py: complete, importable by itself, and the same models."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from arch.hf.remote_code import AUTO_MAP, remote_code


@pytest.fixture(scope="module")
def code():
    return remote_code()


def test_the_library_finds_every_file(code, tmp_path):
    """By its own function, which follows lines of one form only, docstrings included."""
    from transformers.dynamic_module_utils import get_relative_import_files

    for name, source in code.items():
        (tmp_path / name).write_text(source)
    names = {Path(file).name for file in get_relative_import_files(tmp_path / "hf_auto.py")}
    assert names | {"hf_auto.py"} == code.keys()


def test_the_flat_folder_computes_the_same(code, tmp_path):
    """In a process of its own, as a package of any name, without transformers: the folder's model_lm.py."""
    import torch

    from arch.config import ARCHS
    from arch.model.lm import build_model
    from arch.presets import preset

    (tmp_path / "copied").mkdir()
    for name, source in code.items():
        (tmp_path / "copied" / name).write_text(source)
    script = f"""
import sys, torch
sys.path.insert(0, ".")
from copied import config, model_lm as lm
assert "arch" not in sys.modules and "transformers" not in sys.modules
ids = torch.arange(20)[None]
models = {{ {", ".join(f"{arch!r}: {preset(arch, '14k').to_dict()}" for arch in ARCHS)} }}
models = {{arch: lm.build_model(config.ModelConfig.from_dict(fields), 0) for arch, fields in models.items()}}
logits = {{arch: model(ids).logits.detach() for arch, model in models.items()}}
torch.save(logits, "logits.pt")
"""
    subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, check=True)
    logits = torch.load(tmp_path / "logits.pt", weights_only=True)
    for arch in ARCHS:
        expected = build_model(preset(arch, "14k"), 0)(torch.arange(20)[None]).logits
        assert torch.equal(logits[arch], expected), arch


def test_the_auto_map_names_classes_that_are_there(code):
    for reference in AUTO_MAP.values():
        module, name = reference.split(".")
        classes = {node.name for node in ast.parse(code[f"{module}.py"]).body if isinstance(node, ast.ClassDef)}
        assert name in classes


def package(tmp_path, files):
    for name, source in {"__init__.py": "", **files}.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path / "pack"


def test_every_form_of_import(tmp_path):
    hf = 'a = "é"; from .low import deep\nfrom {deep} import (\n    x,\n    y as z,\n)\nfrom .low import x\n'
    files = {
        "hf.py": hf.format(deep=".low.deep"),
        "low/__init__.py": "from .deep import deep\nfrom ..top import t\n",
        "low/deep.py": "def deep():\n    from ..top import t\n    from .other import *\n\n\nx = y = 1\n",
        "low/other.py": "import os\nfrom os import path\n",
        "top.py": "t = 1\n",
        "unused.py": "",
    }
    code = remote_code(package(tmp_path, files), "hf")
    assert {name: source.split("\n", 1)[1] for name, source in code.items()} == {
        "hf.py": hf.format(deep=".low_deep"),
        "low.py": "from .low_deep import deep\nfrom .top import t\n",
        "low_deep.py": "def deep():\n    from .top import t\n    from .low_other import *\n\n\nx = y = 1\n",
        "low_other.py": "import os\nfrom os import path\n",
        "top.py": "t = 1\n",
    }


@pytest.mark.parametrize(
    "source, problem",
    [
        ("from . import low", "import names from the module low"),
        ("from .low import deep", "import names from the module deep"),
        ("import pack.low", "write this import of pack as a relative one"),
        ("from pack.low import x", "write this import of pack as a relative one"),
        ("from .low \\\n    import x", "on one line"),
        ("from .low.deep import x\nfrom .low_deep import x", "another module is low_deep.py too"),
    ],
)
def test_imports_without_a_flat_form(source, problem, tmp_path):
    files = {"hf.py": source, "low/__init__.py": "x = 1", "low/deep.py": "x = 1", "low_deep.py": "x = 2"}
    with pytest.raises(ValueError, match=problem):
        remote_code(package(tmp_path, files), "hf")
    files |= {"hf.py": "from .low import x", "low/__init__.py": "from . import deep\nx = 1"}  # its own module
    with pytest.raises(ValueError, match="import names from the module deep"):
        remote_code(package(tmp_path, files), "hf")
