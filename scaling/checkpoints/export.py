"""A checkpoint as a folder that Hugging Face tools open by themselves: weights, tokenizer, model card and source code.

torch and transformers load it with trust_remote_code=True; this project need not be installed.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from data.files import new_directory
from data.tokenizer.json_file import JSON_FILES
from data.tokenizer.ranks import RANKS
from data.units import loss_unit

from ..rundir.find_checkpoint import find_checkpoint
from ..rundir.saved import Checkpoint

if TYPE_CHECKING:
    from arch.model.lm import LanguageModel

IDENTITY = (
    "run_id",
    "step",
    "n_tokens",
    "spec_hash",
    "dtype",
    "probe_loss",
    "tokenizer",
)  # of a checkpoint, in its manifest


def export_hf(checkpoint: Path, directory: Path, dtype: str | None = None) -> dict[str, Any]:
    """Write `checkpoint`, or a run's newest, to `directory`, whole or not at all.

    dtype: "bf16" or "fp32"; None keeps the checkpoint's. What the model keeps in fp32 stays so. A directory that is not
    empty is never overwritten, not even an earlier export: its files do not show whether they were changed since.
    Returns {directory, files, n_params, bytes}: the names of all files, parameters (a tied head once), bytes in all.
    Raises InputError for a checkpoint that is damaged, an architecture whose code is not in arch, a
    directory that is there or cannot be written.
    """
    from safetensors import SafetensorError

    from arch.hf.remote_code import remote_code
    from arch.model.lm import load_model

    from ..rundir.checkpoint_writer import DTYPES

    saved = find_checkpoint(checkpoint, lambda line: None)
    _check_tokenizer(saved)
    source, manifest = saved.path, saved.manifest
    dtype = dtype or manifest["dtype"]
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    target = directory.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{directory} exists and is not empty: give another directory, or remove it first")
    model, code = load_model(source, DTYPES[dtype]), remote_code()
    _check_code(model, code)
    end = _end_of_text(source, model.model_config.vocab_size)
    identity = {name: manifest.get(name) for name in IDENTITY} | {"dtype": dtype}
    if dtype != manifest["dtype"]:
        identity["probe_loss"] = None  # it is that of the checkpoint's precision
    try:
        with new_directory(target, {"schema": 1, "format": "hf"} | identity, kind="export") as temporary:
            model.save_pretrained(temporary, DTYPES[dtype])
            _write_json(temporary / "config.json", _config(temporary))
            _write_json(temporary / "generation_config.json", {"eos_token_id": end, "pad_token_id": end})
            for name in (*JSON_FILES, *({RANKS} & saved.manifest["files"].keys())):
                (temporary / name).write_bytes((source / name).read_bytes())
            for name, text in code.items():
                (temporary / name).write_text(text, encoding="utf-8")
            (temporary / "README.md").write_text(_card(model, identity), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{directory} cannot be written, and nothing is left of it: {reason}") from error
    sizes = {file.name: file.stat().st_size for file in sorted(target.iterdir())}
    n_params = sum(parameter.numel() for parameter in model.parameters())
    return {"directory": str(directory), "files": list(sizes), "n_params": n_params, "bytes": sum(sizes.values())}


def push(directory: Path, repository: str, step: int) -> str:
    """Upload the export in `directory` to a model repository of the Hugging Face hub, as its revision stepN; one that
    is new is private. Returns the revision's address. The token is the one of `hf auth login` or HF_TOKEN, and goes
    nowhere but to the hub. Raises InputError for whatever the hub or the network refuses."""
    from huggingface_hub import HfApi

    revision, api = f"step{step}", HfApi()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        api.create_branch(repository, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=directory, revision=revision, commit_message=f"Step {step}"
        )
    except Exception as error:  # whatever a network or a hub can come up with
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"--push {repository}: not uploaded ({type(error).__name__}: {reason}); the export is whole: try "
            f"`hf upload {repository} {directory} --revision {revision}`"
        ) from None
    return str(commit.commit_url)


def check_repository(name: str) -> None:
    """Raise InputError unless it can be the name of a repository."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f"--push {name!r}: is no OWNER/NAME ({' '.join(str(error).split())})") from None


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    for name in JSON_FILES:
        if name not in checkpoint.manifest["files"]:
            raise InputError(
                f"{checkpoint.path}: has no {name}; train the run again, checkpoints carry their tokenizer now"
            )


def _check_code(model: LanguageModel, code: dict[str, str]) -> None:
    """Every module of the model must be torch's or of a file that travels."""
    from arch.hf.remote_code import flat

    for module in model.modules():
        package, _, name = type(module).__module__.partition(".")
        if package != "torch" and not (package == "arch" and f"{flat(name)}.py" in code):
            raise InputError(
                f"architecture {model.model_config.arch!r} is made of {type(module).__module__}, which is not in arch: "
                f"its code cannot travel with the weights"
            )


def _end_of_text(checkpoint: Path, vocab_size: int) -> int:
    """The id of the tokenizer's end-of-sequence token."""
    token = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    added = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8")).get("added_tokens", [])
    ids = [entry["id"] for entry in added if entry["content"] == token]
    if len(ids) != 1 or not 0 <= ids[0] < vocab_size:
        raise InputError(
            f"{checkpoint}/tokenizer.json: eos_token {token!r} has no id in the vocabulary of {vocab_size}"
        )
    return ids[0]


def _config(directory: Path) -> dict[str, Any]:
    from arch.hf.remote_code import AUTO_MAP

    return json.loads((directory / "config.json").read_text(encoding="utf-8")) | {"auto_map": AUTO_MAP}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _card(model: LanguageModel, identity: dict[str, Any]) -> str:
    """The model card: only what configuration and manifest say. The folder's name, which may be any text, is in none of
    its code."""
    config = model.model_config
    n_params = sum(parameter.numel() for parameter in model.parameters())
    embedding = {id(module.weight): module.weight.numel() for module in (model.decoder.embedding, model.lm_head)}
    facts = {
        "architecture": f"{config.arch}: {', '.join(config.layers)}, repeated" if config.layers else config.arch,
        "parameters": f"{n_params:,} ({n_params - sum(embedding.values()):,} without embedding and head)",
        "layers, width": f"{config.n_layers}, {config.d_model}",
        "context length in training": f"{config.context_length:,} tokens",
        "vocabulary": f"{config.vocab_size:,} ({'tied' if config.tie_embeddings else 'untied'} head)",
        "weights": "fp32" if identity["dtype"] == "fp32" else f"{identity['dtype']}, time scales and norms in fp32",
        "training": f"run {identity['run_id']}, step {identity['step']}, {identity['n_tokens'] or 0:,} tokens",
    }
    if identity["probe_loss"] is not None:
        unit = loss_unit([identity["tokenizer"]["name"]])
        facts["loss on the run's probe batch"] = f"{identity['probe_loss']:.4f} {unit}"
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {identity["run_id"]}, step {identity["step"]}

| | |
|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # where this file lies
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```

`trust_remote_code=True` runs the Python files of this folder. {_requirements()}

```
lm_eval --model hf --tasks ... \\
  --model_args pretrained=.,trust_remote_code=True,max_length={config.context_length}
```
"""


def _requirements() -> str:
    """What the code was written for, as the package that it was copied from says."""
    try:
        requirements = metadata.requires("linear-scaling") or []
    except metadata.PackageNotFoundError:
        return "They need torch and transformers."
    needed = [name for name in requirements if name.startswith(("torch", "transformers")) and ";" not in name]
    return f"They need {' and '.join(sorted(needed))}."
