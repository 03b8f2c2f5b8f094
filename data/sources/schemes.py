"""The sources that are called by a name, in one table; a source of another name is a path."""

from __future__ import annotations

from collections.abc import Callable

from arch.errors import InputError, nearest

from .documents import Source
from .files import of_path
from .hugging_face import hugging_face
from .made import known, synthetic
from .python_source import packages, stdlib

# what stands before the first colon: who finds the source. The finder raises InputError for what is misspelt or is not
# there, and reads no text.
SCHEMES: dict[str, Callable[[str], Source]] = {
    "stdlib": stdlib,
    "packages": packages,
    "hf": hugging_face,
    "synthetic": synthetic,
    **dict.fromkeys(("powerlaw", "markov", "copy", "mqar"), known),
}


def find(source: str) -> Source:
    """The source that a string of a study file means. Raises InputError where there is none."""
    if not source:
        raise InputError("corpus.source: an empty name; name a file, a folder, or one of the sources of docs/corpus.md")
    scheme, colon, rest = source.partition(":")
    if colon and scheme in SCHEMES:
        return SCHEMES[scheme](source)
    if colon and rest.startswith("//"):
        raise InputError(
            f"corpus.source: {source!r} is an address: no text is fetched from one; download it and name the file, or "
            f"name a dataset of the Hugging Face hub as hf:NAME"
        )
    hint = nearest(f"{scheme}:", [f"{name}:" for name in SCHEMES]) if colon and scheme and "/" not in source else ""
    return of_path(source, hint)
