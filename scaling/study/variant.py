"""A variant of a study's architecture, as `scaling try` takes it: a small YAML file, or --arch, --set and --name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arch.config import means, reads
from arch.errors import InputError
from arch.registry import KNOWN, archs_with

from .axes import short
from .file import import_plugins, parse_set, validate
from .forecast_section import of_rounds
from .model_section import ModelChanges, ModelSection
from .training import Training
from .types import Arch, Name, Plugins, Section
from .yaml_text import read_mapping

# what would make other batches, other held-out windows or another length: no pair with the study's runs
OF_THE_MATCH = {
    "training": ("n_tokens", "max_tokens", "max_steps", "branches", "batch_tokens"),
    "model": ("context_length",),
}


class Variant(Section):
    """What a variant's file may say."""

    plugins: Plugins = []  # first, since arch is judged after it
    name: Name
    arch: Arch
    of: str | None = None
    model: ModelChanges = ModelSection()
    training: Training = Training()

    @property
    def baseline(self) -> str:
        """The study's architecture that it is compared with."""
        return self.of or self.arch

    @property
    def is_new_arch(self) -> bool:
        return self.baseline != self.arch

    @property
    def changes(self) -> dict[str, Any]:
        """{"model.norm": "layer", ...}, as given."""
        return {
            f"{section}.{field}": value
            for section in ("model", "training")
            for field, value in getattr(self, section).model_dump(exclude_unset=True, serialize_as_any=True).items()
        }

    @property
    def sets(self) -> list[str]:
        """The changes as --set takes them."""
        return [f"{field}={json.dumps(value)}" for field, value in self.changes.items()]

    @property
    def record(self) -> dict[str, Any]:
        """What identifies it, as try.json holds it."""
        return {"name": self.name, "arch": self.arch, "of": self.baseline, "changes": self.changes}


def read_variant(
    path: Path | None, arch: str | None = None, sets: list[str] | None = None, name: str | None = None
) -> Variant:
    """The variant of a file, or of what the command line says. Raises InputError, one line, for anything wrong."""
    given = [option for option, value in (("--arch", arch), ("--set", sets), ("--name", name)) if value]
    if path is not None:
        if given:
            raise InputError(f"{given[0]}: goes without a variant's file: write it in the file, or leave out {path}")
        raw, where = read_mapping(path, "variant", "name, arch, model, training"), str(path)
    else:
        if not (arch and sets and name):
            raise InputError("try: give a variant's file, or --arch, --set and --name together")
        raw, where = {"name": name, "arch": arch}, "try"
        for change in sets:
            keys, value = parse_set(change)
            if keys[0] not in OF_THE_MATCH:
                raise InputError(f"--set {change}: a variant changes model and training alone")
            raw.setdefault(keys[0], {})[keys[1]] = value
    import_plugins(raw, where)
    variant: Variant = validate(Variant, raw, where, sets or [])
    for field in variant.changes:
        section, _, key = field.partition(".")
        if key in OF_THE_MATCH[section]:
            raise InputError(
                f"{where}: {field}: a variant reads the study's own batches and windows, and its tokens follow from "
                f"--match: leave it out"
            )
        if section == "model" and not reads(variant.arch, key):
            raise InputError(
                f"{where}: {field} means nothing to {variant.arch}, only to {', '.join(archs_with(key))}: leave it out"
            )
    idle = [field for field in variant.changes if field.startswith("model.") and not means(variant.arch, short(field))]
    if idle and len(idle) == len(variant.changes) and not variant.is_new_arch:
        raise InputError(f"{where}: {', '.join(idle)} changes nothing of {variant.arch}: give another field of it")
    if not variant.changes and not variant.is_new_arch:
        raise InputError(f"{where}: changes nothing of {variant.arch}: give model, training, or another arch with of")
    return variant


def study_of_arch(path: Path, variant: Variant) -> dict[str, Any]:
    """The study file at `path` with the variant's new architecture alone, trained as the one that it is a variant of:
    what the file says of that one holds for the new one, what it says of others is left out."""
    raw = read_mapping(path, "study", "name, corpus, grid, training, ...")
    old, new = variant.baseline, variant.arch

    def renamed(table: Any) -> Any:
        """Keys that name an architecture, alone or as arch/size."""
        if not isinstance(table, dict):
            return table
        renamed_table = {}
        for key, value in table.items():
            arch, slash, size = str(key).partition("/")
            if arch == old:
                renamed_table[f"{new}{slash}{size}"] = value
            elif arch not in KNOWN:
                renamed_table[key] = value
        return renamed_table

    def of_run(section: Any) -> Any:
        """Training or an override, with a model's fields that the new architecture reads, and its law where it lies."""
        if not isinstance(section, dict):
            return section
        kept = dict(section)
        if isinstance(kept.get("model"), dict):
            kept["model"] = {key: value for key, value in kept["model"].items() if reads(new, key)}
        if isinstance(kept.get("lr_law"), str):
            kept["lr_law"] = str((path.parent / Path(kept["lr_law"]).expanduser()).resolve())
        return kept

    named = raw.get("plugins") or []
    plugins = list(dict.fromkeys([*([named] if isinstance(named, str) else named), *variant.plugins]))
    raw |= {"plugins": plugins, "training": of_run(raw.get("training", {}))}
    raw["model"] = of_run({"model": raw.get("model", {})})["model"]

    def of_sizes(sizes: Any) -> Any:
        if isinstance(sizes, list):
            return [{k: renamed(v) for k, v in size.items()} if isinstance(size, dict) else size for size in sizes]
        return {name: renamed(shape) for name, shape in sizes.items()} if isinstance(sizes, dict) else sizes

    raw["grid"] = raw["grid"] | {"archs": [new], "sizes": of_sizes(raw["grid"].get("sizes"))}
    raw |= of_rounds(raw, of_sizes)
    if isinstance(raw.get("overrides"), dict):
        raw["overrides"] = {
            by: {key: of_run(section) for key, section in renamed(table).items()}
            for by, table in raw["overrides"].items()
        }
    raw["fit"] = {key: value for key, value in (raw.get("fit") or {}).items() if not key.startswith("range")}
    jobs = raw.get("jobs") or {}
    if "resources" in jobs:
        jobs = jobs | {"resources": renamed(jobs["resources"])}
    return raw | {"jobs": jobs}
