"""published.ipynb, on the study that is committed."""

from tests.analysis.notebooks.execute import ROOT, execute, plots_of, text_of


def test_every_figure_of_the_published_study_is_drawn_from_its_tables(tmp_path):
    folder = ROOT / "analysis" / "studies" / "h200-2026"
    # what the docs set for the other notebooks is no published folder
    outputs = execute("published", tmp_path, PUBLISHED_DIR=str(folder), STUDY_DIR=str(tmp_path))
    text = text_of(outputs)
    for part in ("the same laws of the envelope: True", "HGRN2 has the lowest loss", "outside what was trained"):
        assert part in text, part
    assert len(plots_of(outputs)) >= 5
