"""A saved model's files: what is checked before the model is made, its configuration and the weights' header, and how
weights are written."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..config import ModelConfig, archs_in, model_fields_in
from ..errors import InputError
from ..registry import require

MODEL_TYPE = "linear_scaling"
WEIGHTS = "model.safetensors"
# torch's name of a precision: safetensors' name, and bytes of a number
PRECISIONS = {"float64": ("F64", 8), "float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
MOST_CONFIG = 1 << 20  # bytes of a config.json
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


def read_config(directory: Path) -> tuple[ModelConfig, int | None]:
    """The configuration of the model saved in `directory`, and the id of the token that begins a document there.

    Raises InputError where there is no model, and for an invalid config.json.
    """
    path = directory / "config.json"
    if not path.is_file() or not (directory / WEIGHTS).is_file():
        raise InputError(f"{directory}: no model here (config.json and {WEIGHTS} are needed)")
    try:
        if path.stat().st_size > MOST_CONFIG:
            raise ValueError
        fields = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{path}: is no JSON object; take another copy") from None
    if fields.get("model_type") != MODEL_TYPE:
        raise InputError(f"{path}: model_type is {fields.get('model_type')!r}, not {MODEL_TYPE!r}")
    require(archs_in(fields), fields.get("plugin"), str(path))
    start = fields.get("document_start_id")
    if start is not None and type(start) is not int:
        raise InputError(f"{path}: document_start_id is {start!r}, not a token's id; take another copy")
    return ModelConfig.from_dict(model_fields_in(fields)), start


def check_layers(config: ModelConfig, tensors: Iterable[str], where: object) -> None:
    """Raise InputError where the tensors have another number of layers than the configuration."""
    layers = {match[1] for name in tensors if (match := _LAYER.match(name))}
    if len(layers) != config.n_layers:
        raise InputError(
            f"{where}: holds {len(layers):,} layers, and config.json asks for n_layers={config.n_layers:,}: take "
            f"another copy of both"
        )


def stored_shapes(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors of a safetensors file, by name. Raises InputError where it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise InputError(f"{path}: is damaged ({error}); take another copy") from None


def compare_shapes(path: Path, expected: Mapping[str, Sequence[int]], stored: Mapping[str, Sequence[int]]) -> None:
    """Raise InputError for the first tensor that is missing, not expected, or of another shape."""
    for name in sorted(expected.keys() ^ stored.keys()):
        raise InputError(f"{path}: tensor {name!r} is {'missing' if name in expected else 'unexpected'}")
    for name, shape in expected.items():
        if list(shape) != list(stored[name]):
            raise InputError(
                f"{path}: tensor {name!r} has shape {list(stored[name])}, the configuration needs {list(shape)}"
            )


def write_tensors(
    file: Path, kinds: Mapping[str, tuple[str, Sequence[int]]], contents: Iterable[Any], **metadata: str
) -> dict[str, Any]:
    """Write a safetensors file, synced, one tensor at a time. kinds: precision (of PRECISIONS) and shape by name,
    contents: the bytes of each, in the same order. Returns the file's bytes and sha256."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, (precision, shape) in kinds.items():
        dtype, n_bytes = PRECISIONS[precision]
        begin, end = end, end + n_bytes * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(file, "wb") as handle:
        for content in chain([len(text).to_bytes(8, "little"), text], contents):
            handle.write(content)
            digest.update(content)
        handle.flush()
        os.fsync(handle.fileno())
        return {"bytes": handle.tell(), "sha256": digest.hexdigest()}
