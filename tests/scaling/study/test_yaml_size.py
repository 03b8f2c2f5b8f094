"""A short YAML text stands for no more values than a study can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch.errors import InputError
from scaling.study.yaml_text import read_mapping


def test_aliases_are_read_where_they_are_few(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("a: &a [1, 2]\nb: [*a, *a]\n")
    assert read_mapping(path, "study", "name") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
            "too many",
        ),
        ("a: &a [*a]\n", "an alias holds itself"),
        ("a: &a {b: [*a]}\n", "an alias holds itself"),
        ("#" * 300_000, "is no file of at most 262,144 bytes"),
    ],
)
def test_what_stands_for_too_much_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_mapping(path, "study", "name")
    assert "\n" not in str(caught.value)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is no file of at most"):
        read_mapping(path, "study", "name")
