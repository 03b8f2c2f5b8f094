"""Bytes of training on one GPU, and on disk, by named line. Imports no torch.

What DeepSpeed holds was measured tensor by tensor at ZeRO stages 0 to 2 (README.md); activations are those that
autograd keeps (activations.py). N parameters, W processes, V vocabulary, n tokens of a micro-batch.
"""

from __future__ import annotations

from arch.config import ModelConfig
from arch.errors import InputError, nearest

from . import activations
from .activations import F
from .params import count_params, layer_matrices, require_count
from .registry import entry_of

PRECISIONS = {"bf16": 2, "fp32": 4}  # bytes of an activation
BUCKET = 200_000_000  # elements of a ZeRO reduction, at most

Bytes = dict[str, float]


def training_memory(
    cfg: ModelConfig,
    *,
    micro_batch_tokens: int,
    context_length: int | None = None,
    zero_stage: int = 1,
    world_size: int = 1,
    precision: str = "bf16",
    recompute: bool = False,
    accumulate: bool = False,
) -> Bytes:
    """Peak bytes on each GPU while it trains on micro-batches of whole sequences, by line; "total" is their sum.

    parameters          4N: fp32 at every stage
    gradients           4N; stage 2: 4N / W
    gradient_partition  stage 1: 4N / W, the averaged gradients of this process's share
    reduce_bucket       stages 1 and 2: 4 bytes for each of min(N, 200 million) elements
    tied_gradient       4Vd: the head's part of a tied embedding's gradient, until the other part is there
    optimizer           stage 0: 8N; stages 1 and 2: 12N / W, Adam's moments and a second copy of the parameters
    autocast_cache      bf16: 2 bytes for each weight of a matrix product
    activations         what autograd keeps of all layers; with `recompute` the layers' inputs alone
    recomputed_layer    with `recompute`: one layer's activations, made again in the backward pass
    logits              4Vn: log-probabilities, fp32
    logits_gradient     8Vn: the loss's gradients to and through them, fp32
    not_at_once         negative: what is freed before the rest is allocated. Gradients grow as activations go, so the
                        peak lies at the loss or at the backward pass's end. `accumulate`: several micro-batches a step,
                        so that earlier gradients are there from its start
    Temporary results of single operations, the allocator's fragmentation and CUDA's own memory are not in it.

    Raises InputError for numbers that are not positive integers, less than one sequence, or an unknown name.
    """
    context = cfg.context_length if context_length is None else context_length
    numbers = {"micro_batch_tokens": micro_batch_tokens, "context_length": context, "world_size": world_size}
    for name, value in numbers.items():
        require_count(f"training_memory: {name}", value)
    if isinstance(zero_stage, bool) or zero_stage not in (0, 1, 2):
        raise InputError(f"training_memory: zero_stage must be 0, 1 or 2, not {zero_stage!r}")
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}{nearest(str(precision), list(PRECISIONS))}")
    if micro_batch_tokens < context:
        raise InputError(f"micro_batch_tokens={micro_batch_tokens} is less than one sequence of {context} tokens")
    sequences, a = micro_batch_tokens // context, PRECISIONS[precision]
    n, share = float(count_params(cfg).total), 1.0 / world_size
    lines = {"parameters": F * n, "gradients": F * n * (share if zero_stage == 2 else 1.0)}
    if zero_stage:
        lines["gradient_partition"] = F * n * share if zero_stage == 1 else 0.0
        lines["reduce_bucket"] = F * min(n, float(BUCKET))
    head = float(cfg.vocab_size * cfg.d_model)
    lines["tied_gradient"] = F * head if cfg.tie_embeddings else 0.0
    lines["optimizer"] = 3 * F * n * share if zero_stage else 2 * F * n
    cache = 2.0 * matrix_weights(cfg) if precision == "bf16" else 0.0
    lines["autocast_cache"] = cache
    layer = sum(layer_activations(cfg, context, sequences, a).values())
    rest = sum(outer_activations(cfg, context, sequences, a).values())
    tokens = float(sequences * context)
    kept = cfg.n_layers * (a * tokens * cfg.d_model if recompute else layer)
    lines |= {"activations": kept + rest, "recomputed_layer": layer if recompute else 0.0}
    lines |= {"logits": F * tokens * cfg.vocab_size, "logits_gradient": 2 * F * tokens * cfg.vocab_size}
    gradients = sum(lines.get(name, 0.0) for name in ("gradients", "gradient_partition", "reduce_bucket"))
    held, saved = lines["parameters"] + lines["optimizer"], kept + rest
    # the loss: logits, logits in fp32, log-probabilities; its backward: log-probabilities and two gradients
    forward = cache + saved + (2 * F + a * (a < F)) * tokens * cfg.vocab_size
    backward = (2.0 * head * (cache > 0) if recompute else cache) + saved + 3 * F * tokens * cfg.vocab_size
    end = gradients + lines["tied_gradient"] + rest + layer
    peak = held + max(max(forward, backward) + (gradients if accumulate else 0.0), end)
    lines["not_at_once"] = peak - sum(lines.values())
    lines = {name: value for name, value in lines.items() if value}
    return lines | {"total": sum(lines.values())}


def layer_activations(cfg: ModelConfig, context: int, sequences: int, activation_bytes: int) -> Bytes:
    """What autograd keeps of one layer's forward pass, by module. Raises InputError where a plugin does not tell."""
    entry = entry_of(cfg.arch)
    mixer = entry.activations or activations.MIXERS.get(cfg.arch)
    if mixer is None:
        raise InputError(f"the costs of {cfg.arch!r} tell no activations: give its Entry `activations`")
    tokens = float(sequences * context)
    lines = {"norms": (1 + entry.channel_mixer) * tokens * activations.norm(cfg, cfg.d_model)}
    lines |= {name: sequences * size for name, size in mixer(cfg, context, activation_bytes).items()}
    lines["mixer.rotation"] = activations.rotation(cfg, context)
    if entry.channel_mixer:
        lines["ffn"] = tokens * activations.channel(cfg, activation_bytes)
    return {name: size for name, size in lines.items() if size}


def outer_activations(cfg: ModelConfig, context: int, sequences: int, activation_bytes: int) -> Bytes:
    """What autograd keeps outside the layers, but for the logits: token ids and targets, Tpe, final norm and the
    head's input."""
    tokens = float(sequences * context)
    final = activations.norm(cfg, cfg.d_model) + activation_bytes * cfg.d_model
    lines = {"embedding": 16 * tokens, "final_norm": tokens * final}
    if cfg.arch == "cosformer2":
        lines["tpe"] = sequences * activations.tpe(cfg, context, sequences)
        lines["tpe.kernel"] = activations.toeplitz(cfg, context)
    return lines


def matrix_weights(cfg: ModelConfig) -> float:
    """Weights that enter matrix products with activations, the head's among them: autocast's cache holds them."""
    return float(cfg.n_layers * sum(layer_matrices(cfg).values()) + cfg.vocab_size * cfg.d_model)


def kept_fp32(cfg: ModelConfig) -> int:
    """Parameters that an artifact keeps in fp32 whatever its dtype: vectors and what sets time scales."""
    modules = count_params(cfg).by_module
    entry = entry_of(cfg.arch)
    names = {*entry.vectors(cfg), "norms", "final_norm", "lower_bound", "tpe.decay"}
    names -= {name for name in names if name.endswith(".factors")}  # matrices, of HGRN1's expansions
    size = sum(modules.get(name, 0) for name in names)
    # of a convolution's weights and biases the weights are a matrix
    return size - modules.get("mixer.conv", 0) * cfg.conv_width // (cfg.conv_width + 1)


def artifact_bytes(cfg: ModelConfig, dtype: str = "bf16") -> float:
    """Bytes of an artifact checkpoint's weights; names and shapes (about 100 a tensor), configuration and tokenizer
    lie beside them. Raises InputError for an unknown dtype."""
    if dtype not in PRECISIONS:
        raise InputError(f"unknown dtype {dtype!r}{nearest(str(dtype), list(PRECISIONS))}")
    wide = kept_fp32(cfg)
    return F * wide + PRECISIONS[dtype] * float(count_params(cfg).total - wide)


def state_bytes(cfg: ModelConfig, zero_stage: int = 1) -> float:
    """Bytes of one saved DeepSpeed state, all processes' files together: parameters and Adam's moments, 12N; at stages
    1 and 2 the second copy of the parameters too, 16N. Raises InputError for another stage."""
    if isinstance(zero_stage, bool) or zero_stage not in (0, 1, 2):
        raise InputError(f"state_bytes: zero_stage must be 0, 1 or 2, not {zero_stage!r}")
    return (4 * F if zero_stage else 3 * F) * float(count_params(cfg).total)
