"""What every architecture is held to, those of plugins and patterns of studies too: `python -m scaling.check ARCH
[--plugin MODULE] [--study FILE]`. Before a study trains, those of its architectures that are not of this package pass
the QUICK checks at their own depth (`check_models`).

Each check builds tiny models in fp64, away from their initialisation, and raises AssertionError with what differs: the
layer, the tensor and both numbers. Passing says that a mixer keeps the contract of arch.model.mixer.Mixer and that its
costs are those of the real model; it does not say that the mixer computes what its paper says.
"""

from __future__ import annotations

import copy
import math
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from arch.arguments import Parser, add_plugin, plugin_words
from arch.config import ARCHS, NORMS, ModelConfig
from arch.errors import InputError
from arch.model.cache import LayerCache
from arch.model.lm import LanguageModel, build_model, empty_of, load_model
from arch.model.mixer import Mixer, Stream, mixer_of
from arch.no_compiler import keep_from_the_compiler
from arch.presets import SIZES, preset
from arch.registry import Architecture, architecture
from flops import Entry, count_params, decode_state
from flops.forward import backward_products, forward_products, layers_backward, layers_products, unseen_products
from flops.params import layer_params
from flops.registry import entries_of

from .study.file import register_architectures
from .study.run import same_model

if TYPE_CHECKING:
    from .study.run import RunSpec

SIZE, CHUNK, LAYERS = "25k", 32, 2
LONGEST = 512  # tokens of the longest text, which is as long as a model's context where that is shorter
OTHER_SHAPES = ({"d_model": 72, "n_heads": 3, "d_ffn": 56}, {"d_model": 48})  # another width, heads of other widths
LENGTH = 70  # tokens: two chunks and a rest
SIDE = 4  # pixels of an image's rows and columns
DOCUMENTS = [1, 37, 64, 2, 32]  # tokens of packed documents: one token, across chunks, aligned with them
RTOL, ATOL = 1e-9, 1e-11
SINGLE = 0.02  # of a tensor's largest entry, on a GPU: tensor cores read fp32 to 10 bits
SMALL = {"d_model": 32, "n_heads": 2, "d_ffn": 88, "chunk_size": CHUNK}
TORCH = str(Path(torch.__file__).parent)
OWN = tuple(str(Path(__file__).parents[1] / folder) + "/" for folder in ("arch", "flops", "scaling"))
DEEPEST = 16  # layers of a model that is checked before a study trains
LARGEST = 5_000_000  # its parameters, where its options need the width of the study
STEP, OFF = 1e-5, 0.01  # of parameters, in units of their size; how far a gradient may be from the difference in loss
GROUPS = 8  # of layers, whose parameters step together


class Skipped(Exception):
    """There is nothing to check: why."""


def small(arch: str) -> ModelConfig:
    """What the checks are of, for an architecture by name: a tiny preset, of a pattern with whole periods."""
    layers = len(architecture(arch).layers)
    changes = {"n_layers": -(-LAYERS // layers) * layers} if layers else {}
    return preset(arch, SIZE, chunk_size=CHUNK, **changes)


def moved_model(config: ModelConfig) -> LanguageModel:
    """A tiny model whose gates are not all alike, as they are at the start: in fp64, or on a GPU where layers run on
    GPUs alone, whose kernels take no fp64."""
    model = build_model(config.replace(init_std=0.1), seed=1)
    model = model if on_a_gpu(config) else model.double()
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
            parameter.add_(0.05 * noise.to(parameter.dtype))
    return placed(model)


def on_a_gpu(config: ModelConfig) -> bool:
    """Whether a model is checked on this machine's GPU, as layers that run on GPUs alone are."""
    return torch.cuda.is_available() and any(architecture(kind.arch).gpus_alone for kind in config.kinds)


def placed(model: LanguageModel) -> LanguageModel:
    """The model where it is checked; what it reads goes there too."""
    if not on_a_gpu(model.model_config):
        return model

    def moved(
        module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, {name: value.cuda() if isinstance(value, Tensor) else value for name, value in named.items()}

    model.register_forward_pre_hook(moved, with_kwargs=True)
    return model.cuda()


def random_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    """Token ids [rows, length] of the tiny presets' vocabulary, without the last one."""
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, expected: Tensor, what: str) -> None:
    """Raise AssertionError where two tensors differ, with the place and both numbers."""
    assert actual.shape == expected.shape, f"{what} has shape {list(actual.shape)}, not {list(expected.shape)}"
    exact = actual.dtype == torch.float64
    rtol, atol = (RTOL, ATOL) if exact else (0.0, SINGLE * float(expected.abs().max() if expected.numel() else 0.0))
    off = ((actual - expected).abs() - rtol * expected.abs()).nan_to_num(nan=float("inf"))
    if off.numel() and (worst := int(off.argmax())) is not None and off.flatten()[worst] > atol:
        at = [int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape)]
        numbers = f"{actual.flatten()[worst]:.9g}, not {expected.flatten()[worst]:.9g}"
        raise AssertionError(f"{what}, {list(actual.shape)}, is {numbers}, at {at}")


class Reading:
    """A forward pass: its logits, what each layer's mixer adds to the stream, and the cache. given: as of the model."""

    def __init__(self, model: LanguageModel, ids: Tensor, gradients: bool = False, **given: Any) -> None:
        self.mixed: list[Tensor] = []
        hooks = [
            module.register_forward_hook(lambda module, inputs, out: self.mixed.append(out[0].detach()))
            for module in model.modules()
            if isinstance(module, Mixer)
        ]
        try:
            with torch.set_grad_enabled(gradients):
                out = model(input_ids=ids, **given)
        finally:
            for hook in hooks:
                hook.remove()
        self.logits, self.cache = out.logits.detach(), out.cache


def named(config: ModelConfig, layer: int) -> str:
    return f"layer {layer} ({config.by_layer[layer][0].arch})"


def check_parameters(config: ModelConfig) -> None:
    """flops.count_params is the number of parameters."""
    with torch.device("meta"):
        model = empty_of(config)
    counted, real = count_params(config).total, sum(parameter.numel() for parameter in model.parameters())
    if counted == real:
        return
    for index, (layer, (kind, _)) in enumerate(zip(model.decoder.layers, config.by_layer, strict=True)):
        of_layer, own = sum(layer_params(kind).values()), {n: list(p.shape) for n, p in layer.named_parameters()}
        if of_layer != (there := sum(parameter.numel() for parameter in layer.parameters())):
            raise AssertionError(
                f"{named(config, index)}: flops counts {of_layer:,} parameters, the layer has {there:,}: {own}"
            )
    raise AssertionError(f"flops counts {counted:,} parameters, the model has {real:,} ({config})")


def check_sizes(config: ModelConfig) -> None:
    """The same of every preset that the architecture can have, and with untied head and every norm."""
    for norm in NORMS:
        check_parameters(config.replace(tie_embeddings=False, norm=norm))
    for size in () if config.layers else SIZES:  # a pattern fits some alone
        with suppress(InputError):
            other = preset(config.arch, size)
            check_parameters(other)


def check_flop(config: ModelConfig) -> None:
    """flops' products are what torch counts: forward exactly, backward to 5 %, at four lengths, one token too, and at
    another width."""
    if any(entry.core is None for entry in entries_of(config)):
        raise Skipped("the costs declare no FLOP of the sequence operation")
    if on_a_gpu(config):
        raise Skipped("torch's counter does not see kernels")
    short = config.shortened(LAYERS)
    shapes = [(config, 1, LENGTH), (short, 2, most_tokens(config)), (short, 3, 20), (short, 2, 1)]
    other = first_that_builds(short, OTHER_SHAPES)
    for shape, rows, length in [*shapes, *([(other, 1, LENGTH)] if other else [])]:
        check_flop_at(shape, rows, length)


def check_flop_at(config: ModelConfig, rows: int, length: int) -> None:
    """`check_flop` for so many sequences of a length."""
    model = build_model(config, seed=0)
    layers = f"{type(model).__name__}.decoder.layers"
    names = {f"{layers}.{index}": index for index in range(config.n_layers)}
    forward, backward = products_of_torch(model, random_ids(rows, length))
    of_kinds, (documents, positions, _) = [kind for kind, _ in config.by_layer], config.read_as(length)
    each = rows * documents
    unseen = [each * sum(unseen_products(kind, positions).values()) / kind.n_layers for kind in of_kinds]
    passes = (
        ("forward", forward, layers_products, forward_products),
        ("backward", backward, layers_backward, backward_products),
    )
    for name, real, of_layers, of_model in passes:
        counted = {
            key: each * sum(of_layers(of_kinds[index], positions).values()) / of_kinds[index].n_layers
            for key, index in names.items()
        } | {"Global": sum(of_model(config, length, rows).values())}
        for key, flop in counted.items():
            hidden = unseen[names[key]] if key in names else sum(unseen)
            what = named(config, names[key]) if key in names else "the whole model"
            width = f"{config.d_model} wide, {rows} x {length} tokens"
            check_products(f"{what}: {width}: {name}", flop, hidden, real.get(key, 0), name)


def most_tokens(config: ModelConfig) -> int:
    """Tokens of a text as long as a model is trained on, up to LONGEST."""
    return max(LENGTH, min(config.context_length, LONGEST))


def products_of_torch(model: LanguageModel, ids: Tensor) -> tuple[dict[str, int], dict[str, int]]:
    """FLOP by module of a forward and of a backward pass, as torch counts them; "Global" is all. Each layer's backward
    pass is one of that layer alone, on the inputs that it has in the model."""
    keep_from_the_compiler()  # before the counter's class is made
    from torch.utils.flop_counter import FlopCounterMode

    inputs: dict[str, tuple[object, ...]] = {}
    of_model = f"{type(model).__name__}.decoder.layers"
    layers = {f"{of_model}.{index}": layer for index, layer in enumerate(model.decoder.layers)}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: inputs.setdefault(name, given) and None)
        for name, layer in layers.items()
    ]
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False, depth=4) as counter:
            loss = model(input_ids=ids, targets=ids % model.model_config.n_outputs).loss
        forward = {name: sum(flop.values()) for name, flop in counter.get_flop_counts().items()}
        for hook in hooks:
            hook.remove()
        backward = {}
        for name, layer in layers.items():
            given = [v.detach().requires_grad_() if isinstance(v, Tensor) else v for v in inputs[name]]
            added = [v.sum() for v in layer(*given) if isinstance(v, Tensor) and v.requires_grad]
            with FlopCounterMode(display=False) as counter:
                torch.stack(added).sum().backward(retain_graph=True)
            backward[name] = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            loss.backward()
    return forward, backward | {"Global": counter.get_total_flops()}


def check_products(what: str, counted: float, unseen: float, real: int, name: str) -> None:
    """Raise AssertionError where torch counts other FLOP in one pass. unseen: of the forward pass, what torch does not
    see; the gradient of a triangular solve is a solve and a product, so that of twice these it may see some."""
    forward = name == "forward"
    low, high = (counted - unseen,) * 2 if forward else ((counted - 2 * unseen) * 0.95, counted * 1.05)
    if low <= real <= high:
        return
    hint = "" if forward else "; `excess` of the costs is what the backward pass has beyond twice the forward's"
    if what.endswith(f" 1 tokens: {name}"):
        hint = "; torch's counter sees no product in an einsum over a length of 1: write it with @"
    less = f", {unseen * (1 if forward else 2):,.0f} of them unseen" if unseen else ""
    raise AssertionError(f"{what}: flops counts {counted:,.0f} FLOP{less}, torch {real:,}{hint}")


def check_gradients(config: ModelConfig) -> None:
    """Every parameter has a finite gradient that is not zero; those of a layer say how the loss changes."""
    model, ids = moved_model(config), random_ids(2, LENGTH)
    targets = ids.roll(-1, 1)
    model(input_ids=ids, targets=targets).loss.backward()
    single = [kind.arch for kind in config.kinds if kind.n_layers == 1]  # its bounds, a softmax over layers, are fixed
    fixed = [f"decoder.{gamma}" for arch, gamma in model.decoder.gammas.items() if arch in single]
    for name, parameter in model.named_parameters():
        what = f"{name}, {list(parameter.shape)},"
        assert parameter.grad is not None, f"{what} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {what} is not finite"
        assert name in fixed or parameter.grad.abs().sum() > 0, f"the gradient of {what} is zero"

    if on_a_gpu(config):
        return  # in fp32 differences of a loss say little

    def differences(parameters: dict[str, nn.Parameter]) -> tuple[float, float, float]:
        """Of a small step in a random direction: the change of the loss, that by the gradients, and what is little."""
        steps: dict[str, Tensor] = {}
        for index, (name, parameter) in enumerate(parameters.items()):
            random = torch.Generator().manual_seed(index)
            size = parameter.detach().square().mean().sqrt() + STEP
            steps[name] = STEP * size * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
        losses: list[float] = []
        with torch.no_grad():
            for sign in (1, -2, 1):  # forth, back beyond where it was, and home
                for name, parameter in parameters.items():
                    parameter.add_(steps[name], alpha=sign)
                losses += [model(input_ids=ids, targets=targets).loss.item()] if sign != 1 or not losses else []
        parts = [(p.grad * steps[name]).sum().item() for name, p in parameters.items() if p.grad is not None]
        return (losses[0] - losses[1]) / 2, sum(parts), OFF * math.hypot(*parts)

    def of_layers(indices: Iterable[int]) -> dict[str, nn.Parameter]:
        own = {index: model.decoder.layers[index].named_parameters() for index in indices}
        return {f"decoder.layers.{index}.{name}": p for index, named in own.items() for name, p in named}

    n_layers, wrong = config.n_layers, False
    for first in range(min(GROUPS, n_layers)):
        real, by_gradients, little = differences(of_layers(range(first, n_layers, GROUPS)))
        wrong |= not abs(real - by_gradients) <= little
    if not wrong:
        return
    for index in reversed(range(n_layers)):  # a wrong gradient of a layer makes those of the layers below wrong
        for name, parameter in of_layers([index]).items():
            real, by_gradients, little = differences({name: parameter})
            assert abs(real - by_gradients) <= little, (
                f"{named(config, index)}: the gradient of {name}, {list(parameter.shape)}, says that a small step "
                f"changes the loss by {by_gradients:.4g}, it changes by {real:.4g}"
            )
    raise AssertionError("the gradients of all layers together do not say how a small step changes the loss")


def check_causality(config: ModelConfig) -> None:
    """Changing a token changes no bit before it, and something from it on; in a long text, with gradients, too."""
    model, ids = moved_model(config), random_ids(2, LENGTH)
    for at, moved in causal_readings(config, model, ids, (0, CHUNK - 1, CHUNK, 50, LENGTH - 1), "", gradients=False):
        assert moved[at], f"token {at} does not change its own logits"
        assert at > LENGTH - 10 or moved[at + 1 :].any(), f"token {at} changes nothing after it"
    if on_a_gpu(config):
        return  # kernels sum in an order that may depend on the length
    long = random_ids(2, most_tokens(config))
    for _ in causal_readings(config, model, long, (long.shape[1] * 2 // 3, long.shape[1] - 1), " (training)"):
        pass


def causal_readings(
    config: ModelConfig, model: LanguageModel, ids: Tensor, places: Sequence[int], how: str, gradients: bool = True
) -> Iterator[tuple[int, Tensor]]:
    """(a token, which tokens' logits change where it does, bool [T]); raises AssertionError where earlier ones do.
    how: the model is read, for the message."""
    before = Reading(model, ids, gradients)
    for at in places:
        other = ids.clone()
        other[:, at] = (other[:, at] + 1) % 256
        after = Reading(model, other, gradients)
        for index, (was, now) in enumerate(zip(before.mixed, after.mixed, strict=True)):
            early = (was != now)[:, :at].flatten(2).any(-1).any(0)
            if early.any():
                token = int(early.int().argmax())
                numbers = f"{was[:, token].double().sum():.9g} before, {now[:, token].double().sum():.9g} after"
                raise AssertionError(
                    f"{named(config, index)}: token {at} changes its output, {list(was.shape)}, at token {token} (sum "
                    f"{numbers}): it sees the future{how}"
                )
        moved = (after.logits != before.logits).any(-1).any(0)
        assert not moved[:at].any(), f"token {at} changes the logits of token {int(moved.int().argmax())}{how}"
        yield at, moved


def check_batch(config: ModelConfig) -> None:
    """A row of a batch has the logits it has alone, and has them again."""
    model, ids = moved_model(config), random_ids(3, LENGTH)
    together, again = Reading(model, ids), Reading(model, ids)
    for index, (actual, expected) in enumerate(zip(again.mixed, together.mixed, strict=True)):
        close(actual, expected, f"{named(config, index)}: its output for the same text again")
    for row in range(3):
        alone = Reading(model, ids[row : row + 1])
        for index, (actual, expected) in enumerate(zip(alone.mixed, together.mixed, strict=True)):
            close(actual, expected[row : row + 1], f"{named(config, index)}: its output for row {row} alone")
        close(alone.logits, together.logits[row : row + 1], f"row {row} alone")


def check_state(config: ModelConfig) -> None:
    """Reading in pieces with a cache, token by token and with rows in another order too, is reading at once; reading
    leaves the cache before it as it was; where the state is constant, it does not grow."""
    model, ids = moved_model(config), random_ids(2, LENGTH)
    whole, cache, read, swapped = Reading(model, ids), None, 0, torch.tensor([1, 0])
    first: list[LayerCache] = []
    for size in (33, 1, 1, 1, 32, 2):
        span = slice(read, read + size)
        kept = list[LayerCache]() if cache is None else copy.deepcopy(cache.layers)

        def compare(out: Reading, rows: Tensor, span: slice = span, read: int = read) -> None:
            for index, (actual, expected) in enumerate(zip(out.mixed, whole.mixed, strict=True)):
                what = f"{named(config, index)}: its output after {read} tokens in the cache"
                close(actual, expected[rows, span], what + (", rows swapped" if rows is swapped else ""))
            close(out.logits, whole.logits[rows, span], f"tokens {span.start} .. {span.stop - 1} after a cache")

        out = Reading(model, ids[:, span], cache=cache, use_cache=True)
        compare(out, torch.tensor([0, 1]))
        if cache is not None:
            for index, (before, after) in enumerate(zip(kept, cache.layers, strict=True)):
                for name, state in before.items():
                    what = f"{named(config, index)}: reading changes the cache that it is given: state {name!r}"
                    assert name in after, f"{what} is taken out of it"
                    close(after[name], state, what)
            compare(Reading(model, ids[swapped, span], cache=cache.select(swapped)), swapped)
        cache, read = out.cache, read + size
        first = first or cache.layers
        for index, (layer, begun) in enumerate(zip(cache.layers, first, strict=True)):
            shapes = [{name: list(state.shape) for name, state in part.items()} for part in (begun, layer)]
            assert shapes[0] == shapes[1] or not architecture(config.by_layer[index][0].arch).constant_state, (
                f"{named(config, index)}: its state is not constant: {shapes[0]} after 33 tokens, {shapes[1]} after "
                f"{read}"
            )


def check_state_size(config: ModelConfig) -> None:
    """flops.decode_state is the cache's size in fp32, where the costs give one."""
    if any(entry.state is None for entry in entries_of(config)):
        raise Skipped("the costs declare no state")
    with torch.no_grad():
        cache = placed(build_model(config, seed=0))(input_ids=random_ids(1, LENGTH), use_cache=True).cache
    counted, real = decode_state(config, LENGTH)["bytes"], cache.n_bytes
    sizes = [{name: list(value.shape) for name, value in layer.items()} for layer in cache.layers]
    assert counted == real, f"flops counts {counted:,} bytes, the model's cache has {real:,}: by layer {sizes}"


def check_packing(config: ModelConfig) -> None:
    """Packed documents are each as if alone."""
    model, ids = moved_model(config), random_ids(1, sum(DOCUMENTS))
    names = torch.arange(len(DOCUMENTS)).repeat_interleave(torch.tensor(DOCUMENTS))[None]
    together = Reading(model, ids, documents=names)
    for document, (size, own) in enumerate(zip(DOCUMENTS, ids.split(DOCUMENTS, 1), strict=True)):
        alone, begin = Reading(model, own), sum(DOCUMENTS[:document])
        what = f"document {document}, of {size} tokens, among others"
        for index, (actual, expected) in enumerate(zip(together.mixed, alone.mixed, strict=True)):
            close(actual[:, begin : begin + size], expected, f"{named(config, index)}: its output for {what}")
        close(together.logits[:, begin : begin + size], alone.logits, what)


def check_padding(config: ModelConfig) -> None:
    """Padding at either end of a row changes no logit, and on the left no cache."""
    model = moved_model(config)
    lengths = [1, 40, LENGTH]
    rows = [random_ids(1, length, seed=length) for length in lengths]
    with torch.no_grad():
        plain = [model(input_ids=ids, use_cache=True) for ids in rows]
        for side in ("left", "right"):
            ids = torch.full((len(rows), LENGTH), 11)
            mask = torch.zeros_like(ids)
            spans = [slice(LENGTH - n, LENGTH) if side == "left" else slice(0, n) for n in lengths]
            for row, span in enumerate(spans):
                ids[row, span], mask[row, span] = rows[row], 1
            out = model(input_ids=ids, attention_mask=mask, use_cache=side == "left")
            for row, span in enumerate(spans):
                close(out.logits[row : row + 1, span], plain[row].logits, f"{lengths[row]} tokens padded on the {side}")
                if out.cache is None:
                    continue
                layers = zip(config.by_layer, out.cache.layers, plain[row].cache.layers, strict=True)
                for layer, ((kind, _), actual, expected) in enumerate(layers):
                    for name, value in expected.items() if kind.constant_state else ():
                        close(actual[name][row], value[0], f"state {name!r} of layer {layer} after padding")


def check_encoder(config: ModelConfig) -> None:
    """As an encoder: parameters and FLOP are counted, every mixer gives what naive passes over single rows, or over
    single rows and columns of an image, forwards and backwards, add up to, gradients too; padding changes no logit."""
    if any(mixer_of(kind.arch).one_direction for kind in config.kinds):
        raise Skipped("its layers read one direction alone")
    check_encoder_of(config, {"padding_id": 256}, [1, 40, LENGTH])
    if any(kind.constant_state for kind in config.kinds):
        check_encoder_of(config, {"image": (SIDE, SIDE, 1), "patch": 1, "scan": "axes"}, [SIDE**2] * 2)


def check_encoder_of(config: ModelConfig, encoder: dict[str, Any], lengths: Sequence[int]) -> None:
    """`check_encoder` with these fields of EncoderConfig, of rows with so many tokens before their padding."""
    config = config.replace(context_length=max(lengths), encoder={"n_classes": 3, **encoder})
    check_parameters(config)
    if all(entry.core is not None for entry in entries_of(config)) and not on_a_gpu(config):
        check_flop_at(config, 2, max(lengths))
    model = moved_model(config)
    ids = torch.full((len(lengths), max(lengths)), 256)
    for row, n in enumerate(lengths):
        ids[row, :n] = random_ids(1, n, seed=n)
    calls: list[tuple[Mixer, Tensor, Stream]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, given: calls.append((module, given[0].detach(), given[1])))
        for module in model.modules()
        if isinstance(module, Mixer)
    ]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        for hook in hooks:
            hook.remove()
        for row, n in enumerate(lengths):
            alone = model(input_ids=ids[row : row + 1, :n]).logits
            close(alone, logits[row : row + 1], f"the logits of {n} tokens without their padding")
    for index, (mixer, x, stream) in enumerate(calls):
        check_directions(f"{named(config, index)} of an encoder: its", mixer, x, stream, lengths)


def check_directions(what: str, mixer: Mixer, x: Tensor, stream: Stream, lengths: Sequence[int]) -> None:
    """`check_encoder` of a mixer's call on x [B, T, d], whose rows have so many tokens before their padding."""
    x.requires_grad_()
    stream = replace(stream, bounds=None if stream.bounds is None else [bound.detach() for bound in stream.bounds])
    rows, together, linear = list[Tensor](), mixer(x, stream, {})[0], stream.scans is not None
    for row, n in zip(x.split(1), lengths, strict=True):
        tokens, places = row[:, :n], torch.arange(n, device=x.device)
        lines = list(places.split(len(stream.positions)))  # one, or the rows of an image
        lines += torch.stack(lines).unbind(1) if len(lines) > 1 else []
        lines += [line.flip(0) for line in lines]
        steps = places[: len(lines[0])]
        mask = None if linear else torch.ones(1, 1, n, n, dtype=torch.bool, device=x.device)
        rotary = mixer.rotary(mixer.config, steps, x)
        naive = Stream(steps, attention_mask=mask, backend="naive", bounds=stream.bounds, rotary=rotary)

        if linear:
            vars(mixer)["mixed"] = partial(_single_lines, mixer, lines)
        rows.append(mixer(tokens, naive, {})[0])
        vars(mixer).pop("mixed", None)
    parameters = {"x": x, **dict(mixer.named_parameters())}
    answers = [together[row, :n] for row, n in enumerate(lengths)], [row[0] for row in rows]
    gradients = []
    for answer in answers:
        weighted = [(part * torch.linspace(-1, 1, part.numel()).view(part.shape).to(part)).sum() for part in answer]
        gradients.append(torch.autograd.grad(torch.stack(weighted).sum(), list(parameters.values())))
    for n, actual, expected in zip(lengths, *answers, strict=True):
        close(actual, expected, f"{what} output for {n} tokens, read by lines")
    for name, actual, expected in zip(parameters, *gradients, strict=True):
        close(actual, expected, f"{what} gradient of {name}, read by lines")


def _single_lines(
    mixer: Mixer, lines: Sequence[Tensor], x: Tensor, stream: Stream, cache: LayerCache
) -> tuple[Tensor, LayerCache]:
    """`Mixer.mixed` of x [1, T, d] by a pass over each line, the places of its tokens [L], added up at each token."""
    read = torch.cat([mixer.mix(x[:, line], stream, {})[0] for line in lines], 1)
    return torch.zeros_like(read[:, : x.shape[1]]).index_add(1, torch.cat(list(lines)), read), {}


def check_backends(config: ModelConfig) -> None:
    """The naive backend of the sequence operations gives what the fast one gives."""
    if on_a_gpu(config):
        raise Skipped("layers that run on GPUs alone have no other backend")
    model, ids = moved_model(config), random_ids(2, LENGTH)
    with torch.no_grad():
        close(model(input_ids=ids, backend="naive").logits, model(input_ids=ids).logits, "naive backend")


def check_autocast(config: ModelConfig) -> None:
    """Trains under bf16 autocast: the loss is that of fp32 to 1 %, every gradient is finite, and no token sees the
    future."""
    model, ids = placed(build_model(config, seed=1)), random_ids(2, LENGTH)
    full = model(input_ids=ids, targets=ids.roll(-1, 1)).loss.item()
    with torch.autocast("cuda" if on_a_gpu(config) else "cpu", torch.bfloat16):
        loss = model(input_ids=ids, targets=ids.roll(-1, 1)).loss
    loss.backward()
    assert abs(loss.item() / full - 1) < 0.01, f"loss {loss.item():.4f}, in fp32 {full:.4f}"
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"
    with torch.autocast("cuda" if on_a_gpu(config) else "cpu", torch.bfloat16):
        for _ in () if on_a_gpu(config) else causal_readings(config, model, ids, (50, LENGTH - 1), " (bf16)"):
            pass


def check_file(config: ModelConfig) -> None:
    """A saved model loads to the same bits, and to the same function."""
    model, ids = placed(build_model(config, seed=0)), random_ids(2, LENGTH)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        loaded = placed(load_model(folder))
        parameters = dict(loaded.named_parameters())
        for name, parameter in model.named_parameters():
            assert torch.equal(parameters[name], parameter), f"{name} differs after saving and loading"
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits), "the logits differ after loading"


CHECKS: dict[str, Callable[[ModelConfig], None]] = {
    "parameters": check_parameters,
    "sizes": check_sizes,
    "flop": check_flop,
    "gradients": check_gradients,
    "causality": check_causality,
    "batch": check_batch,
    "state": check_state,
    "state size": check_state_size,
    "packing": check_packing,
    "padding": check_padding,
    "encoder": check_encoder,
    "backends": check_backends,
    "autocast": check_autocast,
    "file": check_file,
}


DOUBLE = (
    "gradients",
    "causality",
    "batch",
    "state",
    "packing",
    "padding",
    "encoder",
    "backends",
)  # those of moved_model
QUICK = ("parameters", "flop", "batch", "causality", "state", "state size", "gradients")


def failures(config: ModelConfig, checks: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """(check, what is wrong in one line, "" where nothing is, None where there was nothing to check); an exception ends
    one check, not all. The models are too small for more than one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in checks:
            problem: str | None = ""
            try:
                CHECKS[name](config)
            except Skipped:
                problem = None
            except (Exception, SystemExit) as error:
                problem = problem_of(error, name)
            yield name, problem
    finally:
        torch.set_num_threads(threads)


def problem_of(error: BaseException, check: str) -> str:
    """What ended a check, in one line: what the check says, or an exception with the mixer's layer and its place."""
    frames, text = traceback.extract_tb(error.__traceback__), " ".join(str(error).split())
    if isinstance(error, AssertionError) and frames[-1].filename == __file__:
        return text
    outside = [frame for frame in frames if not frame.filename.startswith((TORCH, *OWN))]
    if isinstance(error, InputError) and not outside:
        return text
    last = (outside or frames)[-1]
    mixers = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [
        f"layer {own.layer} of {own.config.arch}: "
        for own in mixers
        if isinstance(own, Mixer) and hasattr(own, "layer")
    ]
    in_double = check in DOUBLE and re.search("dtype|scalar type|Double", text)
    hint = "; this check runs in float64" if in_double else ""
    return f"{layers[-1] if layers else ''}{type(error).__name__}: {text} ({last.filename}:{last.lineno}){hint}"


@lru_cache
def first_failure(config: ModelConfig, checks: tuple[str, ...], known: tuple[Architecture | Entry, ...]) -> str | None:
    """The first of the checks that fails, and why; None where all pass. known: the architectures of its kinds, and
    their costs, as they are registered now."""
    return next((f"check `{name}`: {problem}" for name, problem in failures(config, checks) if problem), None)


def first_that_builds(config: ModelConfig, shapes: Iterable[Mapping[str, Any]]) -> ModelConfig | None:
    """The first of some changes of a configuration of which a model can be made."""
    for changes in shapes:
        with suppress(Exception):
            empty_of(changed := config.replace(**changes))
            return changed
    return None


def small_like(config: ModelConfig, n_layers: int) -> ModelConfig:
    """A narrow model with the options of `config` and so many layers; one as wide as its heads are many, or as it is
    itself, where its options need that."""
    less = {"vocab_size": 257, "context_length": min(config.context_length, LONGEST), "n_layers": n_layers}
    small = config.replace(**less)
    own_heads = {"d_model": 16 * math.lcm(*(kind.n_heads for kind in config.kinds)), "d_ffn": 88, "chunk_size": CHUNK}
    return first_that_builds(small, [SMALL, own_heads]) or small


def check_models(runs: Iterable[RunSpec], study: str) -> list[str]:
    """The names of the architectures that are not of this package, whose models have the parameters that their costs
    count, and which all pass the QUICK checks, and those of what training does with them, at the largest depth that the
    runs have (up to DEEPEST); raises InputError for the first that fails. Runs with `jobs.checked: false` are left out,
    and record it; without a GPU here, those whose layers run on GPUs alone too. study: the path of the study file, for
    the message."""
    chosen = [run for run in runs if run.checked]
    gpu = torch.cuda.is_available()
    alone = {run.arch for run in chosen if any(architecture(kind.arch).gpus_alone for kind in run.config.kinds)}
    todo = [run for run in chosen if run.arch not in ARCHS and (gpu or run.arch not in alone)]
    checks: dict[tuple[ModelConfig, tuple[str, ...]], RunSpec] = {}
    for run in todo:
        checks.setdefault((run.config, ("parameters",)), run)
    depths: dict[tuple[ModelConfig, tuple[str, ...]], int] = {}
    for run in todo:
        config = run.config.shortened(DEEPEST)
        kind = small_like(config, len(config.layers) or 1)
        more = ["packing"] * run.training.reset_at_documents + ["autocast"] * (run.training.precision == "bf16")
        fitting = max(1, LARGEST // count_params(kind).total) * kind.n_layers
        key = kind, (*QUICK, *more)
        depths[key] = max(depths.get(key, 0), min(config.n_layers, fitting))
        checks.setdefault(key, run)
    for (kind, names), run in checks.items():
        config = kind.replace(n_layers=depths.get((kind, names), kind.n_layers))
        known = *(architecture(part.arch) for part in kind.kinds), *entries_of(kind)
        if problem := first_failure(config, names, known):
            words = [run.arch, *plugin_words(run.plugins), *(["--study", study] if kind.layers else [])]
            raise InputError(
                f"architecture {run.arch!r} fails {problem}; nothing was trained. `python -m scaling.check "
                f"{shlex.join(words)}` makes all checks; --set jobs.checked=false trains it all the same"
            )
    if todo and (same := next(same_model(chosen, mixer_of), None)):
        raise InputError(
            f"{same[0]} and {same[1]} are the same model, of the same mixer: leave out one of the two architectures"
        )
    return list(dict.fromkeys(run.arch for run in todo))


def check_causal(configs: Iterable[ModelConfig]) -> None:
    """Raise InputError for the first architecture that is not of this package and sees later tokens, or other rows: it
    would find the answers of recall there."""
    for config in dict.fromkeys(small_like(each, each.n_layers) for each in configs if each.arch not in ARCHS):
        known = tuple(architecture(kind.arch) for kind in config.kinds)
        if problem := first_failure(config, ("batch", "causality"), known):
            raise InputError(f"architecture {config.arch!r} fails {problem}; nothing was trained")


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and print a line for each; the exit code is 1 where one failed, 2 for a bad input."""
    parser = Parser("python -m scaling.check", "Check an architecture.")
    parser.add_argument("arch")
    parser.add_argument("--study", help="a study file: its hybrids and plugins have names here too")
    add_plugin(parser)
    options = parser.parse_args(arguments)
    failed = 0
    try:
        register_architectures(options.plugin, options.study)
        for name, problem in failures(small(options.arch), CHECKS):
            failed += bool(problem)
            outcome = "skipped" if problem is None else f"FAILED: {problem}" if problem else "ok"
            print(f"{name:<10}  {outcome}  ({' '.join((CHECKS[name].__doc__ or '').split())})", flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
