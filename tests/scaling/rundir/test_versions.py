"""The commit that a run's record names, and the code of its plugins."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from scaling.rundir.versions import code_digests, code_places, git_commit


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder of modules that Python finds."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def forget():
    code_places.cache_clear()
    code_digests.cache_clear()


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_plugins_code_is_all_that_it_imports_and_nobody_has_installed(outside):
    lazy = "import json, torch, arch.registry\ndef mixer():\n    from layers.mine import Mixer\n    import missing\n"
    write(outside, plugin=lazy, layers__mine="import shapes.narrow\nfrom . import other", layers__other="", unread="")
    write(outside, shapes__narrow="import plugin", broken="def f(:")
    write(outside / "layers", **{"__pycache__": "", ".hidden": ""})
    (outside / "layers" / "kernel.cu").write_text("")
    (outside / "layers" / "weights.bin").write_text("")
    places = code_places(("plugin",))
    assert places == {"layers": outside / "layers", "plugin": outside / "plugin.py", "shapes": outside / "shapes"}
    assert code_places(("layers.mine",)) == places  # shapes import the plugin
    assert code_places(("broken", "nowhere", "json", "flops.entry")) == {"broken": outside / "broken.py"}
    assert code_places(("yaml",)).keys() == {"yaml"}, "an installed plugin has a digest too"


def test_the_digest_is_of_the_code_alone(outside):
    write(outside, plugin="from layers import mine", layers__mine="a = 1", layers__other="")
    before = code_digests(("plugin",))
    assert before["plugin"] == hashlib.sha256(b"from layers import mine").hexdigest()[:16]
    (outside / "layers" / "notes.txt").write_text("")
    forget()
    assert code_digests(("plugin",)) == before
    for change in (lambda: write(outside, layers__mine="a = 2"), (outside / "layers/other.py").unlink):
        change()
        forget()
        now = code_digests(("plugin",))
        assert now["plugin"] == before["plugin"] and now["layers"] != before["layers"]
        before = now


def test_the_commit_is_that_of_the_source_tree():
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert (git_commit() or "").removesuffix("+changes") == head.strip()
