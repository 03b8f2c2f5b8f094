"""Our models under lm-eval's Hugging Face class, with what it leaves out: counts of truncations and progress."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from arch.hf.auto import LinearScalingConfig, LinearScalingForCausalLM
from arch.model.lm import LanguageModel
from data.hf_tokenizer import write_tokenizer
from data.tokenizer import Tokenizer


def hf_model(model: LanguageModel) -> LinearScalingForCausalLM:
    """The same modules in transformers' class; no weight is copied."""
    with torch.device("meta"):
        wrapped = LinearScalingForCausalLM(LinearScalingConfig(**model.model_config.to_dict()))
    wrapped.decoder, wrapped.lm_head = model.decoder, model.lm_head
    return wrapped.eval()


def hf_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer in transformers' class, read from the files that every checkpoint carries."""
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(tokenizer, Path(directory))
        opened: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory)
    return opened


class CountingLM(HFLM):
    """HFLM that reports its progress and counts what it cut.

    max_length: tokens of a window, prompt and continuation together. encoded: text -> ids, shared by the checkpoints
    of one tokenizer, so that every text is tokenised once. n_truncated: requests that lost tokens on their left;
    n_requests: all of them, windows of rolling perplexity included.
    """

    def __init__(
        self, model: Any, tokenizer: Any, max_length: int, batch_size: int, say: Callable[[float, str], None],
        encoded: dict[tuple[str, Any], list[int]], max_gen_toks: int,
    ) -> None:  # fmt: skip
        super().__init__(
            pretrained=model, tokenizer=tokenizer, backend="causal", max_length=max_length, batch_size=batch_size
        )
        self._gen_toks = max_gen_toks
        self._say, self._encoded = say, encoded
        self.n_truncated = self.n_requests = self._done = 0

    @property
    def max_gen_toks(self) -> int:
        return self._gen_toks

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None, **kwargs: Any
    ) -> list[int]:
        key = (string, add_special_tokens)
        if key not in self._encoded:
            self._encoded[key] = super().tok_encode(string, add_special_tokens, **kwargs)
        ids = self._encoded[key]
        return ids[-left_truncate_len:] if left_truncate_len else list(ids)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None) -> Any:
        self._begin(len(requests), sum(len(request[1]) + len(request[2]) > self.max_length + 1 for request in requests))
        return super()._loglikelihood_tokens(requests, True, override_bs)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        return super().loglikelihood_rolling(requests, True)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        return super().loglikelihood(requests, True)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        room = self.max_length - self._gen_toks
        self._begin(len(requests), sum(len(self.tok_encode(request.args[0])) > room for request in requests))
        return super().generate_until(requests, True)

    def _model_call(self, inps: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        logits: torch.Tensor = super()._model_call(inps, **kwargs)
        self._progress(len(inps))
        return logits

    def _model_generate(self, context: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # a row ends with its end-of-text, also where others of its batch go on: lm-eval would score what stands behind
        tokens = super()._model_generate(context, *args, eos_token_id=self.eot_token_id, **kwargs)
        self._progress(len(context))
        return tokens

    def _begin(self, requests: int, truncated: int) -> None:
        self.n_requests += requests
        self.n_truncated += truncated

    def _progress(self, rows: int) -> None:
        self._done += rows
        self._say(min(1.0, self._done / max(self.n_requests, 1)), f"{self._done}/{self.n_requests} requests")
