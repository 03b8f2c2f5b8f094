"""Tables of runs as points: files, columns, cells, conditions, runs that occur twice; what could be read as something
else is refused in one line, or read as it was meant."""

import gzip
import json
import os
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.fits.points import Points
from analysis.fits.tables import files, read_points
from analysis.fits.tables.columns import choose, parse_columns
from arch.errors import InputError

ROWS = [(1e8, 2e9, 3.1), (2e8, 4e9, 2.9), (4e8, 8e9, 2.7)]
COPIED = "the same numbers under another run name"
HIGHER = "by another recipe that ends higher at the same N and D"


def points(*args, **kwargs) -> Points:
    """Of a table without groups."""
    return read_points(*args, **kwargs).groups[""]


def refused(message, source, *args, **kwargs) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_points(source, *args, **kwargs)
    assert "\n" not in str(error.value)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def frame(rows=ROWS, **more):
    return pd.DataFrame(rows, columns=["N", "D", "loss"]).assign(**more)


def grid(sizes=4, lengths=4, n=1e7, d=1e9):
    n, d = (np.ravel(axis) for axis in np.meshgrid(n * 4.0 ** np.arange(sizes), d * 4.0 ** np.arange(lengths)))
    return pd.DataFrame({"N": n, "D": d, "loss": 1.7 + 400 / n**0.34 + 410 / d**0.28})


def twice(factor, **more):
    """Every N and D at two losses."""
    return pd.concat([grid(), grid().assign(loss=lambda t: t.loss * factor)], ignore_index=True).assign(**more)


def sweep(factors=(0.98, 1.0, 1.02), **columns):
    """Every N and D three times."""
    parts = [grid(5).assign(loss=lambda t, f=factor: t.loss * f, lr=10.0**-i) for i, factor in enumerate(factors)]
    return pd.concat(parts, ignore_index=True).assign(**columns)


def curves(sizes=("a", "b"), lengths=3):
    rows = [
        (run, 1e6 * 4**i, 1e8 * 2**j, 2 + 4 ** (-0.3 * i) + 2 ** (-0.3 * j))
        for i, run in enumerate(sizes)
        for j in range(lengths)
    ]
    return pd.DataFrame(rows, columns=["run", "N", "D", "loss"])


# -- files


def test_every_format_gives_the_same_points(tmp_path):
    table, records = frame(note="a\u2028b\u0085c"), frame(note="a\u2028b\u0085c").to_dict("records")
    text, lines = table.to_csv(index=False), [json.dumps(record, ensure_ascii=False) for record in records]
    files = {"t.csv": text, "t.tsv": table.to_csv(index=False, sep="\t"), "bom.csv": "\ufeff" + text}
    files |= {"semicolons.csv": table.to_csv(index=False, sep=";"), "crlf.csv": text.replace("\n", "\r\n") + "\r\n"}
    files |= {"t.json": json.dumps(records), "t.jsonl": "\r\n".join(lines), "t.csv.gz": gzip.compress(text.encode())}
    paths = [written(tmp_path / name, content) for name, content in files.items()]
    table.to_parquet(tmp_path / "t.parquet")
    table.set_index("N").to_parquet(tmp_path / "index.parquet")
    table.to_excel(tmp_path / "t.xlsx", index=False)
    with pd.ExcelWriter(tmp_path / "two.xlsx") as workbook:
        table.to_excel(workbook, sheet_name="runs", index=False)
        table.to_excel(workbook, sheet_name="old runs", index=False)
    refused(r"has several sheets \(runs, old runs\): keep the one with the runs", tmp_path / "two.xlsx")
    paths.append(tmp_path / "t.xlsx")
    sources = [table, table.set_index(["N", "D"]), table.set_index("N", drop=False), *paths]
    assert len({points(source).input_hash for source in [*sources, *tmp_path.glob("*.parquet")]}) == 1


def test_what_is_no_table(tmp_path):
    for name, content, message in (
        ("t.txt", "a", "is no table: give a file that ends in .csv"),
        ("t.csv", "", "has no header"),
        ("t.csv", "N,D,loss\n", "holds no rows"),
        ("t.csv", "N,N,loss\n1,2,3\n", "the column 'N' is there 2 times"),
        ("t.csv", "N,D,loss\n1,2,3,4\n", "row 1 has 4 cells, the header has 3"),
        ("t.csv", 'N,D,loss\n"1,2,3\n', "cannot be read .Error: unexpected end of data"),
        ("t.csv", "参数,损失\n1,2\n".encode("gb18030"), "is not UTF-8 text"),
        ("t.csv.gz", gzip.compress(b"N,D")[:-9], "cannot be read .EOFError"),
        ("t.parquet", "N,D", "cannot be read .ArrowInvalid"),
        ("t.xlsx", "N,D,loss\n1,2,3\n", "cannot be read .BadZipFile"),
        ("t.json", '{"N": 1}', "is no array of rows"),
        ("t.json", "[1]", "row 1 is no object"),
        ("t.jsonl", '{"N": 1}\n{"N"', "line 2 cannot be read as JSON"),
    ):
        refused(message, written(tmp_path / name, content))
    refused("does not exist", tmp_path / "none.csv")
    os.mkfifo(tmp_path / "fifo.csv")
    refused("is no regular file", tmp_path / "fifo.csv")
    runs = pd.Series(["a", "\ud800", "b"], dtype=object)
    refused("row 2 has half of a surrogate pair, .* in column 'run'", frame(run=runs))
    refused("--points: 'end' \\(valid", frame(), points="end")
    refused("--loss-unit: 'bit'", frame(), loss_unit="bit")
    refused("--convention: '6n'", frame(), convention="6n")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"N": 1e7, "D": 1e9, "loss": 3, "loss": 2}', "the key 'loss' stands twice"),
        ('{"N": 1e7, "D": 1e9, "loss": 3, "arch": "\\ud800"}', "surrogates not allowed"),
        ('{"N": 1e7, "D": 1e9, "loss": ' + "[" * 100_000 + "}", "too deep"),
        ('{"N": 1e7, "D": 1e9, "loss": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ('{"N": 1e7, "D": 1e9, "loss": ' + "9" * 400 + "}", "loss is not a positive, finite number in row 1"),
        ('{"N": 1e7, "D": 1e9, "loss": NaN}', "loss: is empty or NaN"),
        ('{"N": true, "D": 1e9, "loss": 3}', "is no number"),
    ],
)
def test_rows_of_jsonl_that_are_refused(tmp_path, row, message):
    refused(message, written(tmp_path / "t.jsonl", row + "\n"))


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
    for at in rng.sample(range(len(whole)), 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
        try:
            assert points(path).input_hash == before, at
        except InputError as error:
            n_refused += 1
            assert "\n" not in str(error) and str(path) in str(error)
    assert n_refused > 30


# -- columns


def test_columns_are_found_by_name_and_never_guessed(tmp_path):
    there = ["Model Size", "Training FLOP", "loss", "x"]
    assert choose(there, {}, None) == {"n_params": "Model Size", "flops": "Training FLOP", "loss": "loss"}
    assert choose(["n_params", "n_tokens", "loss", "flops_exact", "flops_6nd"], {}, "exact")["flops"] == "flops_exact"
    assert "corpus" not in choose(["N", "D", "loss", "dataset"], {"corpus": ""}, None)
    assert choose(["N", "D", "Loss (val)"], {"loss": "Loss val"}, None)["loss"] == "Loss (val)"
    for names, given, message in (
        (["n_params", "n_params_non_embedding", "D", "loss"], {}, "could all be n_params: say which by --columns"),
        (["N", "D", "train_loss", "val_loss"], {}, "train_loss, val_loss could all be loss"),
        (["N", "D", "loss", "flops_exact", "flops_6nd"], {}, "could all be flops: say which by --convention exact"),
        (["b", "n", "l", "d", "h"], {}, "no column for n_params, loss, n_tokens or flops: the table has b, n, l, d, h"),
        (["N", "loss"], {}, "no column for n_tokens or flops"),
        (["N", "D", "loss"], {"los": "loss"}, r"no field 'los' \(did you mean 'loss'"),
        (["N", "D", "perplexity"], {"loss": "perplexty"}, r"no column 'perplexty' \(did you mean 'perplexity'"),
        (["N", "D", "loss"], {"loss": "D", "n_tokens": "D"}, "column D is to be loss and n_tokens"),
    ):
        with pytest.raises(InputError, match=message):
            choose(names, given, None)
    path = written(tmp_path / "t.csv", "参数量,训练词元数,损失\n1e6,1e8,3\n2e6,1e8,2.9\n")
    assert read_points(path).columns == {"n_params": "参数量", "n_tokens": "训练词元数", "loss": "损失"}
    path = written(tmp_path / "u.csv", '"Size, all",令牌 (个),"final"\n1e6,1e8,3\n2e6,1e8,2.9\n')
    columns = parse_columns("n_params=\"Size, all\",n_tokens='令牌 (个)', loss=final")
    assert len(points(path, columns)) == 2


@pytest.mark.parametrize("text", ["", "n_params", "n_params=a,,loss=b", "loss=a,loss=b"])
def test_columns_that_cannot_be_read(text):
    with pytest.raises(InputError, match="--columns"):
        parse_columns(text)


def test_what_is_missing_follows_from_the_convention():
    table = read_points(frame())
    read = table.groups[""]
    assert read.flops == pytest.approx(6 * read.n_params * read.n_tokens, rel=1e-15)
    assert table.derived == {"flops": "6 N D (6nd)"} and read.convention == "6nd"
    other = read_points(pd.DataFrame({"N": read.n_params, "C": read.flops, "loss": read.loss}))
    assert other.derived == {"n_tokens": "C / (6 N) (6nd)"}
    assert other.groups[""].n_tokens == pytest.approx(read.n_tokens, rel=1e-15)
    refused("flops is missing, and the convention exact does not say", frame(), convention="exact")


def test_all_three_are_taken_as_they_stand(tmp_path):
    table = frame(flops_exact=[9e17, 4e18, 1.5e19])
    read = read_points(table)
    assert read.groups[""].flops.tolist() == [9e17, 4e18, 1.5e19]
    assert read.groups[""].convention == "exact" and read.derived == {}
    assert read.six_nd == pytest.approx((1.2, 1.28, 6 * 2e17 / 9e17))
    assert points(frame(**{"Training FLOP": 1e18})).convention == "Training FLOP"
    assert points(frame(C=lambda t: 6 * t.N * t.D)).convention == "6nd"
    notes = read_points(frame(C=[1e18, 4e18, 1.5e19]), convention="6nd").notes
    assert any("C was said to be 6nd, but 6 N D / C runs from 1.2 to 1.28" in note for note in notes)
    refused("--convention 6nd: the table's compute is counted by exact", table, convention="6nd")
    whole = [{"N": int(n), "D": int(d), "flops": 6 * int(n) * int(d), "loss": loss} for n, d, loss in ROWS]
    whole[2]["flops"] *= 10**4  # beyond 64 bits
    path = written(tmp_path / "t.jsonl", "\n".join(map(json.dumps, whole)))
    assert points(path).flops[2] == 6 * 4e8 * 8e9 * 1e4


def test_the_unit_of_the_loss_is_kept():
    assert points(frame(), loss_unit="bits").loss_unit == "bits/token"
    for name, unit in (
        ("loss", "the table's unit"),
        ("loss (bits)", "bits/token"),
        ("val_loss__nats", "nats/token"),
        ("Loss [nats/token]", "nats/token"),
        ("loss in bits per byte", "the table's unit"),
    ):
        read = read_points(frame().rename(columns={"loss": name}), {"loss": name})
        assert read.groups[""].loss_unit == unit, name
    bits = frame().rename(columns={"loss": "loss_bits"})
    refused("--loss-unit nats: the column 'loss_bits' says bits", bits, loss_unit="nats")


# -- cells


def test_numbers_as_people_write_them(tmp_path):
    text = 'N,D,loss\n"7,000,000,000",3e11,2.0\n7 000 000 000,1_000_000,2.1\n７０００,1e9,"  2.2 "\n"125,000",1e9,2.3\n'
    path = written(tmp_path / "t.csv", text)
    assert points(path).n_params.tolist() == [7e9, 7e9, 7e3, 125e3]
    assert points(path).n_tokens.tolist() == [3e11, 1e6, 1e9, 1e9] and points(path).loss.tolist() == [2, 2.1, 2.2, 2.3]
    assert read_points(path, where=["N>200000"]).n_kept == 2
    refused("needs one number", path, where=["N>1,000"])
    assert points(pd.DataFrame({"N": [7_000_000_000], "D": [300_000_000_000], "loss": [2.0]})).flops[0] == 1.26e22
    path = written(tmp_path / "short.csv", 'N,D,loss\n7B,2T,2.0\n1.3e9,3e11,2.1\n410 M,"300,000,000,000",2.2\n')
    assert points(path).n_params.tolist() == [7e9, 1.3e9, 410e6] and points(path).n_tokens[0] == 2e12
    assert read_points(path, where=["N<1e9"]).n_kept == 1
    refused("'13' beside '7b' could be in its unit: write it out in row 2", frame(N=["7b", "13", "70b"]))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("7X", r"N'\): is no number, as '7X': write 7e9 or 7000000000, in row 2"),
        ("", r'is empty or NaN \(--where "N!=" leaves such rows out\) in row 2'),
        ("nan", "is empty or NaN"),
        ("0", "n_params is not a positive, finite number in row 2"),
        ("-3", "n_params is not a positive, finite number in row 2"),
        ("inf", "n_params is not a positive, finite number in row 2"),
        ("1e200", "n_params lies outside of 1e-100 to 1e.100 in row 2"),
        ("True", "is no number"),
        ("1,5", "has a comma that could be a decimal point or part thousands, as '1,5'"),
        ("125,000", "has a comma that could be a decimal point or part thousands, as '125,000'"),
        ("1.234", "could be thousands or a fraction, as '1.234': write it without the point, or as 1.234e9, in row 2"),
        ("1.234.000", "is no number, as '1.234.000'"),
        ("1.234,5", "is no number"),
        ("7'000'000", "is no number"),
    ],
)
def test_cells_that_are_no_sizes_are_refused_with_their_rows(tmp_path, cell, message):
    refused(message, written(tmp_path / "t.csv", f'N,D,loss\n1e6,1e8,3\n"{cell}",1e8,3\n'))


def test_a_loss_with_a_comma_is_refused(tmp_path):
    refused("could be a decimal point .* in row 1", written(tmp_path / "t.csv", 'N,D,loss\n1e6,1e8,"3,141"\n'))
    refused("could be a decimal point", written(tmp_path / "t.csv", "N;D;loss\n1e6;1e8;3,1\n"))


def test_conditions(tmp_path):
    table = frame(size=["10m", "20m", "40m"], note=["", "a", None])

    def kept(*where):
        return points(table, where=where).loss.tolist()

    assert kept("size!=10m") == [2.9, 2.7]
    assert kept("size=10m|40m") == [3.1, 2.7]
    assert kept("loss<3", "loss>=2.9") == [2.9]
    assert kept("N==1e8") == kept("n_params = 100000000") == [3.1]
    refused("there is no column 'flops'", table, where=["flops>2e18"])  # it is derived later
    assert kept("note!=") == [2.9] and kept("note=") == [3.1, 2.7]
    assert read_points(table, where=["loss<3"]).dropped == {"not loss<3": 1}
    refused("there is no column 'sise' \\(did you mean 'size'", table, where=["sise=10m"])
    refused("is no condition", table, where=["size"])
    refused("no row is left \\(3 not loss<1\\)", table, where=["loss<1"])
    refused("size is no number in rows 1, 2, 3", table, where=["size<3"])
    refused("needs one number", table, where=["loss<small"])
    path = written(tmp_path / "t.csv", "N,D,loss\n1e6,1e8,3\n2e6,1e8,\n\n4e6,1e8,2.9\n")
    refused("loss: is empty or NaN .* in row 2", path)
    read = read_points(path, where=["loss!="])
    assert read.groups[""].loss.tolist() == [3.0, 2.9] and read.groups[""].row.tolist() == [1, 4]
    assert read.dropped == {"empty": 1, "not loss!=": 1} and read.n_kept == 2 and read.n_read == 4


# -- runs


def test_what_is_there_twice_counts_once():
    assert read_points(pd.concat([frame(), frame().iloc[:1]])).dropped == {"exactly as another row": 1}
    again = pd.concat([frame(index=[1, 2, 3]), frame(index=[4, 5, 6]).iloc[:1]])
    assert read_points(again).dropped == {"the same run again": 1}
    seeds = again.assign(seed=[0, 0, 0, 1])  # another seed is another run, but it cannot end at the same loss
    assert read_points(seeds).dropped == {"the same numbers under other labels": 1}
    assert read_points(seeds.assign(loss=[3.1, 2.9, 2.7, 3.1 + 1e-15])).dropped == {}


def test_runs_under_other_names_count_once():
    ends = pd.concat([frame(run=[f"{copy}{i}" for i in range(3)]) for copy in "abcd"], ignore_index=True)
    read = read_points(ends)
    assert read.dropped == {COPIED: 9} and read.groups[""].run.tolist() == ["a0", "a1", "a2"] and read.n_kept == 3
    assert read_points(ends.assign(arch=[*"xxxxxxyyyyyy"])).dropped == {COPIED: 6}  # of each group
    whole = pd.concat([curves(), curves().assign(run=lambda t: t["run"] + " again")], ignore_index=True)
    read = read_points(whole.sample(frac=1, random_state=0), points="curves")
    assert read.dropped == {COPIED: 6} and read.groups[""].n_runs == 2
    whole.loc[6, "loss"] += 0.1  # early in the third run: its curve is another, its end is not
    assert read_points(whole, points="curves").dropped == {COPIED: 3}
    assert read_points(whole, points="ends").dropped == {COPIED: 4, "earlier rows of their run": 6}


def test_curves_and_their_ends():
    ends, whole = (read_points(curves().sample(frac=1, random_state=0), points=p) for p in ("ends", "curves"))
    assert sorted(ends.groups[""].n_tokens.tolist()) == [4e8, 4e8] and ends.dropped == {"earlier rows of their run": 4}
    assert len(whole.groups[""]) == 6 and whole.groups[""].n_runs == 2 and whole.several_rows
    refused("no run has several rows, so there are no curves: name the column of runs", frame(), points="curves")
    clash = pd.concat([curves(), curves().iloc[:1].assign(loss=9.0)])
    refused(r"run 'a' has several losses after the same tokens in rows 1, 7: name the column", clash)
    refused("run 'a' has several numbers of parameters in rows 1, 2, 3, 4, 5", curves().assign(run="a"))
    refused("run is empty in row 1", curves().assign(run=["", "a", "a", "b", "b", "b"]))
    branch = points(curves().assign(trunk=["", "", "", "a", "a", "a"]))
    assert branch.trunk.tolist() == ["a", "a"]


def test_curves_without_names_are_no_runs():
    """240 rows of six curves are six runs: as 240 their intervals would be several times too narrow."""
    table = curves("abcdef", 40).drop(columns="run")
    for given in (table, table.sample(frac=1, random_state=0), table.assign(seed=3)):
        refused(r'look like curves, not like runs: N = \S+ has 40 rows .* --columns run="its name" \(run="N"', given)
    named = read_points(table, {"run": "N"})
    assert named.groups[""].n_runs == len(named.groups[""]) == 6 and named.dropped == {"earlier rows of their run": 234}
    assert len(points(table, {"run": "N"}, points="curves")) == 240
    own = read_points(table, {"run": ""})
    assert own.groups[""].n_runs == 240 and any("each row counts as a run" in note for note in own.notes)
    assert points(grid(5, 4)).n_runs == 20  # runs to four lengths
    two_seeds = pd.concat([table, table.assign(loss=table["loss"] + 0.01)])
    refused("look like curves", two_seeds)
    refused("several losses after", two_seeds, {"run": "N"})


def test_rows_that_share_their_seed_are_no_seeds_of_each_other():
    """A sweep of learning rates under one seed tells no noise between seeds: the lowest of each N and D stands."""
    read = read_points(sweep(seed=0))
    rows = read.groups[""]
    assert len(rows) == 20 == read.n_kept and len(set(rows.recipe)) == 20
    assert rows.loss == pytest.approx(0.98 * grid(5)["loss"])
    assert read.dropped == {HIGHER: 40} == read.to_dict()["rows"]["dropped"]
    assert any(note.startswith("60 runs of one N and D have one seed") for note in read.notes)
    seeds = read_points(sweep(seed=np.repeat([0, 1, 2], 20)))
    assert len(seeds.groups[""]) == 60 and seeds.dropped == {} and not any("one seed" in note for note in seeds.notes)
    assert len(points(sweep(seed=np.repeat([0, 0, 1], 20)))) == 20  # which of the two is the other's seed is not told
    assert read_points(sweep(seed="")).dropped == {}


def test_of_recipes_at_one_place_the_lowest_stands():
    table = sweep(seed=0)
    read = read_points(table, {"recipe": "lr"})
    assert set(read.groups[""].recipe) == {"1.0"} and not any("one seed" in note for note in read.notes)
    assert read.dropped == {HIGHER: 40}
    longest = table["D"] == table["D"].max()
    elsewhere = table[(table["lr"] == 1.0) | longest].assign(D=lambda t: t["D"] * np.where(t.lr == 1.0, 1, 1.1))
    assert len(points(elsewhere, {"recipe": "lr"})) == 25  # other D, and of those the lowest
    branched = sweep(seed=0, run=[f"{i}" for i in range(60)], trunk=[f"{i % 20}" for i in range(60)])
    assert read_points(branched).dropped == {}  # branches of one trunk share its seed


# -- groups and what is not compared


def test_groups_and_the_highest_losses():
    table = pd.concat([frame(arch="tnl"), frame(arch="hgrn2")], ignore_index=True)
    table.loc[3:, "loss"] += 0.1
    read = read_points(table, drop_highest_loss=1)  # grouped unasked
    assert {name: group.loss.tolist() for name, group in read.groups.items()} == {
        "tnl": [2.9, 2.7],
        "hgrn2": [3.0, 2.8000000000000003],
    }
    assert read.dropped == {"the highest losses of their group": 2} and read.n_kept == 4
    assert "grouped by 'arch'; --columns arch= fits all of its values as one" in read.notes
    assert len(points(table, {"arch": ""})) == 6 and list(read_points(table.iloc[:3]).groups) == [""]
    refused("there is no column 'archs' \\(did you mean 'arch'", table, group="archs")
    refused("--drop-highest-loss 3: group 'tnl' has 3 points", table, group="arch", drop_highest_loss=3)
    nameless = table.assign(arch=["tnl", " ", None, "hgrn2", "tnl", "tnl"])
    empty = r'arch is empty, and rows are grouped by it: fill it in, .* by --where "arch!=", in rows 2, 3'
    refused(empty, nameless)
    refused(empty, nameless, group="loss,arch")
    assert list(read_points(nameless, where=["arch!="]).groups) == ["tnl", "hgrn2"]
    assert len(points(nameless, {"arch": ""})) == 6
    wide = frame(rate=["low", "low", "high"], **{"a, b": ["x", "y", "x"]}, width=[64, 64, 128])
    read = read_points(wide, group="rate,width")
    assert {name: len(group) for name, group in read.groups.items()} == {"low, 64": 2, "high, 128": 1}
    assert list(read_points(wide, group="a, b").groups) == ["x", "y"]  # its own name


def test_a_label_of_several_columns():
    table = pd.concat([curves().assign(rate=rate, loss=lambda t, r=rate: t.loss + r) for rate in (0.1, 0.2)])
    refused("name the column that tells runs apart", table)
    read = read_points(table, {"run": "run + rate"}, points="curves").groups[""]
    assert list(dict.fromkeys(read.run)) == ["a, 0.1", "b, 0.1", "a, 0.2", "b, 0.2"]
    assert len(read) == 12
    assert points(table.assign(**{"run + rate": range(12)}), {"run": "run + rate"}).run[0] == "0"  # its own name
    refused("there is no column 'rates' .did you mean 'rate'", table, {"run": "run+rates"})


def test_runs_of_two_groups_with_one_name_share_no_batches():
    table = pd.concat([grid().assign(arch=arch, run=list(range(16)), loss=lambda t: t.loss + 1) for arch in "ab"])
    table.loc[table["arch"] == "b", "loss"] *= 1.01
    groups = read_points(table).groups
    assert not set(groups["a"].cell) & set(groups["b"].cell) and groups["a"].run.tolist() == groups["b"].run.tolist()
    groups = read_points(table.assign(cell=table["run"])).groups
    assert set(groups["a"].cell) == set(groups["b"].cell)


def test_what_cannot_be_compared_is_not_mixed():
    refused("has several values of tokenizer \\(bytes, gpt2\\)", frame(tokenizer=["bytes", "gpt2", "gpt2"]))
    refused("has several values of context", frame(context_length=[256, 512, 256]))
    refused("several conventions \\(exact, 6nd\\)", frame(C=1e18, convention=["exact", "6nd", "exact"]))
    table = frame(dataset=["c4", "pile", "pile"])
    assert len(points(table, where=["dataset=pile"])) == 2 and len(points(table, {"corpus": ""})) == 3
    groups = read_points(table, group="dataset").groups
    assert [group.loss_of for group in groups.values()] == ["corpus c4", "corpus pile"]


def test_two_kinds_of_loss_at_one_place_are_refused():
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(16))
    for factor in (2.8, 1 / np.log(2), 0.25):
        for more in ({}, {"seed": 0}, {"run": [f"r{i}" for i in range(32)]}):
            message = r"losses at one N and D differ by a factor of .* \(rows \d+, \d+; .* two kinds"
            refused(message, twice(factor * noise, **more))
    refused("at 3 of 3 such places .rows 1, 17; rows 2, 18; rows 3, 19.", twice(2.8).iloc[:19])
    named = twice(0.25, kind=["a"] * 16 + ["b"] * 16)
    refused("keep one by --where, group by a column that tells them apart, or name it by --columns recipe=", named)
    assert len(points(named, where=["kind=a"])) == 16
    assert len(points(named, {"recipe": "kind"})) == 16


def test_seeds_sweeps_repeated_text_and_a_failed_run_are_no_two_kinds_of_loss():
    rng = np.random.default_rng(1)
    seeds = pd.concat([twice(np.exp(0.05 * rng.standard_normal(16))).iloc[16:] for _ in range(4)], ignore_index=True)
    seeds.loc[5, "loss"] *= 2.5  # failed
    assert len(points(seeds)) == 64
    assert len(points(twice(10.8 / grid()["loss"], seed=0))) == 16  # one rate is too high: nothing is learnt
    assert len(points(twice(1.5, unique_tokens=np.repeat([1e12, 1e8], 16)))) == 32  # read a hundred times


# -- units


def test_columns_in_another_unit_are_refused_where_compute_gives_them_away():
    table = grid().assign(flops=lambda t: 6 * t.N * t.D)
    assert len(points(table)) == 16
    for n, d, c in ((1e6, 1, 1), (1, 1e9, 1), (1e6, 1e9, 1), (1, 1, 1e9), (1, 1, 1e3), (1, 1, 8.64e19), (1e3, 1, 1)):
        other = table.assign(N=table.N / n, D=table.D / d, flops=table.flops / c)
        left = "--columns flops=" if c > 1 else "--columns n_tokens="
        refused(f"6 N D / C is .* near 1 where .* in another unit .*{left}", other)
    assert len(points(table.assign(flops=table.flops / 1e9), {"flops": ""})) == 16
    # heads of 50k words make small models cost a hundred times 6 N D, more for the smaller; experts cost less
    small = grid(n=6e3)
    width = np.sqrt(small.N / 60)
    assert read_points(small.assign(flops=6 * (small.N + 50_000 * width) * small.D)).six_nd[0] < 0.02
    assert read_points(small.assign(flops=6 * small.N * small.D / 40)).six_nd[1] == pytest.approx(40)


@pytest.mark.parametrize(
    ("n", "d", "note"),
    [
        (1e6, 1e9, "n_params runs from 10 to 640 and is read as it stands: if column 'N' counts millions"),
        (1, 1e9, "n_tokens runs from 1 to 64"),
        (1e9, 1, "n_params runs from 0.01 to 0.64"),
        (1, 1e4, "D / N is 0.01"),
    ],
)
def test_sizes_that_hardly_any_study_has_are_remarked(n, d, note):
    read = read_points(grid().assign(N=lambda t: t.N / n, D=lambda t: t.D / d))
    assert any(note in other for other in read.notes) and len(read.groups[""]) == 16
    assert not any(note in other for other in read_points(grid()).notes)


def test_gzip_is_known_by_its_content_and_marks_of_files_put_together_are_no_text(tmp_path):
    text = "\ufeffN,D,loss\n1e6,1e8,3\n\ufeff2e6,1e8,2.9\n3e6,1e8,2.8\n"
    for name, content in (("a.csv", gzip.compress(text.encode())), ("b.csv.gz", text.encode())):
        (tmp_path / name).write_bytes(content)
        assert points(tmp_path / name).n_params.tolist() == [1e6, 2e6, 3e6]


def test_a_file_that_unpacks_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 20)
    refused("holds more than 0 GiB of text", written(tmp_path / "t.csv", "N,D,loss\n1e6,1e8,3\n2e6,1e8,3\n"))
