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
