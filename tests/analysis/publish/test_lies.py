"""No published folder that names code or lies runs anything, or takes much memory or time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.publish.write import fill_inputs
from data.files import read_json, sha256, write_json
from scaling.study.spec import load_study
from tests.analysis.fits.synthetic import write_evals, write_run
from tests.measured import EVIL, Measured, measured
from tests.scaling.bundle.lies import AXES, LAUGHS

MOST_MB, MOST_SECONDS = 200, 120
Lie = Callable[[Path], object]


def sealed(folder: Path) -> None:
    """The folder with a manifest that fits its files."""
    manifest = read_json(folder / "manifest.json")
    for name, entry in manifest["files"].items():
        entry |= {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
    write_json((folder / "manifest.json"), manifest)


def study(old: str, new: str) -> Lie:
    def lie(folder: Path) -> None:
        path = folder / "study.yaml"
        path.write_text(path.read_text().replace(old, new, 1))
        sealed(folder)

    return lie


def manifest(**changes: object) -> Lie:
    def lie(folder: Path) -> None:
        path = folder / "manifest.json"
        write_json(path, read_json(path) | changes)

    return lie


def listing(name: str) -> Lie:
    """The folder with an input of that name in its manifest."""

    def lie(folder: Path) -> None:
        path = folder / "manifest.json"
        content = read_json(path)
        content["inputs"].append(name)
        content["files"][name] = {"bytes": 0, "sha256": ""}
        write_json(path, content)

    return lie


def linked(name: str, target: str = "/dev/zero") -> Lie:
    def lie(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return lie


def pipe(name: str) -> Lie:
    def lie(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return lie


def content(name: str, text: str) -> Lie:
    def lie(folder: Path) -> None:
        (folder / name).write_text(text)
        if name != "manifest.json":
            sealed(folder)

    return lie


def table(name: str, made: Callable[[Path], object]) -> Lie:
    """A table with other rows and the honest table's metadata."""

    def lie(folder: Path) -> None:
        made(folder / name)
        sealed(folder)

    return lie


def many_rows(path: Path) -> None:
    schema = pq.read_schema(path)
    field = next(name for name in schema.names if pa.types.is_floating(schema.field(name).type))
    part = pa.table({field: np.zeros(10_000_000)}).replace_schema_metadata(schema.metadata)
    with pq.ParquetWriter(path, part.schema, compression="zstd") as writer:
        for _ in range(5):
            writer.write_table(part)


def long_texts(path: Path) -> None:
    metadata = pq.read_schema(path).metadata
    texts = pa.array(["x" * 10_000_000]).dictionary_encode().take(pa.array(np.zeros(1000, dtype=int)))
    pq.write_table(pa.table({"run_id": texts}).replace_schema_metadata(metadata), path)


LIES: dict[str, Lie] = {
    "a plugin": study("name:", f"plugins: [{EVIL}]\nname:"),
    "a module that ends the process": study("name:", "plugins: [venv.__main__]\nname:"),
    "a task from outside": study("evaluation: {", f"evaluation: {{tasks: ['{EVIL}:x'], "),
    "a YAML tag that calls": study("name: demo", "name: !!python/object/apply:os.mkdir [IT-RAN]"),
    "a study of aliases": study("name:", LAUGHS + "name:"),
    "a study of 127 million runs": study("sizes: [14k, 25k]", f"sizes: [14k, 25k], axes: {{{AXES}}}"),
    "a study of 10^9 layers": study("grid:", "model: {n_layers: 1000000000}\ngrid:"),
    "a study of a megabyte": study("name:", "#" * 1_000_000 + "\nname:"),
    "an input that is a device": listing("/dev/zero"),
    "an input that lies above": listing("../../up.json"),
    "an input that is a number": lambda folder: manifest(inputs=[3])(folder),
    "inputs that are none": manifest(inputs=3),
    "files that are none": manifest(files=[]),
    "a manifest that is deep": content("manifest.json", "[" * 100_000 + "]" * 100_000),
    "a manifest that is a device": linked("manifest.json"),
    "a manifest that is a pipe": pipe("manifest.json"),
    "a table that is a device": linked("curves.parquet"),
    "a table that is a pipe": pipe("runs.parquet"),
    "a table that links to itself": linked("validation.parquet", "validation.parquet"),
    "fits that are a device": linked("fits.json"),
    "provenance of another form": content("provenance.json", '{"runs": 3, "inputs": [], "validation_tokens": "x"}'),
    "curves of 50 million rows": table("curves.parquet", many_rows),
    "runs of 50 million rows": table("runs.parquet", many_rows),
    "evaluations of 50 million rows": table("validation.parquet", many_rows),
    "texts of 10 GB": table("runs.parquet", long_texts),
    "a table that is none": content("curves.parquet", "PAR1 and more PAR1"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    folder = tmp_path_factory.mktemp("published-lies")
    (folder / "s.yaml").write_text(
        f"name: demo\nout: {folder}/out\ncorpus: {{source: 'stdlib:'}}\ngrid: {{archs: [tnl], sizes: [14k, 25k]}}\n"
        f"training: {{n_tokens: 200000}}\nevaluation: {{validation_tokens: 65536}}\n"
    )
    spec = load_study(folder / "s.yaml")
    for run in spec.runs():
        write_run(spec.directory, run.arch, run.size, 200_000, seed=run.seed, noise=0.01)
        write_evals(spec.directory, run.run_id, [20, 90], [3.1, 2.9])
    fill_inputs(folder / "honest", spec, spec.runs())
    places = [folder / "honest"]
    for i, lie in enumerate(LIES.values()):
        shutil.copytree(folder / "honest", place := folder / f"lie-{i}")
        lie(place)
        places.append(place)
    outs = [folder / "read" / place.name for place in places]
    groups = [
        [["fit", "study", place, "--out", out], ["publish", place, "--check", "--out", out]]
        for place, out in zip(places, outs, strict=True)
    ]
    cases = measured(folder, groups)
    return dict(zip(LIES, cases[1:], strict=True))


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_a_line_or_nothing(results: dict[str, Measured], name: str) -> None:
    case = results[name]
    print(f"{name}: {case.seconds:.1f} s, {case.megabytes} MB; {case.lines}")
    assert all("\n" not in line and "\x1b" not in line for line in case.lines)
    assert case.seconds < MOST_SECONDS and case.megabytes < MOST_MB


def test_most_lies_are_refused(results: dict[str, Measured]) -> None:
    assert sum(any(case.lines) for case in results.values()) >= 22
