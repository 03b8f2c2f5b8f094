"""`flops table` against the paper's table 7 as transcribed, cell by cell."""

import csv
import io

import pytest

from arch.errors import InputError
from flops import table7
from tests.flops.test_cli import must, rows_of


def reference() -> list[dict[str, str]]:
    with open(table7.DATA / "table7.csv", newline="") as handle:
        return list(csv.DictReader(handle))


def test_the_csv_is_the_papers_but_for_what_it_contradicts():
    """Every cell, text for text: all but the heads and g of the 1B rows and the parameters of cos2-3B."""
    printed, ours = reference(), rows_of("table")
    assert len(printed) == len(ours) == 24 and list(printed[0]) == list(ours[0])
    differ = {
        (row["arch"], row["size"], key, row[key], other[key])
        for row, other in zip(printed, ours, strict=True)
        for key in row
        if row[key] != other[key]
    }
    assert differ == {("cos2", "3B", "params_million", "2799.0", "2799.3")} | {
        (arch, "1B", *cells)
        for arch in ("LLaMA", "TNL", "HGRN2", "cos2")
        for cells in (("h", "16", "12"), ("g", "5632", "4096"))
    }


def test_the_packages_copy_is_the_reference(shared):
    for name, original in (
        ("table7.csv", "003_table07_params_flops.csv"),
        ("table3.csv", "003_table03_scaling_laws.csv"),
    ):
        assert (table7.DATA / name).read_bytes() == (shared / "reference" / "csv" / original).read_bytes()


def test_what_the_norms_of_the_print_add():
    """4ld in LLaMA and 7ld in cosFormer2, beside its angles ld; nothing in TNL and HGRN2. (And one final norm.)"""
    rows = [rows_of("table", "--norms", norms) for norms in table7.NORMS]
    assert {row["arch"] for row, other in zip(*rows, strict=True) if row != other} == {"LLaMA", "cos2"}
    for arch, size in table7.printed():
        cfg = table7.configuration(arch, size)
        paper, package = (table7.row(arch, size, norms)["params_million"] * 1e6 for norms in table7.NORMS)
        layer = {"llama": 4 - 2, "cosformer2": 7 - 1}.get(arch, 0) * cfg.n_layers * cfg.d_model
        final = {"llama": 2 - 1, "cosformer2": 2}.get(arch, 0) * cfg.d_model
        assert paper - package == pytest.approx(layer + final, abs=1e-3)
    with pytest.raises(InputError, match="did you mean 'preset'"):
        table7.row("llama", "7b", "presets")


def test_as_printed_shows_cell_ours_and_note():
    text = must("table", "--as-printed", "--format", "csv")
    rows = {(row["arch"], row["size"]): row for row in csv.DictReader(io.StringIO(text))}
    for row in reference():
        ours = rows[row["arch"], row["size"]]
        for key in ("h", "g", "params_million", "pflops_per_step"):
            assert float(ours[f"{key}_printed"]) == float(row[key])
        assert f"{float(ours['pflops_per_step']):.1f}" == row["pflops_per_step"]
        contradicted = [k for k in ("h", "g") if ours[k] != row[k]]
        contradicted += ["params"] * (f"{float(ours['params_million']):.1f}" != row["params_million"])
        for key in contradicted:
            assert f"{key}: " in ours["note"], ours
    assert "12" in rows["TNL", "1B"]["note"] and "4096" in rows["TNL", "1B"]["note"]
    assert "2799.3" in rows["cos2", "3B"]["note"] and rows["cos2", "3B"]["params_million_printed"] == "2799.0"
    assert "25" in rows["TNL", "410M"]["note"] and not rows["TNL", "7B"]["note"]
    printed = must("table", "--as-printed")
    assert "24 of 24 PFLOP cells" in printed and "23 of 24 parameter cells" in printed
    assert all(f"\n{letter}  " in printed for letter in table7.NOTES)


def test_other_conventions_beside_the_papers():
    rows = rows_of("table", "--convention", "exact", "--convention", "6nd")
    assert list(rows[0])[-3:] == ["pflops_per_step", "pflops_per_step_exact", "pflops_per_step_6nd"]
    llama = next(row for row in rows if (row["arch"], row["size"]) == ("LLaMA", "7B"))
    assert float(llama["pflops_per_step_6nd"]) < float(llama["pflops_per_step_exact"])
