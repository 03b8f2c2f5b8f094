"""Bytes of training on one GPU, and on disk, by named line. Imports no torch.

What DeepSpeed holds was measured tensor by tensor at ZeRO stages 0 to 3 (README.md); activations are those that
autograd keeps: by_kernels.py, or of the plain forms activations.py. N parameters, W processes, V vocabulary, n tokens
of a micro-batch, a bytes of an activation.
"""

from __future__ import annotations

import math
from collections import Counter

from arch.config import ModelConfig
from arch.encoder import scans_of
from arch.errors import InputError, choice
from arch.kernel_config import CAST_AHEAD

from . import activations, by_kernels
from .activations import F
from .entry import Memory, summed
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
    sequence_processes: int = 1,
    precision: str = "bf16",
    recompute: float = 0.0,
    accumulate: bool = False,
    kernels: bool = True,
) -> Bytes:
    """Peak bytes on each GPU while it trains on micro-batches of whole sequences, by line; "total" is their sum.

    kernels: what a GPU of compute capability 8.0 or more takes by itself, where Triton is installed; False: the plain
    forms of all operations, as on a CPU. sequence_processes: how many processes share each sequence, and so the
    activations of a micro-batch; a window's mask counts as that of a part, and handed-on states do not.

    parameters          4N: fp32; stage 3: 4N / W
    gradients           4N; stages 2 and 3: 4N / W
    gradient_partition  stage 1: 4N / W, the averaged gradients of this process's share
    reduce_bucket       4 bytes for each of min(N, 200 million) elements; stage 3: of a layer's at most
    gathered            stage 3, of several processes, in fp32: the embedding, a layer and the one fetched ahead, at a
                        layer's end its gradients too; or, untied, the head and what is fetched ahead of it
    tied_gradient       4Vd: the head's part of a tied embedding's gradient, until the other part is there
    optimizer           stage 0: 8N; else 12N / W, Adam's moments and a second copy of the parameters
    autocast_cache      bf16: 2 bytes for each weight of a matrix product; with kernels of the widest product alone, and
                        of weights that autocast itself copies (of all of a small model, arch/kernel_config.CAST_AHEAD)
    activations         what autograd keeps of all layers; of the recomputed ones, the first, the inputs alone
                        (`recompute`: their share of the layers)
    recomputed_layer    where all layers are recomputed: one layer's activations, made again in the backward pass
    logits              kernels: aV for each of at most 16,384 tokens, two groups of rows; else 4Vn: log-probabilities
    logits_gradient     without kernels: 8Vn, the loss's gradients to and through them, fp32
    loss                kernels: the hidden states, and in bf16 the head's copy
    loss_gradients      kernels: of the hidden states and, fp32, the head, made in the forward pass
    temporaries         kernels: the largest results of single operations in a layer's backward pass
    not_at_once         negative: what is freed before the rest is allocated. Gradients grow as activations go, so the
                        peak lies at the loss or at the backward pass's end. `accumulate`: several micro-batches a step,
                        so that earlier gradients are there from its start
    Other temporary results of single operations, the allocator's fragmentation and CUDA's own memory are not in it. Nor
    is what only Hopper's kernels hold: the gradient of the MLP's input beside the others (with `recompute` 2 % of the
    peak of 160m), at widths up to 256 two more tensors as wide (1.5 % of the peak of 8 layers, 8 % of that of one), and
    in TNL silu of q and k (8 %).

    Raises InputError for numbers that are not positive integers, less than one sequence, or an unknown name.
    """
    context = cfg.context_length if context_length is None else context_length
    numbers = {"micro_batch_tokens": micro_batch_tokens, "context_length": context, "world_size": world_size}
    for name, value in (numbers | {"sequence_processes": sequence_processes}).items():
        require_count(f"training_memory: {name}", value)
    if isinstance(zero_stage, bool) or zero_stage not in range(4):
        raise InputError(f"training_memory: zero_stage must be 0, 1, 2 or 3, not {zero_stage!r}")
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}{choice(str(precision), list(PRECISIONS))}")
    if not 0 <= recompute <= 1:
        raise InputError(f"training_memory: recompute must be a share of the layers, 0 to 1, not {recompute!r}")
    if micro_batch_tokens < context:
        raise InputError(f"micro_batch_tokens={micro_batch_tokens} is less than one sequence of {context} tokens")
    sequences, a = micro_batch_tokens // context, PRECISIONS[precision]
    if context % sequence_processes or world_size % sequence_processes:
        raise InputError(
            f"sequence_processes={sequence_processes} must divide the {context} tokens of a sequence and "
            f"world_size={world_size}"
        )
    context //= sequence_processes
    documents, context, outputs = cfg.read_as(context)
    outputs, sequences = outputs * sequences, documents * sequences
    n, share = float(count_params(cfg).total), 1.0 / world_size
    lines = {
        "parameters": F * n * (share if zero_stage == 3 else 1.0),
        "gradients": F * n * (share if zero_stage > 1 else 1.0),
        "gradient_partition": F * n * share if zero_stage == 1 else 0.0,
    }
    of_a_layer, half = F * max(map(_layer_weights, cfg.kinds)), F * max(map(_half_of_layer, cfg.kinds))
    if zero_stage:
        lines["reduce_bucket"] = min(F * n, float(F * BUCKET), of_a_layer if zero_stage == 3 else math.inf)
    head, tokens = float(cfg.n_outputs * cfg.head_width), float(sequences * context)
    lines["tied_gradient"] = F * head if cfg.tie_embeddings else 0.0
    lines["optimizer"] = 3 * F * n * share if zero_stage else 2 * F * n
    layers = [sum(layer_activations(kind, context, sequences, a, kernels).values()) for kind in cfg.kinds]
    if sequence_processes > 1:  # softmax has its output by heads, and after the exchange by tokens
        layers = [
            size + a * tokens * kind.d_model * (not kind.constant_state)
            for kind, size in zip(cfg.kinds, layers, strict=True)
        ]
    layer = max(layers)
    rest = sum(outer_activations(cfg, context, sequences, a, kernels, outputs).values())
    carried = (by_kernels.stream(cfg, a) if kernels else a) * tokens * cfg.d_model
    n_recomputed = cfg.n_recomputed(recompute)
    all_recomputed = n_recomputed == cfg.n_layers
    whole = Counter(kind.arch for kind, _ in cfg.by_layer[n_recomputed:])  # layers that keep their activations
    saved = (
        n_recomputed * carried
        + sum(whole[kind.arch] * size for kind, size in zip(cfg.kinds, layers, strict=True))
        + rest
    )
    copies = 2.0 * (matrix_weights(cfg) - head) if precision == "bf16" else 0.0  # in bf16, of the layers
    gradients = sum(lines.get(name, 0.0) for name in ("gradients", "gradient_partition", "reduce_bucket"))
    # the first layer's backward pass goes through its MLP before its gradients and the embedding's are there
    last = layer - (F * head + of_a_layer) * (share if zero_stage > 1 else 1.0)
    if kernels:
        cached = 2.0 * sum(kind.n_layers * _autocast_copies(kind) for kind in cfg.kinds) * (copies > 0)
        if copies and not n_recomputed and zero_stage < 3 and copies <= 2 * CAST_AHEAD:
            cached = copies
        cast = 0.0 if cached == copies else half / 2
        lines |= {"autocast_cache": cached + cast} | by_kernels.loss(cfg, outputs, a)
        forward = cached + saved + lines["logits"] + lines["loss"] + lines["loss_gradients"]
        lines["temporaries"] = max(_temporaries(kind, tokens, a) for kind in cfg.kinds)
        # the loss's gradients are scaled; then the last layer's backward pass, for which it is computed again: its
        # input is one of those kept, and the final norm's is gone
        cached_whole = cached if not n_recomputed else 2.0 * sum(whole[k.arch] * _autocast_copies(k) for k in cfg.kinds)
        left = (layer - 2 * carried if all_recomputed else cached_whole * (copies > 0)) + cast + lines["temporaries"]
        backward = saved + lines["loss_gradients"] + max(lines["loss_gradients"], left)
        last += cast + lines["temporaries"]
    else:
        lines |= {"autocast_cache": copies + 2.0 * head * (copies > 0)}
        lines |= {"logits": F * outputs * cfg.n_outputs, "logits_gradient": 2 * F * outputs * cfg.n_outputs}
        # the loss: logits, logits in fp32, log-probabilities; its backward: log-probabilities and two gradients
        forward = lines["autocast_cache"] + saved + (2 * F + a * (a < F)) * outputs * cfg.n_outputs
        copied = head + sum(whole[kind.arch] * _layer_weights(kind) for kind in cfg.kinds)
        backward = 2.0 * copied * (copies > 0) + saved + 3 * F * outputs * cfg.n_outputs
    lines |= {"activations": saved, "recomputed_layer": layer if all_recomputed else 0.0}
    held = lines["parameters"] + lines["optimizer"]
    if zero_stage == 3:  # gradients have their places from the start
        held, gradients = held + gradients, 0.0
        # one process gathers nothing: its partition is the whole weight
        embedding = F * cfg.embedded * cfg.d_model  # held from the first layer to the last
        in_layer = embedding + min(cfg.n_layers, 2) * of_a_layer
        at_loss = in_layer if cfg.tie_embeddings else F * head + max(of_a_layer, embedding)
        at_end = in_layer + of_a_layer  # of a layer: its gradients, when its activations are gone
        if world_size == 1:
            at_loss = in_layer = at_end = 0.0
        lines["gathered"] = max(at_loss, at_end)
        kept = saved + lines.get("loss_gradients", 0.0) - (0.0 if all_recomputed else layer)
        forward, backward = forward + at_loss, max(backward + max(at_loss, in_layer), kept + at_end)
        last += in_layer
    end = gradients + lines["tied_gradient"] + rest + max(last, 0.0)
    peak = held + max(max(forward, backward) + (gradients if accumulate else 0.0), end)
    lines["not_at_once"] = peak - sum(lines.values())
    lines = {name: value for name, value in lines.items() if value}
    return lines | {"total": sum(lines.values())}


def _memory_of(cfg: ModelConfig) -> Memory:
    memory = entry_of(cfg.arch).memory
    if memory is None:
        raise InputError(f"the costs of {cfg.arch!r} have no activations: give its Entry a `memory`")
    return memory


def layer_activations(cfg: ModelConfig, context: int, sequences: int, activation_bytes: int, kernels: bool) -> Bytes:
    """What autograd keeps of the forward pass of one layer of a kind, by module; of an encoder's the mixer's of all its
    scans (the output projection's input, their sum, counts as often). Raises InputError where a plugin has none."""
    entry, memory, a = entry_of(cfg.arch), _memory_of(cfg), activation_bytes
    tokens, (scans, lines_of_scan, length) = float(sequences * context), scans_of(cfg, context)
    read = scans * lines_of_scan * sequences
    if kernels and memory.by_kernels is not None:
        mixer = memory.by_kernels(cfg, length, a, read)
    else:
        mixer = memory.activations(cfg, length, a)
    lines = {"norms": (1 + entry.has_mlp) * tokens * _norm(cfg, a, kernels)}
    lines |= {name: read * size for name, size in mixer.items()}
    lines["mixer.rotation"] = memory.shared(cfg, length, kernels)
    if entry.has_mlp:
        fused = kernels and entry.gated_mlp
        by_token = by_kernels.mlp(cfg, a) if fused else activations.mlp(cfg, a, memory.mlp_tensors)
        lines["ffn"] = tokens * by_token
    return {name: size for name, size in lines.items() if size}


def _autocast_copies(cfg: ModelConfig) -> float:
    """Weights of a layer of which autocast keeps bf16 copies to the forward's end."""
    names = _memory_of(cfg).autocast_copies(cfg)
    return float(sum(size for name, size in layer_matrices(cfg).items() if name in names))


def _temporaries(cfg: ModelConfig, tokens: float, a: int) -> float:
    """The most that a layer's backward pass holds beside what it reads, with kernels."""
    own = _memory_of(cfg).temporaries
    return tokens * 2 * a * cfg.d_ffn if own is None else own(cfg, tokens, a)


def _norm(cfg: ModelConfig, a: int, kernels: bool) -> float:
    """A norm of the residual stream, by token."""
    if kernels:
        return by_kernels.norm(cfg, cfg.d_model, by_kernels.stream(cfg, a))
    return activations.norm(cfg, cfg.d_model)


def outer_activations(
    cfg: ModelConfig, context: int, sequences: int, activation_bytes: int, kernels: bool, outputs: int | None = None
) -> Bytes:
    """What autograd keeps outside the layers, but for the loss: token ids (of images in patches the pixels, and what
    the embedding reads of them), Tpe, rotary angles, the final norm; without kernels the targets and the head's input
    too. outputs: of the head, in all; None: one for each token."""
    tokens, a = float(sequences * context), activation_bytes
    lines = {"embedding": 8 * tokens, "final_norm": tokens * _norm(cfg, a, kernels)}
    if cfg.encoder is not None and cfg.encoder.patch is not None:
        lines["embedding"] = (8 + a) * tokens * cfg.embedded
    if not kernels:
        outputs = sequences * context if outputs is None else outputs
        lines |= {"targets": 8.0 * outputs, "head": float(outputs * a * cfg.head_width)}

    def once(kind: ModelConfig) -> Bytes:
        scans, lines_of_scan, length = scans_of(kind, context)
        return _memory_of(kind).once(kind, length, a, scans * lines_of_scan * sequences, kernels)

    lines |= summed(once(kind) for kind in cfg.kinds)
    return {name: size for name, size in lines.items() if size}


def matrix_weights(cfg: ModelConfig) -> float:
    """Weights that enter matrix products with activations, the head's among them: autocast's cache holds them."""
    layers = sum(kind.n_layers * _layer_weights(kind) for kind in cfg.kinds)
    return float(layers + cfg.n_outputs * cfg.head_width)


def _layer_weights(kind: ModelConfig) -> int:
    return sum(layer_matrices(kind).values())


def _half_of_layer(kind: ModelConfig) -> int:
    """Of mixer and MLP the one that has more: stage 3 gathers each when it is called."""
    mlp = sum(size for name, size in layer_matrices(kind).items() if name.startswith("ffn"))
    return max(mlp, _layer_weights(kind) - mlp)


def kept_fp32(cfg: ModelConfig) -> int:
    """Parameters that a checkpoint keeps in fp32 whatever its dtype: vectors and what sets time scales."""
    modules = count_params(cfg).by_module
    kept = modules.get("norms", 0) + modules.get("final_norm", 0)
    for kind in cfg.kinds:
        entry = entry_of(kind.arch)
        kept += kind.n_layers * (sum(entry.vectors(kind).values()) - entry.rounded(kind)) + entry.once_fp32(kind)
    return kept


def checkpoint_bytes(cfg: ModelConfig, dtype: str = "bf16") -> float:
    """Bytes of a checkpoint's weights; names and shapes (about 100 a tensor), configuration and tokenizer
    lie beside them. Raises InputError for an unknown dtype."""
    if dtype not in PRECISIONS:
        raise InputError(f"unknown dtype {dtype!r}{choice(str(dtype), list(PRECISIONS))}")
    wide = kept_fp32(cfg)
    return F * wide + PRECISIONS[dtype] * float(count_params(cfg).total - wide)


def state_bytes(cfg: ModelConfig) -> float:
    """Bytes of one training state, all processes' pieces together: parameters and Adam's moments in fp32, 12N. Names
    and places (about 400 a parameter and process) lie beside them."""
    return 3 * F * float(count_params(cfg).total)
