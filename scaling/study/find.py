"""Where the file of a study lies: here, or among those that come with the package."""

from __future__ import annotations

from pathlib import Path

from arch.errors import InputError, nearest

PACKAGED = Path(__file__).parents[1] / "studies"
STUDY_FILE = "study.yaml"  # of a published study's folder
BESIDE = ("provenance.json", "index.json")  # what lies beside the study file of a publication, of an unpacked bundle


def find_study(name: str | Path) -> Path:
    """The path of a study file; a bare name that is no file here is one that comes with the package."""
    path = Path(name)
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise InputError(f"{path.name[:40]}...: no such study file ({error.strerror})") from None
    from difflib import get_close_matches

    packaged = sorted(file.stem for file in PACKAGED.glob("*.yaml"))
    if path.name in packaged and str(path) == path.name:
        return PACKAGED / f"{path.name}.yaml"
    if (path / STUDY_FILE).is_file():
        raise InputError(
            f"{path}: is a published study, tables alone: fit, report, publish --check and design --pilot read it; "
            f"this needs a study file, and runs"
        )
    if path.is_dir():
        below = ", ".join(sorted(str(file.parent) for file in path.glob(f"*/{STUDY_FILE}"))[:5])
        more = f"; published studies in it: {below}" if below else ""
        raise InputError(f"{path}: is a directory, not a study file{more}")
    if path.parent.is_dir() and str(path) != path.name and (beside := _studies_in(path.parent)):
        raise InputError(f"{path}: no such study file or folder{nearest(path.name, beside)}")
    name_of_stem = {
        Path(name).stem: name for name in [*packaged, *(_studies_in(Path()) if str(path) == path.name else ())]
    }
    if meant := get_close_matches(path.stem, name_of_stem, n=1):  # by stems: that both end with .yaml is no likeness
        raise InputError(f"{path}: no such study file (did you mean {name_of_stem[meant[0]]!r}?)")
    raise InputError(f"{path}: no such study file (studies of the package, by bare name: {', '.join(packaged)})")


def came_with_others(file: Path) -> bool:
    """Whether a study file came with a published folder or a bundle, so that it names no code (arch.outside)."""
    return any((file.parent / name).is_file() for name in BESIDE)


def _studies_in(folder: Path) -> list[str]:
    """The names of study files and published studies."""
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".yaml" or (path / STUDY_FILE).is_file())
