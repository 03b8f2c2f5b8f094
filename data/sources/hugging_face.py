"""Hugging Face datasets as sources, by name or by path.

    hf:NAME[@REVISION][:CONFIG][:SPLIT]    of the hub, read as it arrives, nothing is stored, max_bytes ends it
    hf:FOLDER[:SPLIT]                      what `save_to_disk` wrote, or a folder of files that `load_dataset` reads

SPLIT is `train` where it is left out; `hf:NAME::test` leaves out the configuration alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arch.errors import InputError, nearest

from .documents import Document, ReadOptions, Source, usable

SAVED = ("state.json", "dataset_dict.json")  # of what save_to_disk writes


@dataclass(frozen=True)
class HuggingFace(Source):
    """A split of a dataset; `place`: its folder, "" of one of the hub."""

    source: str
    name: str
    revision: str
    config: str
    split: str
    place: str

    def sizes(self) -> list[int] | None:
        return None

    def versions(self) -> dict[str, Any]:
        return {} if self.place else {"hugging_face": {self.name: self.revision or "newest"}}

    def is_at_hand(self) -> bool:
        return bool(self.place)

    def documents(self, how: ReadOptions) -> Iterator[Document]:
        label = f"hf:{Path(self.place).name if self.place else self.name}"
        counts, read_any = how.counts, False
        try:
            for number, row in enumerate(self._rows(), start=1):
                if how.is_enough:
                    return
                if not read_any and how.text_key not in row:
                    raise InputError(
                        f"corpus.text_key: {self.source} has no column {how.text_key!r}"
                        f"{nearest(how.text_key, sorted(row))}"
                    )
                text = row[how.text_key]
                read_any = True
                if not isinstance(text, str):
                    counts.invalid_records += 1
                    continue
                counts.read_bytes += len(text.encode("utf-8", errors="surrogatepass"))
                if usable(text, counts):
                    yield Document(f"{label}:{number}", text)
        except InputError:
            raise
        except Exception as error:  # of a library that reads many formats over a network: its errors are of any kind
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            remedy = "" if self.place else "; without a network give a folder on disk, as hf:FOLDER"
            raise InputError(f"corpus.source: {self.source} cannot be read ({reason}){remedy}") from None

    def _rows(self) -> Any:
        import datasets

        hub = logging.getLogger("huggingface_hub")  # six warnings and their waits, where the error says so once
        quiet = datasets.utils.logging
        level, hub_level = quiet.get_verbosity(), hub.level
        quiet.set_verbosity_error()
        hub.setLevel(logging.ERROR)
        try:
            if self.place and any((Path(self.place) / name).exists() for name in SAVED):
                dataset = datasets.load_from_disk(self.place)
                if isinstance(dataset, datasets.DatasetDict):
                    if self.split not in dataset:
                        raise InputError(
                            f"corpus.source: {self.source} has no split {self.split!r}"
                            f"{nearest(self.split, list(dataset))}"
                        )
                    dataset = dataset[self.split]
                return dataset
            return datasets.load_dataset(
                self.place or self.name,
                self.config or None,
                split=self.split,
                revision=self.revision or None,
                streaming=True,
            )
        finally:
            quiet.set_verbosity(level)
            hub.setLevel(hub_level)


def hugging_face(source: str) -> HuggingFace:
    """Raises InputError where the source is misspelt, or the library `datasets` is not installed."""
    name, *rest = source.removeprefix("hf:").split(":")
    place = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else ""
    is_saved = bool(place) and any((Path(place) / file).exists() for file in SAVED)
    if not name or len(rest) > (1 if is_saved else 2) or (not place and name.startswith(("/", "~", "."))):
        why = "does not exist" if name.startswith(("/", "~", ".")) and not place else "is misspelt"
        raise InputError(
            f"corpus.source: {source!r} {why}; write hf:NAME[@REVISION][:CONFIG][:SPLIT] or hf:FOLDER[:SPLIT]"
        )
    if find_spec("datasets") is None:
        raise InputError(f"corpus.source: {source!r} needs the package datasets: pip install 'linear-scaling[corpus]'")
    if is_saved:
        rest = ["", *rest]
    config, split = [*rest, "", ""][:2]
    name, _, revision = (name, "", "") if place else name.partition("@")
    return HuggingFace(source, name, revision, config, split or "train", place)
