"""Numbers, words and keys of study files are those that a reader of today expects, or are refused in one line."""

import datetime
from pathlib import Path

import pytest

from arch.errors import InputError
from scaling.study.yaml_text import dump, parse, read_mapping

from .mutations import ZOO


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 1e-3), ("1E6", 1e6), ("3e4", 3e4), ("1.", 1.0), (".5e1", 5.0), ("+1.5", 1.5), ("-.5", -0.5)),
        *(("0", 0), ("-12", -12), ("+7", 7), ("500_000", 500_000), ("1_000.5", 1000.5), ("10" * 11, int("10" * 11))),
        *(("true", True), ("FALSE", False), ("yes", "yes"), ("off", "off"), ("No", "No"), ("y", "y")),
        *(("null", None), ("~", None), ("", None), ("2026-01-01", "2026-01-01"), ("=", "="), (".nan", ".nan")),
        *(("20N", "20N"), ("1.2.3", "1.2.3"), ("12:70:30", "12:70:30"), ("_1", "_1"), ("1e", "1e"), ("'0500'", "0500")),
        *(("{1: 2, on: 3, null: 4}", {"1": 2, "on": 3, "null": 4}), ("{a: &x 5, *x : 6}", {"a": 5, "5": 6})),
        ("{a: &b {k: 1}, c: &d {<<: *b, k: 2}, e: {<<: *d}}", {"a": {"k": 1}, "c": {"k": 2}, "e": {"k": 2}}),
        (
            "{a: &b {k: 1}, c: {f: &d {<<: *b, k: 2}}, e: {<<: *d}}",
            {"a": {"k": 1}, "c": {"f": {"k": 2}}, "e": {"k": 2}},
        ),
    ],
)
def test_what_a_scalar_is(text, value):
    parsed = parse(text, "here")
    assert parsed == value and type(parsed) is type(value)


DOUBTFUL = ("1:30", "1:30:00", "-1:30", "1:30.5", "0500000", "-007", "00", "0x1F", "0b101", "0o17", "1__0", "1_", "09")


@pytest.mark.parametrize("text", [*DOUBTFUL, *(f"[1, {scalar}]" for scalar in DOUBTFUL), "{a: {b: 0x10}}"])
def test_what_readers_of_yaml_read_differently_is_refused(text):
    with pytest.raises(InputError, match=r"^here: line 1: '.*' is one number to some .* write decimal digits"):
        parse(text, "here")
    assert parse("'1:30'", "here") == "1:30"


@pytest.mark.parametrize("text", ["1" + 320 * "0", "1e400", "-1e999", "1" * 5000, "1" + "0" * 320 + ".5"])
def test_a_number_that_is_too_large_is_refused(text):
    with pytest.raises(InputError, match=r"^here: line 1: .* is too large for a number; correct the YAML$"):
        parse(f"a: {text}", "here")


@pytest.mark.parametrize(
    "text",
    [
        *("!!timestamp x", "!!bool x", "!!int x", "!!float x", "!!binary é", "!!omap 1", "!!set [1]"),
        *("!!python/name:os", "!doubtful x", "!!null x: [", "{a: 1, a: 2}", "{1: 1, '1': 2}", "{? [1] : 2}"),
        *("&a [*b]", "\ud800", "\x00", "a: 1\n---\nb: 2", "%YAML 9.9\n---\na: 1"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_one_line(text):
    with pytest.raises(InputError) as error:
        parse(text, "here")
    assert str(error.value).startswith("here: ") and "\n" not in str(error.value)


def test_what_is_written_is_read_again():
    for value in [*ZOO, *DOUBTFUL, "1e3", "1e-5", "20M", "2026-01-01", "<<", "1.5", 1e-5, [{"off": "no"}], {"1": None}]:
        if (
            isinstance(value, (bytes, datetime.date))
            or value != value
            or value in (10**400, float("inf"), -float("inf"))
        ):
            continue
        if not (isinstance(value, str) and ("\x00" in value or not value.isprintable())):
            assert parse(dump(value), "here") == value


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
