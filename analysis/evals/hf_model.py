"""Causal language models of transformers in a local folder, evaluated like the study's own, as rows beside them.

Weights come from safetensors alone, and no code of the folder runs. Their tokenizer is their own: the held-out text is
tokenised anew, so that only bits a byte compare. A model of this project, exported, opens here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from arch.errors import InputError
from data.files import read_object, write_json
from data.mixture import Part
from data.tokenizer import Tokenizer
from data.tokenizer.letters import spelt

from .matrix import RunCheckpoint
from .model import LoadedModel

if TYPE_CHECKING:
    from data.corpus import Corpus

FOLDER, RECORD = "hf", "model.json"  # below a study's directory; in it, where the model lies
CONTEXTS = ("max_position_embeddings", "n_positions", "context_length", "seq_length", "max_sequence_length", "n_ctx")
EDGE = 1 << 20  # bytes at either end of a weight file that its hash reads


class HfTokenizer(Tokenizer):
    """A fast tokenizer of transformers. Bytes of an id are those that it stands for inside a text."""

    passage_tokens = 64

    def __init__(self, opened: Any, name: str) -> None:
        self.opened, self.name, self.vocab_size = opened, name, len(opened)
        ends = [i for i in (opened.eos_token_id, opened.bos_token_id) if i is not None]
        if not ends:
            raise InputError(f"{name}: its tokenizer has no end-of-text token")
        self.eot_id = ends[0]
        self._special = set(opened.all_special_ids)

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(self.opened.backend_tokenizer.to_str().encode()).hexdigest()

    def encode_array(self, text: str) -> np.ndarray:
        return np.array(self.opened(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=self.dtype)

    def bytes_of(self, token: int) -> bytes:
        piece = self.opened.convert_ids_to_tokens(token)
        if piece is None or token in self._special:
            return b""
        if self._is_byte_level:
            try:
                return spelt(piece)
            except KeyError:  # a token that was added as text
                return str(piece).encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return str(piece).replace("▁", " ").encode()

    @cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in self.opened.backend_tokenizer.to_str()


@dataclass(frozen=True, eq=False)
class HfCheckpoint(RunCheckpoint):
    """The model in the folder `path`, whose results lie below the study's `directory`; it has no run."""

    directory: Path = Path()

    @property
    def run_id(self) -> str:
        return f"hf:{self.path.name}"

    @property
    def name(self) -> str:
        return self.run_id

    @property
    def autocast(self) -> bool:
        return False

    @property
    def results(self) -> Path:
        return self.directory / FOLDER / self.path.name / "evals"

    @property
    def left_out(self) -> str:
        return ""

    @property
    def weights_sha256(self) -> str:
        return str(self.manifest["weights"])

    def load(self, corpus: Corpus, device: str) -> LoadedModel:
        return load_hf(self.path, device)


def hf_checkpoint(folder: Path, directory: Path) -> HfCheckpoint:
    """The model in `folder` for the study in `directory`, where it is recorded. Raises InputError where there is no
    model in safetensors, or another folder of the same name has results."""
    folder = folder.expanduser().resolve()
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        pickled = any(folder.glob("*.bin")) and not files
        raise InputError(
            f"{folder}: is no model of transformers in safetensors"
            + (": its weights are pickled, which can run code; save them as safetensors" if pickled else "")
        )
    made = HfCheckpoint(folder, _manifest(folder, files), None, directory)  # type: ignore[arg-type]
    record = made.results.with_name(RECORD)
    if record.exists() and (known := read_object(record)["folder"]) != str(folder):
        raise InputError(f"{folder}: {known} has results under the name {made.name}: rename one of the folders")
    made.results.mkdir(parents=True, exist_ok=True)
    write_json(record, {"folder": str(folder)} | made.manifest, kind="eval")
    return made


def known_hf(directory: Path) -> list[HfCheckpoint]:
    """The models that were recorded for the study in `directory`."""
    records = [read_object(path) for path in sorted((directory / FOLDER).glob(f"*/{RECORD}"))]
    return [HfCheckpoint(Path(record["folder"]), record, None, directory) for record in records]  # type: ignore[arg-type]


def _manifest(folder: Path, files: list[Path]) -> dict[str, Any]:
    """step and n_tokens are not known; weights: over names, sizes and both ends of the files, which may be large."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in files:
        size = path.stat().st_size
        with open(path, "rb") as handle:
            head = handle.read(EDGE)
            handle.seek(max(0, size - EDGE))
            digest.update(f"{path.name} {size}".encode() + head + handle.read())
    return {"step": 0, "n_tokens": 0, "weights": digest.hexdigest()}


def load_hf(folder: Path, device: str) -> LoadedModel:
    """The model in `folder` in fp32 on `device`. Raises InputError where transformers cannot open it without code of
    the folder, or its tokenizer is none that it has a fast form of."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    import arch.hf.auto  # noqa: F401  exported models of this project

    disable_progress_bar()
    local = {"trust_remote_code": False, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, **local)
        opened = AutoTokenizer.from_pretrained(folder, **local)
    except Exception as error:  # whatever a foreign folder can hold
        reason = " ".join(str(error).split())
        why = "it needs code of its own, which is not run" if "trust_remote_code" in reason else reason[:300]
        raise InputError(f"{folder}: transformers cannot open it ({why})") from None
    if not opened.is_fast:
        raise InputError(f"{folder}: its tokenizer has no tokenizer.json (a fast tokenizer): save one there")
    model = model.to(device).eval()
    config = model.config.get_text_config()
    context = next((n for name in CONTEXTS if isinstance(n := getattr(config, name, None), int) and n > 1), None)
    tokens = HfTokenizer(opened, f"hf:{folder.name}")
    n_ids = model.get_input_embeddings().num_embeddings
    loaded = LoadedModel(
        HfModel(model),  # type: ignore[arg-type]
        SimpleNamespace(vocab_size=n_ids, arch=f"hf:{folder.name}", kinds=()),  # type: ignore[arg-type]
        tokens,
        device,
        False,
        context or 2048,
        folder,
        longest=context if context and _has_learned_positions(model, context) else None,
    )
    model.register_forward_pre_hook(loaded.count, with_kwargs=True)
    return loaded


def _has_learned_positions(model: Any, context: int) -> bool:
    """Whether a table beside the tokens' has a row for each place of the context (OPT has two more)."""
    import torch

    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return any(t is not model.get_input_embeddings() and 0 <= t.num_embeddings - context <= 2 for t in tables)


class HfModel:
    """A model of transformers in the place of a LanguageModel: its decoder gives logits, its head changes nothing."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf

    def decoder(self, ids: Any, *_: Any) -> tuple[Any, None]:
        return self.hf(input_ids=ids, use_cache=False).logits, None

    def lm_head(self, logits: Any) -> Any:
        return logits

    def generate(self, ids: Any, n_new: int) -> Any:
        """Greedy continuations [B, n_new at most] of ids [B, T]."""
        import torch

        written = self.hf.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n_new)
        return written[:, ids.shape[1] :]


def retokenised(corpus: Corpus, tokenizer: Tokenizer) -> tuple[Any, list[Part]]:
    """The held-out text in another tokenizer's ids, end-of-text behind each document, and the parts of a mixture."""
    if corpus.tokenizer.identity == tokenizer.identity:
        return corpus.validation, corpus.parts("validation")
    pieces, parts, first = list[np.ndarray](), [], 0
    for part in corpus.parts("validation"):
        ids = np.asarray(corpus.validation[part.first : part.first + part.n_tokens])
        new = [tokenizer.encode_array(text) for text in _documents(ids, corpus.tokenizer)]
        whole = [piece for text in new for piece in (text, np.array([tokenizer.eot_id], dtype=text.dtype))]
        pieces += whole
        n_tokens = sum(map(len, whole))
        parts.append(part._replace(first=first, n_tokens=n_tokens))
        first += n_tokens
    return np.concatenate(pieces), parts


def _documents(ids: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    for piece in np.split(ids, np.flatnonzero(ids == tokenizer.eot_id)):
        if text := tokenizer.decode_bytes(piece).decode("utf-8", errors="replace"):
            yield text
