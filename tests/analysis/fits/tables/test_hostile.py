"""Tables that would be read as something else: each is refused in one line, or read as it was meant."""

import gzip
import json
import os
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.fits.tables import read_points
from arch.errors import InputError

from .reading import points, refused, written


def grid(sizes=4, lengths=4, factor=1.0, n=1e7, d=1e9):
    n, d = (np.ravel(one) for one in np.meshgrid(n * 4.0 ** np.arange(sizes), d * 4.0 ** np.arange(lengths)))
    return pd.DataFrame({"N": n, "D": d, "loss": factor * (1.7 + 400 / n**0.34 + 410 / d**0.28)})


# -- the index of a frame


def two_archs():
    return pd.concat([grid().assign(arch="llama"), grid(factor=0.95).assign(arch="hgrn2")], ignore_index=True)


@pytest.mark.parametrize("levels", [["arch"], ["arch", "N"], ["N", "D", "loss", "arch"]])
def test_every_named_level_of_an_index_is_a_column(tmp_path, levels):
    plain = {name: one.input_hash for name, one in read_points(two_archs()).groups.items()}
    frame = two_archs().set_index(levels)
    frame.to_parquet(tmp_path / "t.parquet")
    for source in (frame, tmp_path / "t.parquet", two_archs().set_index(levels, drop=False)):
        assert {name: one.input_hash for name, one in read_points(source).groups.items()} == plain
    assert read_points(two_archs().rename_axis(None)).columns == read_points(two_archs()).columns


def test_an_index_that_differs_from_the_column_of_its_name_is_refused():
    frame = two_archs()
    refused("the column 'arch' is there 2 times", frame.set_index(pd.Index(frame["arch"][::-1], name="arch")))


# -- units


def test_columns_in_another_unit_are_refused_where_compute_gives_them_away():
    table = grid().assign(flops=lambda t: 6 * t.N * t.D)
    assert len(points(table)) == 16
    for n, d, c in ((1e6, 1, 1), (1, 1e9, 1), (1e6, 1e9, 1), (1, 1, 1e9), (1, 1, 1e3), (1, 1, 8.64e19), (1e3, 1, 1)):
        other = table.assign(N=table.N / n, D=table.D / d, flops=table.flops / c)
        left = "--columns flops=" if c > 1 else "--columns n_tokens="
        refused(f"6 N D / C is .* near 1 where .* in another unit .*{left}", other)
    assert len(points(table.assign(flops=table.flops / 1e9), {"flops": ""})) == 16


def test_real_ratios_of_compute_are_no_other_unit():
    """Heads of 50k words make small models cost a hundred times 6 N D, more for the smaller; experts cost less."""
    table = grid(n=6e3)
    width = np.sqrt(table.N / 60)
    assert read_points(table.assign(flops=6 * (table.N + 50_000 * width) * table.D)).six_nd[0] < 0.02
    assert read_points(table.assign(flops=6 * table.N * table.D / 40)).six_nd[1] == pytest.approx(40)


@pytest.mark.parametrize(
    ("n", "d", "told"),
    [
        (1e6, 1e9, "n_params runs from 10 to 640"),
        (1e3, 1, "n_params runs from 10k to 640k|D / N is"),
        (1, 1e9, "n_tokens runs from 1 to 64"),
        (1, 1e6, "n_tokens runs from 1k to 64k"),
        (1e9, 1e9, "n_params runs from 0.01 to 0.64"),
        (1, 1e4, "D / N is 0.01"),
    ],
)
def test_sizes_that_hardly_any_study_has_are_remarked(n, d, told):
    found = read_points(grid().assign(N=lambda t: t.N / n, D=lambda t: t.D / d))
    plain = read_points(grid())
    assert len(found.notes) >= len(plain.notes) + (n != 1e3) and len(found.groups[""]) == 16
    if n != 1e3:
        assert any(told in note for note in found.notes)
    issue = read_points(grid(sizes=5, n=7000 / 4**4).assign(D=lambda t: 1400 * t.D / t.D.max()))
    assert sum("read as it stands" in note for note in issue.notes) == 2


# -- cells that can be read in two ways


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["0,125", "0,250", "0,500"], r"has a comma that could be a decimal point .* as '0,125'.* in rows 1, 2, 3"),
        (["125,000", "250,000", "500,000"], r"has a comma that could be a decimal point .* as '125,000'"),
        (
            ["1.234", "2.468", "4.936"],
            r"could be thousands or a fraction, as '1.234': write it without the point, or as 1.234e9",
        ),
        (["1.234.000", "2.468.000", "4.936.000"], "is no number, as '1.234.000'"),
        (["1.234,5", "2.468,5", "4.936,5"], "is no number"),
        (["7'000'000", "7000000", "70000000"], "is no number"),
    ],
)
def test_a_cell_that_could_be_two_numbers_is_refused(tmp_path, cells, message):
    rows = [f'"{cell}",{10**9 + i},3.{i}' for i, cell in enumerate(cells)]
    refused(message, written(tmp_path / "t.csv", "\n".join(["N,D,loss", *rows])))


def test_other_cells_of_a_column_say_what_a_comma_and_a_point_are(tmp_path):
    rows = '"125,000",1e9,3.0\n"1,250,000",1e9,2.9\n"12,500,000",1e9,2.8\n'
    path = written(tmp_path / "t.csv", "N,D,loss\n" + rows)
    assert points(path).n_params.tolist() == [125e3, 1.25e6, 1.25e7]
    assert read_points(path, where=["N>200000"]).n_kept == 2
    assert read_points(path, where=["N=125000"]).n_kept == 1
    path = written(tmp_path / "u.csv", "N,D,loss\n1.234,1e9,3.0\n12.5,1e9,2.9\n70,1e9,2.8\n")
    assert points(path).n_params.tolist() == [1.234, 12.5, 70]
    refused("needs one number", path, where=["N>1,000"])


# -- losses that are not comparable


def test_two_kinds_of_loss_at_one_place_are_refused():
    rng = np.random.default_rng(0)
    noise = np.exp(0.02 * rng.standard_normal(16))
    for factor in (2.8, 1 / np.log(2), 0.25):
        for more in ({}, {"seed": 0}, {"run": [f"r{i}" for i in range(32)]}):
            both = pd.concat([grid(), grid().assign(loss=lambda t, f=factor: t.loss * f * noise)], ignore_index=True)
            refused(
                r"losses at one N and D differ by a factor of .* \(rows \d+, \d+; .* two kinds", both.assign(**more)
            )
    some = pd.concat([grid(), grid().iloc[:3].assign(loss=lambda t: 2.8 * t.loss)], ignore_index=True)
    refused("at 3 of 3 such places .rows 1, 17; rows 2, 18; rows 3, 19.", some)
    named = both.assign(kind=["a"] * 16 + ["b"] * 16)
    refused("keep one by --where, group by a column that tells them apart, or name it by --columns recipe=", named)
    assert len(points(named, where=["kind=a"])) == 16
    assert len(read_points(named, group="kind").groups) == 2
    assert len(points(named, {"recipe": "kind"})) == 16


def test_seeds_sweeps_repeated_text_and_a_failed_run_are_no_two_kinds_of_loss():
    rng = np.random.default_rng(1)
    seeds = pd.concat([grid().assign(loss=lambda t: t.loss * np.exp(0.05 * rng.standard_normal(16))) for _ in range(4)])
    assert len(points(seeds.reset_index(drop=True))) == 64
    failed = seeds.reset_index(drop=True)
    failed.loc[5, "loss"] *= 2.5
    assert len(points(failed)) == 64
    rates = pd.concat([grid(), grid().assign(loss=10.8)], ignore_index=True)  # one rate is too high: nothing is learnt
    assert len(points(rates.assign(seed=0))) == 16
    again = pd.concat([grid(), grid().assign(loss=lambda t: 1.5 * t.loss)], ignore_index=True)
    unique = np.repeat([1e12, 1e8], 16)  # read a hundred times
    assert len(points(again.assign(unique_tokens=unique))) == 32


@pytest.mark.parametrize("column", ["dataset", "tokenizer", "seq_len", "split", "loss_kind"])
def test_points_say_what_their_loss_is_of(column):
    found = read_points(two_archs().assign(**{column: np.repeat(["c4", "pile"], 16)})).groups
    assert found["llama"].loss_of.endswith(" c4") and found["hgrn2"].loss_of.endswith(" pile")
    one = two_archs().assign(**{column: np.tile(["c4", "pile"], 16)})
    refused("group 'llama' has several values of", one)


# -- files


def test_jsonl_is_cut_at_line_ends_alone(tmp_path):
    rows = [{**row, "note": "a\u2028b\u0085c\x1c\x0c"} for row in grid().to_dict("records")]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert len(points(written(tmp_path / "t.jsonl", text))) == 16


def test_byte_order_marks_are_no_text(tmp_path):
    text = grid().to_csv(index=False)
    lines = grid().to_json(orient="records", lines=True).replace("\n", "\n\ufeff", 1)
    for name, content in (
        ("t.csv", "\ufeff\ufeff" + text),
        ("t.jsonl", "\ufeff" + lines),
        ("t.json", "\ufeff" + grid().to_json(orient="records")),
        ("t.csv.gz", gzip.compress(("\ufeff" + text).encode())),
    ):
        assert len(points(written(tmp_path / name, content))) == 16
    assert len(points(grid().rename(columns={"N": "\ufeffN"}))) == 16


def test_gzip_is_known_by_its_content(tmp_path):
    text = grid().to_csv(index=False).encode()
    for name, content in (("t.csv", gzip.compress(text)), ("t.csv.gz", text)):
        assert len(points(written(tmp_path / name, content))) == 16


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"N": 1e7, "D": 1e9, "loss": 3, "loss": 2}', "the key 'loss' stands twice"),
        ('{"N": 1e7, "D": 1e9, "loss": 3, "arch": "\\ud800"}', "surrogates not allowed"),
        ('{"N": 1e7, "D": 1e9, "loss": ' + "[" * 100_000 + "}", "too deep"),
        ('{"N": 1e7, "D": 1e9, "loss": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ('{"N": 1e7, "D": 1e9, "loss": ' + "9" * 400 + "}", "loss is not a positive, finite number in row 1"),
        ('{"N": 1e7, "D": 1e9, "loss": NaN}', "loss: is empty or NaN"),
        ('{"N": 1e7, "D": 1e9, "loss": -Infinity}', "loss is not a positive, finite number"),
        ('{"N": true, "D": 1e9, "loss": 3}', "is no number"),
    ],
)
def test_rows_of_jsonl_that_are_refused(tmp_path, row, message):
    refused(message, written(tmp_path / "t.jsonl", row + "\n"))


def test_whole_numbers_of_any_length_are_numbers(tmp_path):
    rows = [
        {"N": int(n), "D": int(d), "flops": 6 * int(n) * int(d), "loss": loss} for n, d, loss in grid(d=1e13).values
    ]
    assert rows[-1]["flops"] > 2**64
    path = written(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_points(path).six_nd == pytest.approx((1, 1, 1))


def test_text_that_no_encoder_takes_is_refused():
    cells = pd.Series(["a\ud800"] * 16, dtype=object)
    refused("column 'arch' holds half of a surrogate pair", grid().assign(arch=cells))
    columns = pd.Index(["N", "x\ud800", "loss"], dtype=object)
    refused(r"column 'x\\ud800' holds half", grid().set_axis(columns, axis=1))
    refused("is no number, as '.10000000.10000000j.'", grid().assign(N=lambda t: t.N * (1 + 1j)))


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    refused("is no regular file", tmp_path / "t.csv")
    (tmp_path / "t.jsonl").symlink_to("/dev/zero")
    refused("is no regular file", tmp_path / "t.jsonl")


def test_a_large_text_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.fits.tables.files.LARGEST", 1 << 16)
    refused("holds more than .* of text", written(tmp_path / "t.csv.gz", gzip.compress(b"N,D,loss\n" * (1 << 16))))


@pytest.mark.parametrize("kind", ["csv.gz", "parquet", "jsonl.gz"])
def test_a_flipped_byte_is_refused_in_one_line_or_read_as_before(tmp_path, kind):
    """Whatever the library raises; of a Parquet page, its checksum."""
    table, path = grid(), tmp_path / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pandas(table.set_index("N")), path, write_page_checksum=True, compression="none")
    else:
        text = table.to_csv(index=False) if kind == "csv.gz" else table.to_json(orient="records", lines=True)
        path.write_bytes(gzip.compress(text.encode()))
    whole, before = path.read_bytes(), points(path).input_hash
    rng, n_refused = random.Random(0), 0
    for at in rng.sample(range(len(whole)), 150):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
        try:
            assert points(path).input_hash == before, at
        except InputError as error:
            n_refused += 1
            assert "\n" not in str(error) and str(path) in str(error)
    assert n_refused > 75
