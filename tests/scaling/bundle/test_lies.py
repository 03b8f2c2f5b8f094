"""No bundle that names code or lies runs anything, takes much memory or time, or writes elsewhere."""

from __future__ import annotations

import pytest

from tests.measured import EVIL, Measured, measured

from .conftest import Made
from .lies import LIES, make

MOST_MB, MOST_SECONDS = 200, 120
Found = tuple[Measured, list[str]]  # what the commands say, and what they wrote


@pytest.fixture(scope="module")
def results(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Each bundle is unpacked, compared with the honest one and, where it was unpacked, asked for its fits."""
    folder = tmp_path_factory.mktemp("lies")
    bundles = [made.bundle, *(make(name, made.bundle, folder) for name in LIES)]
    outs = [folder / "out" / bundle.stem for bundle in bundles]
    groups = [
        [
            ["bundle", "unpack", bundle, "--out", out],
            ["bundle", "compare", made.bundle, bundle],
            *([word, f"{out}/*/bundles/*/*.yaml", "--out", out] for word in ("status", "fit")),
        ]
        for bundle, out in zip(bundles, outs, strict=True)
    ]
    measurements = measured(folder, groups)
    written = [[str(path.relative_to(out)) for path in out.rglob("*")] if out.exists() else [] for out in outs]
    there = {path.name for path in folder.iterdir()}
    assert there <= {"out", "commands.json", f"{EVIL}.py", "__pycache__", *(bundle.name for bundle in bundles)}
    assert measurements[0].lines == [""] * 4
    return dict(zip(LIES, zip(measurements[1:], written[1:], strict=True), strict=True))


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_a_line_or_nothing(results: dict[str, Found], name: str) -> None:
    measurement, written = results[name]
    print(f"{name}: {measurement.seconds:.1f} s, {measurement.megabytes} MB; {measurement.lines}")
    assert all("\n" not in line and "\x1b" not in line for line in measurement.lines)
    assert measurement.seconds < MOST_SECONDS and measurement.megabytes < MOST_MB
    assert not [path for path in written if path.startswith(".git") or ".." in path or path.endswith(".py")]
    if measurement.lines[0]:
        assert not written, "refused, and something was written"


def test_most_lies_are_refused_before_anything_is_written(results: dict[str, Found]) -> None:
    assert sum(bool(measurement.lines[0]) for measurement, _ in results.values()) >= 28
