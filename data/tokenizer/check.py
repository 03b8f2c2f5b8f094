"""Whether a tokenizer is the one that something was made with."""

from __future__ import annotations

from arch.errors import InputError

from .base import Tokenizer


def refuse_another(tokenizer: Tokenizer, identity: str, what: str) -> None:
    """Raise InputError where `what` was made with a tokenizer of another identity."""
    if identity != tokenizer.identity:
        raise InputError(
            f"{what} was made with another tokenizer than the {tokenizer.name} that is here (identity {identity[:12]}, "
            f"here {tokenizer.identity[:12]}): put that one back, or start a study of another name"
        )
