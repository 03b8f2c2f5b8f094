"""A lock leaves nothing behind where nothing was written, and stays one lock while it comes and goes."""

import subprocess
import sys
from pathlib import Path

import pytest

from arch.errors import InputError
from scaling.rundir.lock import is_locked, run_lock, study_lock

COUNT = """
import sys
from pathlib import Path
from scaling.rundir.lock import study_lock
for _ in range(100):
    with study_lock(Path(sys.argv[1]) / "a" / "b"):
        count = Path(sys.argv[2])
        count.write_text(str(int(count.read_text()) + 1))
"""


def test_the_folders_made_for_it_go_with_it(tmp_path):
    deep = tmp_path / "out" / "tiny" / "jobs"
    with study_lock(deep):
        assert is_locked(deep)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), study_lock(deep):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_or_was_written_stays(tmp_path):
    (tmp_path / "out").mkdir()
    with study_lock(tmp_path / "out" / "tiny"):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    for lock in (study_lock, run_lock):
        with lock(tmp_path / "out" / "tiny"):
            (tmp_path / "out" / "tiny" / "kept").write_text("kept")
        assert sorted(path.name for path in (tmp_path / "out" / "tiny").iterdir()) == [".lock", "kept"]


def test_two_processes_never_hold_it_at_once_although_it_is_removed_each_time(tmp_path):
    count = tmp_path / "count"
    count.write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path / "locks"), str(count)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[1] for process in both] == ["", ""]
    assert count.read_text() == "200"
    # the folder may stay where the process that made it ended before the other
    assert [path for path in (tmp_path / "locks").rglob("*") if not path.is_dir()] == []


def test_a_folder_that_cannot_be_made_is_an_error_at_once():
    with pytest.raises(InputError, match="cannot be written"), study_lock(Path("/proc/no/such")):
        pass


def test_a_folder_that_goes_while_it_is_looked_at_is_made_again(tmp_path, monkeypatch):
    """mkdir finds the folder there, another holder removes it, and mkdir looks whether it is a folder: no error."""
    (tmp_path / "locks").mkdir()
    mkdir, removed = Path.mkdir, []

    def removed_meanwhile(self, *args, **kwargs):
        if not removed:
            removed.append(self)
            self.rmdir()
            raise FileExistsError(17, "File exists", str(self))
        mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", removed_meanwhile)
    with study_lock(tmp_path / "locks"):
        assert is_locked(tmp_path / "locks")
    assert removed == [tmp_path / "locks"]


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "locks").write_text("")
    with pytest.raises(InputError, match="File exists"), study_lock(tmp_path / "locks"):
        pass
