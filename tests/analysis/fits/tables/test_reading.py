"""Tables of runs as points: files, columns, cells, conditions, runs that occur twice."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from analysis.fits.tables import read_points
from analysis.fits.tables.columns import choose, parse_columns
from arch.errors import InputError

from .reading import points, refused, written

ROWS = [(1e8, 2e9, 3.1), (2e8, 4e9, 2.9), (4e8, 8e9, 2.7)]
NAMED = {"n_params": "N", "n_tokens": "D", "loss": "loss"}


def frame(rows=ROWS, **more):
    return pd.DataFrame(rows, columns=["N", "D", "loss"]).assign(**more)


def test_every_format_gives_the_same_points(tmp_path):
    table = frame()
    text = table.to_csv(index=False)
    files = {"t.csv": text.encode(), "t.tsv": table.to_csv(index=False, sep="\t").encode()}
    files |= {"bom.csv": "\ufeff".encode() + text.encode(), "t.csv.gz": gzip.compress(text.encode())}
    files |= {"semi.csv": table.to_csv(index=False, sep=";").encode(), "crlf.csv": text.replace("\n", "\r\n").encode()}
    records = table.to_dict("records")
    files |= {"t.json": json.dumps(records).encode(), "t.jsonl": "\n".join(map(json.dumps, records)).encode()}
    hashes = {points(table).input_hash}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        hashes.add(points(tmp_path / name).input_hash)
    table.to_parquet(tmp_path / "t.parquet")
    hashes.add(points(tmp_path / "t.parquet").input_hash)
    assert len(hashes) == 1


def test_what_is_missing_follows_from_the_convention():
    found = read_points(frame())
    read = found.groups[""]
    assert read.flops == pytest.approx(6 * read.n_params * read.n_tokens, rel=1e-15)
    assert found.derived == {"flops": "6 N D (6nd)"} and read.convention == "6nd"
    other = read_points(pd.DataFrame({"N": read.n_params, "C": read.flops, "loss": read.loss}))
    assert other.derived == {"n_tokens": "C / (6 N) (6nd)"}
    assert other.groups[""].n_tokens == pytest.approx(read.n_tokens, rel=1e-15)
    refused("flops is missing, and the convention exact does not say", frame(), convention="exact")


def test_all_three_are_taken_as_they_stand():
    table = frame(flops_exact=[9e17, 4e18, 1.5e19])
    found = read_points(table)
    assert found.groups[""].flops.tolist() == [9e17, 4e18, 1.5e19]
    assert found.groups[""].convention == "exact" and found.derived == {}
    assert found.six_nd == pytest.approx((1.2, 1.28, 6 * 2e17 / 9e17))
    named = read_points(frame(**{"Training FLOP": 1e18}))
    assert named.groups[""].convention == "Training FLOP"
    six = frame(C=lambda t: 6 * t.N * t.D)
    assert points(six).convention == "6nd"
    told = read_points(frame(C=[1e18, 4e18, 1.5e19]), convention="6nd").notes
    assert any("C was said to be 6nd, but 6 N D / C runs from 1.2 to 1.28" in note for note in told)
    refused("--convention 6nd: the table's compute is counted by exact", table, convention="6nd")


def test_int64_does_not_overflow():
    table = pd.DataFrame(
        {"N": np.array([7_000_000_000] * 2), "D": np.array([300_000_000_000, 10**12]), "loss": [2.0, 1.9]}
    )
    assert table["N"].dtype == np.int64
    flops = points(table).flops
    assert flops.tolist() == [1.26e22, 4.2e22] and (flops > 0).all()


def test_numbers_as_people_write_them(tmp_path):
    path = written(
        tmp_path / "t.csv", 'N,D,loss\n"7,000,000,000",3e11,2.0\n7 000 000 000,1_000_000,2.1\n７０００,1e9,"  2.2 "\n'
    )
    table = points(path)
    assert table.n_params.tolist() == [7e9, 7e9, 7e3]
    assert table.n_tokens.tolist() == [3e11, 1e6, 1e9] and table.loss.tolist() == [2.0, 2.1, 2.2]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("7B", r"N'\): is no number, as '7B': write 7e9 or 7000000000, in row 2"),
        ("", r'is empty or NaN \(--where "N!=" leaves such rows out\) in row 2'),
        ("nan", "is empty or NaN"),
        ("0", "n_params is not a positive, finite number in row 2"),
        ("-3", "n_params is not a positive, finite number in row 2"),
        ("inf", "n_params is not a positive, finite number in row 2"),
        ("True", "is no number"),
        ("1,5", "has a comma that could be a decimal point"),
    ],
)
def test_cells_that_are_no_sizes_are_refused_with_their_rows(tmp_path, cell, message):
    refused(message, written(tmp_path / "t.csv", f'N,D,loss\n1e6,1e8,3\n"{cell}",1e8,3\n'))


@pytest.mark.parametrize(
    ("n", "message"), [(0, "is not a positive, finite number"), (10**200, "lies outside of 1e-100")]
)
def test_sizes_that_no_model_has_are_refused_and_not_taken_for_a_curve(n, message):
    rows = [(float(n), d * 100.0, 3.0) for d in range(1, 11)]
    refused(rf"n_params {message}.* in rows 1, 2, 3, 4, 5 and 5 more", frame(rows))


def test_a_loss_with_a_comma_is_refused(tmp_path):
    refused("could be a decimal point .* in row 1", written(tmp_path / "t.csv", 'N,D,loss\n1e6,1e8,"3,141"\n'))
    refused("could be a decimal point", written(tmp_path / "t.csv", "N;D;loss\n1e6;1e8;3,1\n"))


def test_names_in_chinese_and_a_quoted_comma(tmp_path):
    path = written(tmp_path / "t.csv", "参数量,训练词元数,损失\n1e6,1e8,3\n2e6,1e8,2.9\n")
    assert read_points(path).columns == {"n_params": "参数量", "n_tokens": "训练词元数", "loss": "损失"}
    path = written(tmp_path / "u.csv", '"Size, all",令牌 (个),"final"\n1e6,1e8,3\n2e6,1e8,2.9\n')
    columns = parse_columns("n_params=\"Size, all\",n_tokens='令牌 (个)', loss=final")
    assert len(points(path, columns)) == 2


def test_columns_are_found_by_name_and_never_guessed():
    there = ["Model Size", "Training FLOP", "loss", "x"]
    assert choose(there, {}, None) == {"n_params": "Model Size", "flops": "Training FLOP", "loss": "loss"}
    assert choose(["PARAMS", "Tokens", "Loss"], {}, None)["n_tokens"] == "Tokens"
    assert choose(["n_params", "n_tokens", "loss", "flops_exact", "flops_6nd"], {}, "exact")["flops"] == "flops_exact"
    assert "corpus" not in choose(["N", "D", "loss", "dataset"], {"corpus": ""}, None)
    for names, given, message in (
        (["n_params", "n_params_non_embedding", "D", "loss"], {}, "could all be n_params: say which by --columns"),
        (["N", "D", "train_loss", "val_loss"], {}, "train_loss, val_loss could all be loss"),
        (["N", "D", "loss", "flops_exact", "flops_6nd"], {}, "could all be flops: say which by --convention exact"),
        (["b", "n", "l", "d", "h"], {}, "no column for n_params, loss, n_tokens or flops: the table has b, n, l, d, h"),
        (["N", "loss"], {}, "no column for n_tokens or flops"),
        (["N", "D", "loss"], {"los": "loss"}, r"no field 'los' \(did you mean 'loss'"),
        (["N", "D", "Loss (val)"], {"loss": "Loss val"}, None),
        (["N", "D", "perplexity"], {"loss": "perplexty"}, r"no column 'perplexty' \(did you mean 'perplexity'"),
        (["N", "D", "loss"], {"loss": "D", "n_tokens": "D"}, "column D is to be loss and n_tokens"),
    ):
        if message is None:
            assert choose(names, given, None)["loss"] == "Loss (val)"
            continue
        with pytest.raises(InputError, match=message):
            choose(names, given, None)


@pytest.mark.parametrize("text", ["", "n_params", "n_params=a,,loss=b", "loss=a,loss=b"])
def test_columns_that_cannot_be_read(text):
    with pytest.raises(InputError, match="--columns"):
        parse_columns(text)


def test_conditions():
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
    refused("__import__", table, where=["__import__('os')==1"])


def test_a_planned_run_is_refused_until_it_is_left_out(tmp_path):
    path = written(tmp_path / "t.csv", "N,D,loss\n1e6,1e8,3\n2e6,1e8,\n\n4e6,1e8,2.9\n")
    refused("loss: is empty or NaN .* in row 2", path)
    found = read_points(path, where=["loss!="])
    assert found.groups[""].loss.tolist() == [3.0, 2.9] and found.groups[""].row.tolist() == [1, 4]
    assert found.dropped == {"empty": 1, "not loss!=": 1} and found.n_kept == 2 and found.n_read == 4


def test_what_is_there_twice_counts_once():
    twice = pd.concat([frame(), frame().iloc[:1]])
    assert read_points(twice).dropped == {"exactly as another row": 1}
    again = pd.concat([frame(index=[1, 2, 3]), frame(index=[4, 5, 6]).iloc[:1]])
    assert read_points(again).dropped == {"the same run again": 1}
    seeds = again.assign(seed=[0, 0, 0, 1])  # another seed is another run, but it cannot end at the same loss
    assert read_points(seeds).dropped == {"the same numbers under other labels": 1}
    assert read_points(seeds.assign(loss=[3.1, 2.9, 2.7, 3.1 + 1e-15])).dropped == {}


COPIED = "the same numbers under another run name"


def test_runs_under_other_names_count_once():
    ends = pd.concat([frame(run=[f"{copy}{i}" for i in range(3)]) for copy in "abcd"], ignore_index=True)
    found = read_points(ends)
    assert found.dropped == {COPIED: 9} and found.groups[""].run.tolist() == ["a0", "a1", "a2"] and found.n_kept == 3
    assert read_points(ends.assign(arch=[*"xxxxxxyyyyyy"])).dropped == {COPIED: 6}  # of each group

    whole = pd.concat([curves(), curves().assign(run=lambda t: t["run"] + " again")], ignore_index=True)
    found = read_points(whole.sample(frac=1, random_state=0), points="curves")
    assert found.dropped == {COPIED: 6} and found.groups[""].n_runs == 2
    whole.loc[6, "loss"] += 0.1  # early in the third run: its curve is another, its end is not
    assert read_points(whole, points="curves").dropped == {COPIED: 3}
    assert read_points(whole, points="ends").dropped == {COPIED: 4, "earlier rows of their run": 6}


def test_a_table_of_architectures_is_grouped_unasked():
    table = pd.concat([frame(arch="tnl"), frame(arch="hgrn2").assign(loss=[3.0, 2.8, 2.6])], ignore_index=True)
    found = read_points(table)
    assert list(found.groups) == ["tnl", "hgrn2"]
    assert "grouped by 'arch'; --columns arch= fits all of its values as one" in found.notes
    whole = read_points(table, {"arch": ""})
    assert list(whole.groups) == [""] and len(whole.groups[""]) == 6 and not any("grouped" in n for n in whole.notes)
    assert list(read_points(table.iloc[:3]).groups) == [""]  # one value


def curves():
    rows = [
        (run, n, d, 2 + (n / 1e6) ** -0.3 + (d / 1e7) ** -0.3)
        for run, n in (("a", 1e6), ("b", 4e6))
        for d in (1e8, 2e8, 4e8)
    ]
    return pd.DataFrame(rows, columns=["run", "N", "D", "loss"])


def test_curves_and_their_ends():
    ends, whole = (read_points(curves().sample(frac=1, random_state=0), points=p) for p in ("ends", "curves"))
    assert sorted(ends.groups[""].n_tokens.tolist()) == [4e8, 4e8] and ends.dropped == {"earlier rows of their run": 4}
    assert len(whole.groups[""]) == 6 and whole.groups[""].n_runs == 2 and whole.several_rows
    refused("no run has several rows, so there are no curves: name the column of runs", frame(), points="curves")
    clash = pd.concat([curves(), curves().iloc[:1].assign(loss=9.0)])
    refused(r"run 'a' has several losses after 1e\+08 tokens \(rows 1, 7\)", clash)
    refused("run 'a' has several numbers of parameters in rows 1, 2, 3, 4, 5", curves().assign(run="a"))
    refused("run is empty in row 1", curves().assign(run=["", "a", "a", "b", "b", "b"]))
    branch = points(curves().assign(trunk=["", "", "", "a", "a", "a"]))
    assert branch.trunk.tolist() == ["a", "a"]


def test_groups_and_the_highest_losses():
    table = pd.concat([frame(arch="tnl"), frame(arch="hgrn2")], ignore_index=True)
    table.loc[3:, "loss"] += 0.1
    found = read_points(table, group="arch", drop_highest_loss=1)
    assert {name: one.loss.tolist() for name, one in found.groups.items()} == {
        "tnl": [2.9, 2.7],
        "hgrn2": [3.0, 2.8000000000000003],
    }
    assert found.dropped == {"the highest losses of their group": 2} and found.n_kept == 4
    assert found.groups["tnl"].group == "tnl"
    refused("there is no column 'archs' \\(did you mean 'arch'", table, group="archs")
    refused("--drop-highest-loss 3: group 'tnl' has 3 points", table, group="arch", drop_highest_loss=3)
    refused("loss is not a positive, finite number in row 1", frame([(1e6, 1e8, np.inf), *ROWS]), drop_highest_loss=1)


def test_what_cannot_be_compared_is_not_mixed():
    refused("has several values of tokenizer \\(bytes, gpt2\\)", frame(tokenizer=["bytes", "gpt2", "gpt2"]))
    refused("has several values of context", frame(context_length=[256, 512, 256]))
    refused("several conventions \\(exact, 6nd\\)", frame(C=1e18, convention=["exact", "6nd", "exact"]))
    table = frame(dataset=["c4", "pile", "pile"])
    assert len(points(table, where=["dataset=pile"])) == 2
    assert list(read_points(table, group="dataset").groups) == ["c4", "pile"]
    assert len(points(table, {"corpus": ""})) == 3


def test_what_is_no_table(tmp_path):
    for name, content, message in (
        ("t.txt", b"a", "is no table: give a file that ends in .csv"),
        ("t.csv", b"", "has no header"),
        ("t.csv", b"N,D,loss\n", "holds no rows"),
        ("t.csv", b"N,N,loss\n1,2,3\n", "the column 'N' is there 2 times"),
        ("t.csv", b"N,D,loss\n1,2,3,4\n", "row 1 has 4 cells, the header has 3"),
        ("t.csv", b'N,D,loss\n"1,2,3\n', "cannot be read .Error: unexpected end of data"),
        ("t.csv", "参数,损失\n1,2\n".encode("gb18030"), "is not UTF-8 text"),
        ("t.csv.gz", gzip.compress(b"N,D")[:-9], "cannot be read .EOFError"),
        ("t.parquet", b"N,D", "cannot be read .ArrowInvalid"),
        ("t.json", b'{"N": 1}', "is no array of rows"),
        ("t.json", b"[1]", "row 1 is no object"),
        ("t.jsonl", b'{"N": 1}\n{"N"', "line 2 cannot be read as JSON"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(message, tmp_path / name)
    refused("does not exist", tmp_path / "none.csv")
    refused("--points: 'end' \\(valid", frame(), points="end")
    refused("--loss-unit: 'bit'", frame(), loss_unit="bit")
    refused("--convention: '6n'", frame(), convention="6n")


def test_parameters_in_millions_are_told_and_not_multiplied():
    rows = [(n, d, 2 + 1 / n) for n in (1.5, 7, 70) for d in (1e9, 1e10)]
    found = read_points(pd.DataFrame(rows, columns=["params", "tokens", "loss"]))
    assert found.groups[""].n_params.max() == 70
    (told,) = [note for note in found.notes if "millions" in note]
    assert told.startswith("n_params runs from 1.5 to 70 and is read as it stands: if column 'params' counts millions")
    rows = [(1e6 * n, d, loss) for n, d, loss in rows]
    found = read_points(pd.DataFrame(rows, columns=["params", "tokens", "loss"]))
    assert not any("millions" in note for note in found.notes)


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
    assert read_points(frame().rename(columns={"loss": "loss (bits)"})).columns["loss"] == "loss (bits)"
    refused(
        "--loss-unit nats: the column 'loss_bits' says bits",
        frame().rename(columns={"loss": "loss_bits"}),
        loss_unit="nats",
    )


def grid(sizes, lengths):
    n, d = (np.ravel(one) for one in np.meshgrid(np.geomspace(1e6, 1e8, sizes), np.geomspace(1e8, 1e10, lengths)))
    return pd.DataFrame({"N": n, "D": d, "loss": 1.0 + (n / 1e6) ** -0.3 + (d / 1e8) ** -0.3})


def test_curves_without_names_are_no_runs():
    """240 rows of six curves are six runs: as 240 their intervals would be several times too narrow."""
    table = grid(6, 40)
    for given in (table, table.sample(frac=1, random_state=0), table.assign(seed=3)):
        refused(r'look like curves, not like runs: N = \S+ has 40 rows .* --columns run="its name" \(run="N"', given)
    named = read_points(table, {"run": "N"})
    assert named.groups[""].n_runs == len(named.groups[""]) == 6 and named.dropped == {"earlier rows of their run": 234}
    curves = points(table, {"run": "N"}, points="curves")
    assert curves.n_runs == 6 and len(curves) == 240 and curves.n_params[0] == pytest.approx(1e6)
    own = read_points(table, {"run": ""})
    assert own.groups[""].n_runs == 240 and any("each row counts as a run" in note for note in own.notes)
    assert points(grid(5, 4)).n_runs == 20  # runs to four lengths
    both = pd.concat([table, table.assign(loss=table["loss"] + 0.01)])
    refused("look like curves", both)
    refused("several losses after", both, {"run": "N"})  # two seeds of a size


def test_runs_of_two_groups_with_one_name_share_no_batches():
    table = pd.concat([grid(6, 4).assign(arch=arch, run=list(range(24))) for arch in ("a", "b")])
    found = read_points(table.assign(loss=table["loss"] * (1 + 0.01 * (table["arch"] == "b")))).groups
    assert not set(found["a"].cell) & set(found["b"].cell) and found["a"].run.tolist() == found["b"].run.tolist()
    shared = table.assign(loss=table["loss"] * (1 + 0.01 * (table["arch"] == "b")), cell=table["run"])
    found = read_points(shared).groups
    assert set(found["a"].cell) == set(found["b"].cell)


def sweep(factors=(0.98, 1.0, 1.02), **columns):
    """Every N and D three times."""
    table = grid(5, 4)
    parts = [table.assign(loss=table["loss"] * factor, lr=10.0**-i) for i, factor in enumerate(factors)]
    return pd.concat(parts, ignore_index=True).assign(**columns)


def test_rows_that_share_their_seed_are_no_seeds_of_each_other():
    """A sweep of learning rates under one seed tells no noise between seeds: the lowest of each N and D stands."""
    found = read_points(sweep(seed=0))
    rows = found.groups[""]
    assert len(rows) == 20 == found.n_kept and len(set(rows.recipe)) == 20
    assert rows.loss == pytest.approx(0.98 * grid(5, 4)["loss"])
    assert found.dropped == {"by another recipe that ends higher at the same N and D": 40}
    assert any(note.startswith("60 runs of one N and D have one seed") for note in found.notes)
    assert found.to_dict()["rows"]["dropped"] == found.dropped
    seeds = read_points(sweep(seed=np.repeat([0, 1, 2], 20)))
    assert len(seeds.groups[""]) == 60 and seeds.dropped == {} and not any("one seed" in note for note in seeds.notes)
    mixed = sweep(seed=np.repeat([0, 0, 1], 20))  # which of the two is the other's seed is not told
    assert len(points(mixed)) == 20
    unstated = read_points(sweep(seed=""))
    assert len(unstated.groups[""]) == 60 and unstated.dropped == {}


def test_of_recipes_at_one_place_the_lowest_stands():
    table = sweep(seed=0)
    found = read_points(table, {"recipe": "lr"})
    assert set(found.groups[""].recipe) == {"1.0"} and not any("one seed" in note for note in found.notes)
    assert found.dropped == {"by another recipe that ends higher at the same N and D": 40}
    elsewhere = table[(table["lr"] == 1.0) | (table["D"] > 9e9)].assign(
        D=lambda t: t["D"] * np.where(t.lr == 1.0, 1, 1.1)
    )
    assert len(points(elsewhere, {"recipe": "lr"})) == 25  # other D, and of those the lowest
    branched = sweep(seed=0, run=[f"{i}" for i in range(60)], trunk=[f"{i % 20}" for i in range(60)])
    assert read_points(branched).dropped == {}  # branches of one trunk share its seed


def test_a_table_is_grouped_by_two_columns():
    table = frame(rate=["low", "low", "high"], **{"a, b": ["x", "y", "x"]}, width=[64, 64, 128])
    read = read_points(table, group="rate,width", columns={"run": ""})
    assert {name: len(points) for name, points in read.groups.items()} == {"low, 64": 2, "high, 128": 1}
    assert list(read_points(table, group="a, b", columns={"run": ""}).groups) == ["x", "y"]  # its own name
    refused("--group: there is no column 'widht'.*width", table, group="rate,widht")
