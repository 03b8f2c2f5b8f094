"""JSON of the right syntax and the wrong kind in what a run leaves: one line, or as if it were not there."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from arch.errors import InputError
from data.files import json_bytes, read_json, write_json
from jobs.speed import measured
from scaling.rundir.directory import RunDir
from scaling.rundir.prepare import check_run, count_again, prepare_run
from scaling.rundir.worklist import is_trained, release_states
from scaling.study.jobs_schema import Cluster
from scaling.trainer.state import newest_state

from ...wrong_forms import places, with_another
from ..small_runs import make_run, train_here

WRONG = (None, [], "x", -1.5)
FILES = {
    "run.json": "run.json",
    "state": "state/00000012/manifest.json",
    "checkpoint": "checkpoints/00000012/manifest.json",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    rundir = make_run(tmp_path_factory.mktemp("run"))
    assert train_here(rundir) == 0
    return rundir


@pytest.mark.parametrize("name", FILES)
def test_values_of_another_kind_end_in_one_line(trained: RunDir, name: str) -> None:
    (file,) = trained.path.glob(FILES[name])
    good, run, fingerprint = file.read_bytes(), trained.spec(), trained.record()["corpus_fingerprint"]
    value = read_json(file)
    readers = [
        lambda: check_run(trained, run, fingerprint),
        lambda: prepare_run(trained.path, run, fingerprint, {}, "0" * 64),
        lambda: count_again(trained.study),
        lambda: is_trained(run, trained),
        lambda: measured([(run, trained)], Cluster(nodes=1, cpus_per_node=1)),
        lambda: release_states(trained.path.parent, [run]),
        lambda: newest_state(trained.path / "state", run.spec_hash),
        trained.checked_rows,
    ]
    try:
        for place, wrong in itertools.product(places(value, most=100), WRONG):
            changed = json_bytes(with_another(value, place, wrong))
            for reader in readers:
                file.write_bytes(changed)  # prepare_run may write it anew
                try:
                    reader()
                except InputError as error:
                    assert "\n" not in str(error) and str(trained.path) in str(error), (place, wrong, str(error))
    finally:
        file.write_bytes(good)
    assert is_trained(run, trained)


def test_a_run_goes_on_from_what_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A state whose manifest lacks what it was saved with is passed over like a damaged one."""
    rundir = make_run(tmp_path, state_every_tokens=6 * 512)
    assert train_here(rundir) == 0
    (rundir.checkpoint(12) / "manifest.json").unlink()
    manifest = rundir.state(12) / "manifest.json"
    write_json(manifest, read_json(manifest) | {"world_size": "1"})
    capsys.readouterr()
    assert train_here(rundir) == 0
    out, err = capsys.readouterr()
    assert "00000012 is damaged" in err and "step 6 of 12" in out
