"""Hints at valid names."""

from arch.errors import nearest


def test_where_no_name_is_valid_none_is_listed():
    assert nearest("x", []) == "" and nearest("x", ["long", "names"]) == " (valid: long, names)"
