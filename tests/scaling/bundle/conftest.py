"""One finished study and its bundle for the tests of this folder, which write elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from scaling.cli.request import Request

from .small import finished_study, scaling, write_study, write_text


class Made(NamedTuple):
    folder: Path
    text: Path
    study: Path
    request: Request
    bundle: Path

    @property
    def home(self) -> Path:
        return self.request.study.directory


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    text = write_text(folder)
    study = write_study(folder, text)
    request = finished_study(study, folder / "out")
    bundle = folder / "tiny.tar.xz"
    packed = scaling("bundle", "pack", study, "--out", folder / "out", "--to", bundle)
    assert packed.exit_code == 0, packed.output
    return Made(folder, text, study, request, bundle)
