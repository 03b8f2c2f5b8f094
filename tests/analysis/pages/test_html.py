"""Tables and the shell of the HTML pages."""

from pathlib import Path

from analysis.pages.html import render, shaped

PAGE = """{% extends "page.html.j2" %}{% from "parts.html.j2" import table with context %}
{% block title %}{{ name }}{% endblock %}
{% block body %}{{ table(rows, good=good) }}{% endblock %}"""


def test_columns_of_numbers_stand_on_the_right_and_empty_ones_go() -> None:
    rows = [
        {"arch": "TNL", "loss": "1.25", "a": "0.5 [0.4, 0.6]", "share": "−3.2%", "why": ""},
        {"arch": "hgrn2", "loss": "1,234.5", "a": "not identified", "share": "12.0*"},
        {"arch": "llama", "loss": "-", "share": "1.2e+16*", "why": ""},
    ]
    drawn = shaped(rows, missing="none")
    assert drawn.heads == [("arch", False), ("loss", True), ("a", False), ("share", True)]
    assert drawn.rows[0] == [
        ("TNL", False),
        ("1.25", True),
        ('0.5 <span class="nb">[0.4, 0.6]</span>', False),
        ("−3.2%", True),
    ]
    assert drawn.rows[2][2] == ("none", False)


def test_a_page_escapes_what_it_shows_and_holds_plotly_only_where_it_has_figures(tmp_path: Path) -> None:
    template = tmp_path / "one.html.j2"
    template.write_text(PAGE)
    rows = [{"arch": "<b>", "state": "failed"}]
    page = render(template, figures=False, name="a & b", rows=rows, good=("state", "done"))
    assert page.startswith("<!doctype html>") and "<title>a &amp; b</title>" in page
    assert '<tr class="bad"><td>&lt;b&gt;</td>' in page and "<script" not in page
    assert "<script>" in render(template, figures=True, name="x", rows=rows, good=None)
    assert "<p>None.</p>" in render(template, figures=False, name="x", rows=[], good=None)
