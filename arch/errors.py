"""InputError, the error of a bad input, and hints at valid names."""

import errno
import reprlib

NEAR = 0.55  # of two names' likeness, from which on one may be meant by the other
SHORT, NEAR_SHORT = 3, 0.5  # characters of a short name, and the same of it: one of two letters may be wrong
FULL = (errno.ENOSPC, errno.EDQUOT)  # of an OSError: a disk, or a share of it

ELSEWHERE = {  # name in other tools: name here
    **dict.fromkeys(("learning_rate", "max_lr", "peak_lr"), "lr"),
    **dict.fromkeys(("batch_size", "global_batch_size", "total_batch_size"), "batch_tokens"),
    **dict.fromkeys(("micro_batch_size", "per_device_train_batch_size"), "micro_batch_tokens"),
    **dict.fromkeys(("total_tokens", "train_tokens", "max_train_tokens"), "n_tokens"),
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_ratio"), "warmup_tokens"),
    **dict.fromkeys(("lr_scheduler", "lr_scheduler_type", "lr_decay_style"), "schedule"),
    **dict.fromkeys(("max_grad_norm", "gradient_clipping", "clip_grad"), "grad_clip"),
    **dict.fromkeys(("dtype", "bf16", "fp16", "mixed_precision"), "precision"),
    **dict.fromkeys(("adam_betas", "beta1", "beta2", "adam_beta1", "adam_beta2"), "betas"),
    **dict.fromkeys(
        ("seq_len", "seq_length", "sequence_length", "max_seq_len", "block_size", "max_position_embeddings"),
        "context_length",
    ),
    **dict.fromkeys(("hidden_size", "n_embd", "dim", "width", "model_dim"), "d_model"),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layer", "depth"), "n_layers"),
    **dict.fromkeys(("num_heads", "n_head", "num_attention_heads"), "n_heads"),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "d_ff"), "d_ffn"),
    **dict.fromkeys(("models", "model_types"), "archs"),
    **dict.fromkeys(("dataset", "data_path", "path", "files"), "source"),
}


class InputError(ValueError):
    """A bad input. The message is one line: what is wrong, where, and what to do.

    Command lines print the message on stderr and exit with code 2; nothing is half-written.
    """


def shown(value: object) -> str:
    """`value` for a message, shortened where it is long or deeply nested."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 120
    short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxlevel = 4
    return short.repr(value)


def nearest(name: str, valid: list[str]) -> str:
    """`" (did you mean 'x'?)"` for the valid name closest to `name`, or the list of valid names; "" where none is."""
    import difflib

    if not valid:
        return ""
    if len(name) > 200:  # no typing error
        return f" (valid: {', '.join(valid)})"
    other_case = [word for word in valid if word.lower() == name.lower()]
    meant = other_case[0] if other_case else ELSEWHERE.get(name.lower().replace("-", "_"))
    match = (
        [meant]
        if meant in valid
        else difflib.get_close_matches(name, valid, n=1, cutoff=NEAR_SHORT if len(name) <= SHORT else NEAR)
    )
    return f" (did you mean {match[0]!r}?)" if match else f" (valid: {', '.join(valid)})"


def choice(name: str, valid: list[str]) -> str:
    """`" (valid: x, y; did you mean 'x'?)"`: all choices, and the nearest."""
    meant = nearest(name, valid)
    return f" (valid: {', '.join(valid)}{'; ' + meant[2:-1] if meant.startswith(' (did') else ''})"
