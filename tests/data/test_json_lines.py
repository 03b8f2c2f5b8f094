"""Rows of JSON lines are read whole, or the line that is wrong is named."""

import io

import pytest

from arch.errors import InputError
from data.json_lines import are_json_rows, json_rows

BOM = b"\xef\xbb\xbf"


def test_lines_are_cut_at_newlines_alone() -> None:
    content = BOM + '{"a": "x\u2028y\u0085z"}\r\n\n[1]\n"\\u00e9"'.encode()
    wanted = [(1, {"a": "x\u2028y\u0085z"}), (3, [1]), (4, "é")]
    assert list(json_rows(content.split(b"\n"), "here")) == wanted
    assert list(json_rows(io.BytesIO(content), "here")) == wanted
    assert are_json_rows(content) and are_json_rows(b'\n {"a": 1}')
    for other in (b"", b"[1]", b"{", b"text", b'{"a":\n1}', b"{" * 100_000, b'{"a": 1} x'):
        assert not are_json_rows(other)


@pytest.mark.parametrize(
    "line",
    [
        *(b"{", b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b'"\xed\xa0\x80"', b"\xff", b"NaN", b"1e999"),
        *(b"9" * 5000, b"[" * 100_000),
    ],
)  # fmt: skip
def test_a_row_that_is_wrong_is_named(line: bytes) -> None:
    with pytest.raises(InputError, match=r"^here: line 2 is not JSON \(.*\); mend it$") as error:
        list(json_rows([b"1\n", line], "here", "; mend it"))
    assert "\n" not in str(error.value)
