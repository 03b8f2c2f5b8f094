"""A training state is read as tensors and plain values: what else its pickle names is not run."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from arch.errors import InputError
from data.files import read_json, sha256, write_json
from scaling.rundir.directory import RunDir

from ..small_runs import BATCH, exact_rows, make_run, train_here


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.file),)


def sealed_anew(state: Path) -> None:
    """Its manifest says what is there, as one who changes a state on purpose makes it say."""
    manifest = read_json(state / "manifest.json")
    manifest["files"] = {
        name: {"bytes": (state / name).stat().st_size, "sha256": sha256(state / name)} for name in manifest["files"]
    }
    write_json(state / "manifest.json", manifest)


def back_to(rundir: RunDir, step: int) -> None:
    """As a run that was stopped after `step` left it."""
    for folder in ("checkpoints", "state"):
        for path in (rundir.path / folder).glob("[0-9]*"):
            if int(path.name) > step:
                shutil.rmtree(path)
    rundir.write_status("running", step, step * BATCH, "stopped", None)


def planted(file: Path, content: object, as_zip: bool) -> None:
    if as_zip:
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("stage", [1, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 2))])
def test_a_state_resumes_to_the_bit_and_a_planted_one_runs_nothing(
    tmp_path: Path, stage: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir = make_run(tmp_path, zero_stage=stage, keep_states=2, state_every_tokens=6 * BATCH)
    assert train_here(rundir) == 0
    weights = rundir.checkpoint(12) / "model.safetensors"
    rows, bits = exact_rows(rundir), weights.read_bytes()
    back_to(rundir, 6)
    capsys.readouterr()
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert train_here(rundir) == 0 and "step 6 of 12" in capsys.readouterr().out
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1", "it is the user's again"
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    assert exact_rows(rundir) == rows and weights.read_bytes() == bits

    back_to(rundir, 6)
    state, mark = rundir.state(6), tmp_path / "it-ran"
    files = sorted(state.rglob("*.pt"))
    assert len(files) == (2 if stage else 1)
    for file, as_zip in [*((file, True) for file in files), (files[0], False)]:
        content = file.read_bytes()
        planted(file, {"module": {}, "more": Payload(mark)}, as_zip)
        sealed_anew(state)
        with pytest.raises(InputError, match=r"is no training state \(UnpicklingError: .*start again") as error:
            train_here(rundir)
        assert not mark.exists() and str(error.value).startswith(f"{state}: ") and "\n" not in str(error.value)
        file.write_bytes(content)
    sealed_anew(state)
    assert train_here(rundir) == 0 and weights.read_bytes() == bits
