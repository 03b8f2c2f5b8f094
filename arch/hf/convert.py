"""Weights of Hugging Face's LLaMA, Mamba2 and Mamba1 as our models, and back (names and fields: families.py).

transformers is imported only to build its models; a directory is read without it. Two models of the same weights give
the same logits to rounding: 1e-5 in fp32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import InputError, nearest
from ..model.lm import LanguageModel
from ..registry import architecture
from .families import Family, families

MOST_GROWTH = 4  # parameters for each that is stored: keys and values of few heads are repeated for all
EXACT = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that fp32 holds exactly


def from_hf(source: Any) -> LanguageModel:
    """Our model with the weights of `source`, in fp32 on the CPU.

    source: a directory with config.json and safetensors (one file, or several with their index; pickled weights are
    never read), or a model of transformers (anything with `config` and `state_dict()`). Model types: llama, mamba2,
    mamba. Grouped-query attention becomes full attention by repeating every key and value head for its queries: the
    same function with more parameters, so `to_hf` gives a larger model than was read. A Mamba's context length is its
    configuration's max_position_embeddings, 2,048 where that is missing.

    Raises InputError for whatever our models cannot express, naming the first field, and for weights that do not
    belong to the configuration, naming the first tensor.
    """
    if isinstance(source, (str, Path)):
        where, config, weights = str(source), _read_config(Path(source)), _Folder(Path(source))
    else:
        where, config, weights = type(source).__name__, source.config.to_dict(), source.state_dict()
    kind, known = config.get("model_type"), families()
    if kind not in known:
        raise InputError(f"{where}: model_type={kind!r} has no counterpart here{nearest(str(kind), list(known))}")
    fields = _Fields(known[kind], config, where)
    model = _made(fields.model_config(), weights, where)
    _fill(model, weights, known[kind], fields.kv_heads, where)
    return model


def _made(config: ModelConfig, weights: Mapping[str, Tensor], where: str) -> LanguageModel:
    """The model without its weights. Raises InputError, before it is made, for a configuration of a much larger model
    than the weights hold."""
    problem = f"{where}: its configuration asks for a larger model than its weights are"
    stored = sum(weights.numel(name) if isinstance(weights, _Folder) else weights[name].numel() for name in weights)
    if config.n_layers > len(weights) or config.vocab_size * config.d_model > stored:
        raise InputError(f"{problem}: take another copy of both")
    with torch.device("meta"):
        n_params = sum(parameter.numel() for parameter in LanguageModel(config).parameters())
    if n_params > MOST_GROWTH * stored:
        raise InputError(f"{problem} ({n_params:,} parameters, {stored:,} stored): take another copy of both")
    return LanguageModel(config)


def to_hf(model: LanguageModel) -> Any:
    """The model as LlamaForCausalLM, Mamba2ForCausalLM or MambaForCausalLM, in fp32 on the CPU, in evaluation mode.

    The ids of special tokens, which a tokenizer has, are left unset. Raises InputError for what these classes cannot
    express: other architectures, other norms than RMSNorm.
    """
    import transformers

    config = model.model_config
    hugging_face = None if config.layers else architecture(config.arch).hugging_face
    if hugging_face is None:
        raise InputError(f"transformers has no class for {config.arch}: export it with its own code instead")
    family = hugging_face()
    if config.norm != "rms":
        raise InputError(f"transformers' {family.classes[1]} has RMSNorm only, not norm={config.norm!r}")
    theirs = getattr(transformers, family.classes[1])(
        getattr(transformers, family.classes[0])(**_their_config(config, family))
    )
    weights = {}
    for name, weight in model.state_dict().items():
        _check_exact(name, weight, config.arch)
        weights[family.their_name(name)] = weight[:, None] if name.endswith("conv.weight") else weight
    theirs.load_state_dict(weights)
    return theirs.eval()


class _Fields:
    """A configuration of the library, read with its defaults. Raises InputError for what our model cannot express."""

    def __init__(self, family: Family, config: dict[str, Any], where: str) -> None:
        self.family, self.config, self.where = family, config, where
        self.kv_heads: int | None = None
        if config.get("quantization_config") is not None:
            self.refuse("quantization_config", "only plain weights")
        for name, valid in family.only.items():
            if self[name] not in valid:
                self.refuse(name, f"only {valid[0]!r}")
        for name, default in family.defaults.items():
            value = self[name]
            if type(default) is int and not (type(value) is int and value > 0):
                self.refuse(name, "only a positive integer")

    def __getitem__(self, name: str) -> Any:
        value = self.config.get(name, self.family.defaults.get(name))
        if name == "time_step_limit" and isinstance(value, (list, tuple)):
            # transformers 5 writes an infinity as {"__float__": "Infinity"}
            return [float("inf") if end == {"__float__": "Infinity"} else end for end in value]
        return value

    def refuse(self, name: str, instead: str) -> NoReturn:
        value = self[name]
        raise InputError(f"{self.where}: {name}={value!r} cannot be expressed by our {self.family.arch}: {instead}")

    def model_config(self) -> ModelConfig:
        fields = {
            "arch": self.family.arch,
            "norm": "rms",
            "vocab_size": self["vocab_size"],
            "d_model": self["hidden_size"],
            "n_layers": self["num_hidden_layers"],
            "init_std": self["initializer_range"],
            "tie_embeddings": bool(self["tie_word_embeddings"]),
        }
        fields |= self.family.ours(self)
        try:
            return ModelConfig.from_dict(fields)
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None


def _their_config(config: ModelConfig, family: Family) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "initializer_range": config.matrix_std,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.context_length,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return fields | family.theirs(config)


def _fill(
    model: LanguageModel, weights: Mapping[str, Tensor], family: Family, kv_heads: int | None, where: str
) -> None:
    """Copy every parameter. Raises InputError for a missing or additional name, and for another shape."""
    parameters = {family.their_name(name): (name, parameter) for name, parameter in model.named_parameters()}
    embedding, head = (family.their_name(name) for name in ("decoder.embedding.weight", "lm_head.weight"))
    # rotary frequencies are a function of the configuration, a tied head is the embedding again
    extra = {name for name in weights if name not in parameters and not name.endswith("rotary_emb.inv_freq")}
    if head in extra and embedding in weights:
        if not torch.equal(weights[head], weights[embedding]):
            raise InputError(f"{where}: tie_word_embeddings=True, but tensor {head!r} is not the embedding")
        extra.remove(head)
    for name in sorted(parameters.keys() - set(weights)):
        raise InputError(f"{where}: tensor {name!r} is missing")
    for name in sorted(extra):
        raise InputError(f"{where}: tensor {name!r} is not one of {family.classes[1]}'s")
    for name, (ours, parameter) in parameters.items():
        weight, shape = weights[name], list(parameter.shape)
        _check_exact(name, weight, where)
        groups = kv_heads if ours.endswith(("key.weight", "value.weight")) else None
        if groups:
            shape[0] = groups * model.model_config.head_dim
        elif ours.endswith("conv.weight"):
            shape.insert(1, 1)
        if list(weight.shape) != shape:
            raise InputError(
                f"{where}: tensor {name!r} has shape {list(weight.shape)}, the configuration needs {shape}"
            )
        if groups:
            repeats = model.model_config.n_heads // groups
            weight = weight.unflatten(0, (groups, -1)).repeat_interleave(repeats, 0)
        with torch.no_grad():
            parameter.copy_(weight.reshape(parameter.shape))


def _check_exact(name: str, weight: Tensor, where: str) -> None:
    if weight.dtype not in EXACT:
        raise InputError(f"{where}: tensor {name!r} is {weight.dtype}: only fp32, bf16 and fp16 convert exactly")


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{directory}/config.json: {error.strerror}: give a Hugging Face model's directory") from None
    except ValueError as error:
        raise InputError(f"{directory}/config.json: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{directory}/config.json: not an object of fields")
    return config


class _Folder(Mapping[str, Tensor]):
    """The tensors of a directory's safetensors files, each read at its first use."""

    def __init__(self, directory: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.files: dict[str, Any] = {}  # tensor -> the open file that holds it
        for path in _weight_files(directory):
            try:
                file = safe_open(path, "pt")
                self.files |= dict.fromkeys(file.keys(), file)
            except (OSError, SafetensorError) as error:
                raise InputError(f"{path}: no readable safetensors file: {error}") from None

    def __getitem__(self, name: str) -> Tensor:
        return self.files[name].get_tensor(name)

    def numel(self, name: str) -> int:
        """The number of elements of a tensor, from the header alone."""
        return math.prod(self.files[name].get_slice(name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _weight_files(directory: Path) -> list[Path]:
    whole, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pth"))
        why = "; pickled weights are never read: save them as safetensors first" if pickled else ""
        raise InputError(f"{directory}: no model.safetensors and no {index.name}{why}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: not an index of safetensors files ({type(error).__name__})") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{index}: {name!r} is not a file name in this directory")
    return [directory / name for name in names]
