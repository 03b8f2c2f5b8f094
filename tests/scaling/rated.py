"""The runs of a study's grid at the rates of the laws that they follow."""

from __future__ import annotations

from scaling.study.rates import Lock, resolve
from scaling.study.run import RunSpec
from scaling.study.spec import StudySpec


def rated(study: StudySpec, only: str | None = None) -> list[RunSpec]:
    return resolve(study.runs(only), Lock(study))
