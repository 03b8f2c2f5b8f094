"""`scaling generate`: a checkpoint continues a text, which appears as it is written."""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arch.amounts import counted
from arch.errors import InputError, nearest
from arch.model.decode import generate_tokens
from arch.model.lm import LanguageModel, load_model
from data.tokenizer import Tokenizer

from ..rundir.checkpoint_writer import DTYPES

UNSAFE = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if code not in (9, 10)}


@dataclass(frozen=True)
class SamplingOptions:
    """How many tokens, and how each is chosen: arch.model.decode.generate_tokens."""

    n_tokens: int = 100
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class TextOut:
    """Bytes in, whole characters out: those of a cut character wait for the rest.

    On a terminal control characters but tab and newline are shown as U+FFFD: a model of bytes may write any of them.
    """

    def __init__(self, stream: Any = None) -> None:
        self.stream, self.text = stream, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        if stream is not None:
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character gets a question mark

    def write(self, content: bytes, final: bool = False) -> None:
        text = self._decoder.decode(content, final)
        self.text += text
        if self.stream is not None and text:
            self.stream.write(text.translate(UNSAFE) if self.stream.isatty() else text)
            self.stream.flush()

    def end(self) -> None:
        """Write what waits, and a newline."""
        self.write(b"", final=True)
        if self.stream is not None:
            self.stream.write("\n")
            self.stream.flush()


def read_prompt(prompt: str) -> str:
    """The prompt, or standard input for "-". Raises InputError where it is empty or no UTF-8."""
    try:
        text = sys.stdin.buffer.read().decode() if prompt == "-" else prompt
        text.encode()
    except UnicodeError:
        raise InputError("the prompt is no UTF-8 text; convert it first") from None
    if not text:
        where = "standard input is empty" if prompt == "-" else "the prompt is empty"
        raise InputError(f"{where}: give at least one character to continue")
    return text


def open_model(path: Path, dtype: str) -> LanguageModel:
    """The model at `path`, weights in `dtype` (fp32, bf16), on a GPU where there is one."""
    if dtype not in DTYPES:
        raise InputError(f"--dtype: unknown {dtype!r}{nearest(dtype, list(DTYPES))}")
    return load_model(path, DTYPES[dtype]).to("cuda" if torch.cuda.is_available() else "cpu").eval()


def generate(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, options: SamplingOptions, stream: Any = None
) -> dict[str, Any]:
    """Continue `prompt` until end-of-text or options.n_tokens, writing to `stream` meanwhile.

    Returns {"prompt", "text", "ids", "ended"}: text and ids are the continuation's, ids with the end-of-text.
    """
    config, device = model.model_config, next(model.parameters()).device
    ids = tokenizer.encode(prompt)
    out, written = TextOut(stream), []
    steps = generate_tokens(
        model,
        torch.tensor([ids], device=device),
        options.n_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        eos_id=tokenizer.eot_id,
    )
    if len(ids) + options.n_tokens > config.context_length:
        print(
            f"warning: prompt ({counted(len(ids), 'token')}) and continuation (up to {options.n_tokens}) exceed the "
            f"{config.context_length} tokens this model was trained to read at once",
            file=sys.stderr,
        )
    try:
        for token in steps:
            written.append(int(token))
            out.write(tokenizer.decode_bytes(written[-1:]))
    except KeyboardInterrupt:
        out.end()
        raise
    out.end()
    return {"prompt": prompt, "text": out.text, "ids": written, "ended": written[-1] == tokenizer.eot_id}
