import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arch.errors import InputError
from data.files import (
    MANIFEST,
    damage,
    new_directory,
    parse_json,
    read_json,
    read_manifest,
    reading,
    write_bytes,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    write_json(tmp_path / "a.json", {"x": 2})
    assert read_json(tmp_path / "a.json") == {"x": 2} and names(tmp_path) == ["a.json"]
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": 2} and names(tmp_path) == ["a.json"]


def test_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(RuntimeError, match="half way"), new_directory(target, {}) as temporary:
        (temporary / "part").write_text("1")
        raise RuntimeError("half way")
    assert names(tmp_path) == []
    manifest: dict = {"a": 1}
    with new_directory(target, manifest) as temporary:
        (temporary / "part").write_text("1")
        manifest["b"] = 2
        assert not target.exists()
    stored = read_manifest(target)
    assert stored is not None and (stored["a"], stored["b"], list(stored["files"])) == (1, 2, ["part"])
    assert names(tmp_path) == ["made"]


def test_manifest_is_refused_where_a_file_differs(tmp_path: Path) -> None:
    with new_directory(tmp_path / "d", {}) as temporary:
        (temporary / "part").write_text("12")
    (tmp_path / "d" / "part").write_text("13")
    assert read_manifest(tmp_path / "d") is None and read_manifest(tmp_path / "d", verify=False) is not None
    (tmp_path / "d" / "part").write_text("123")
    assert read_manifest(tmp_path / "d", verify=False) is None
    (tmp_path / "d" / MANIFEST).write_text("{")
    assert read_manifest(tmp_path / "d") is None and read_manifest(tmp_path / "nowhere") is None


@pytest.mark.parametrize("kill", [1, 2, 3])
def test_killed_at_a_commit_the_old_content_stays(tmp_path: Path, kill: int) -> None:
    write_bytes(tmp_path / "a", b"0")
    code = (
        "import sys; from pathlib import Path; from data.files import write_bytes\n"
        "for i in (1, 2): write_bytes(Path(sys.argv[1]), str(i).encode(), kind='thing')\n"
    )
    environment = os.environ | {"KILL_AT_WRITE": f"thing:{kill}"}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], env=environment, start_new_session=True)
    assert done.returncode == (0 if kill == 3 else -signal.SIGKILL)
    assert (tmp_path / "a").read_bytes() == str(kill - 1).encode()


@pytest.mark.parametrize(
    "content",
    [
        *("NaN", '{"x": -Infinity}', '{"x": 1e999}', '{"x": 1' + 320 * "0" + "}", '{"x": 1, "x": 2}'),
        *('{"x": "\\ud800"}', "[" * 100_000, "{", "", b'"\xff"'),
    ],
)
def test_json_that_would_fail_later_is_refused_where_it_is_read(content: str | bytes) -> None:
    for given in (content, content.encode()) if isinstance(content, str) else (content,):
        with pytest.raises(ValueError):
            parse_json(given)
    assert parse_json(b'{"a": "\\u00e9\\ud83d\\ude00"}') == {"a": "\u00e9\U0001f600"}


@pytest.mark.parametrize("error", [KeyError("k"), MemoryError(), RuntimeError("two\nlines"), OSError(5, "I/O error")])
def test_whatever_a_reader_raises_is_one_line(error: Exception) -> None:
    with (
        pytest.raises(InputError, match=r"^a\.csv: cannot be read \(.*\); fetch it again$"),
        reading("a.csv", "fetch it again"),
    ):
        raise error
    with pytest.raises(InputError, match=r"^known$"), reading("a.csv"):
        raise InputError("known")


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../up", "pipe", "folder", "zeros", "a/../there", "", "there\n", "./there"]
)
def test_a_manifest_opens_regular_files_of_its_directory_alone(tmp_path, name):
    """Whatever it says: a device has no end, and a pipe waits for ever."""
    with new_directory(tmp_path / "a", {"step": 1}) as folder:
        (folder / "there").write_text("content")
    path = tmp_path / "a"
    (tmp_path / "up").write_text("content")
    os.mkfifo(path / "pipe")
    (path / "folder").mkdir()
    (path / "zeros").symlink_to("/dev/zero")
    shown = read_json(path / "manifest.json")
    write_json(path / "manifest.json", shown | {"files": {name: shown["files"]["there"]}})
    assert read_manifest(path) is None and read_manifest(path, verify=False) is None
    assert "leads out of a" in damage(path) or "is no regular file" in damage(path)
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to("/dev/zero")
    assert read_manifest(path) is None and "is no regular file" in damage(path)
