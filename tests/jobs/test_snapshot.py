"""The code that a submission carries."""

import pytest

from arch.errors import InputError
from jobs.snapshot import copy_code
from scaling.rundir.versions import PACKAGES, code_digests, code_places


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Modules of a user: a plugin of two files, and a package with data."""
    monkeypatch.syspath_prepend(tmp_path / "mine")
    for name in ("plugin.py", "mixer.py", "package/__init__.py", "package/table.csv", "package/__pycache__/x.pyc"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("def f():\n    import mixer, pytest" if name == "plugin.py" else "")
    yield tmp_path / "mine"
    code_places.cache_clear()
    code_digests.cache_clear()


def test_a_plugin_travels_with_what_it_imports(outside, tmp_path, monkeypatch):
    modules = ("plugin", "package.task")
    code, digests = tmp_path / "code", code_digests(modules)
    copy_code(code, modules)
    assert {path.name for path in code.iterdir()} == {*PACKAGES, "COMMIT", "plugin.py", "mixer.py", "package"}
    assert {path.name for path in (code / "package").iterdir()} == {"__init__.py", "table.csv"}
    code_places.cache_clear()
    code_digests.cache_clear()
    monkeypatch.syspath_prepend(code)
    assert code_places(modules)["mixer"] == code / "mixer.py" and code_digests(modules) == digests


def test_a_package_is_not_copied_into_itself(outside):
    with pytest.raises(InputError, match=r"the package package holds the study's output, .*: give another --out"):
        copy_code(outside / "package" / "out" / "study" / "jobs" / "0001" / "code", ["package"])
    assert not (outside / "package" / "out").exists()
