"""Numbers and bytes that a model carries from one token to the next. Imports no torch."""

from __future__ import annotations

from arch.config import ModelConfig
from arch.errors import InputError

from .params import require_count
from .registry import entry_of

FP32, COUNTER = 4, 8  # bytes of one number of a recurrent state, and of a sequence's position counter


def decode_state(cfg: ModelConfig, n_tokens: int | None = None, activation_bytes: int = 4) -> dict[str, int]:
    """The decode state of one sequence after `n_tokens` (default: the configuration's context), all layers together.

    recurrent: numbers in the states of sequence operations, kept in fp32; activations: numbers kept as they came, in
    the activations' dtype of `activation_bytes` (LLaMA's keys and values, the inputs of Mamba's convolution); bytes: of
    both and of the position counter. What arch.model.cache.DecodeCache holds, without padding.
    Raises InputError for arguments that are no positive integers, and an architecture whose costs have no state.
    """
    n_tokens = cfg.context_length if n_tokens is None else n_tokens
    for name, value in (("n_tokens", n_tokens), ("activation_bytes", activation_bytes)):
        require_count(f"decode_state: {name}", value)
    recurrent = activations = 0
    for kind in cfg.kinds:
        entry = entry_of(kind.arch)
        if entry.state is None:
            raise InputError(f"the costs of {kind.arch!r} have no decode state: give its Entry a `state`")
        for times, sizes in ((kind.n_layers, entry.state(kind, n_tokens)), (1, entry.state_once(kind))):
            own = sizes.get("state", 0)
            recurrent += times * own
            activations += times * (sum(sizes.values()) - own)
    n_bytes = FP32 * recurrent + activation_bytes * activations + COUNTER
    return {"n_tokens": n_tokens, "recurrent": recurrent, "activations": activations, "bytes": n_bytes}
