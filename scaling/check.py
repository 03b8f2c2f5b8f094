"""What every architecture is held to, those of plugins and patterns of studies too: `python -m scaling.check ARCH
[--plugin MODULE] [--study FILE]`. Before a study trains, those of its architectures that are not of this package pass
the QUICK checks at their own depth (`check_models`).

Each check builds tiny models in fp64, away from their initialisation, and raises AssertionError with what differs: the
layer, the tensor and both numbers. Passing says that a mixer keeps the contract of arch.model.mixer.Mixer and that its
costs are those of the real model; it does not say that the mixer computes what its paper says.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arch.arguments import Parser, add_plugin, plugin_words
from arch.config import ARCHS, NORMS, ModelConfig
from arch.errors import InputError
from arch.model.cache import DecodeCache
from arch.model.lm import LanguageModel, build_model, load_model
from arch.model.mixer import Mixer
from arch.presets import SIZES, preset
from arch.registry import Architecture, architecture
from flops import count_params, decode_state
from flops.forward import backward_products, forward_products, layers_backward, layers_products, unseen_products
from flops.params import layer_params
from flops.registry import entries_of

from .study.file import register_architectures

if TYPE_CHECKING:
    from .study.run import RunSpec

SIZE, CHUNK, LAYERS = "25k", 32, 2
LENGTH = 70  # tokens: two chunks and a rest
DOCUMENTS = [1, 37, 64, 2, 32]  # tokens of packed documents: one token, across chunks, aligned with them
RTOL, ATOL = 1e-9, 1e-11
SINGLE = 0.02  # of a tensor's largest entry, on a GPU: tensor cores read fp32 to 10 bits
SMALL = {"d_model": 32, "n_heads": 2, "d_ffn": 88, "vocab_size": 257, "context_length": 256, "chunk_size": CHUNK}
TORCH = str(Path(torch.__file__).parent)
DEEPEST = 32  # layers of a model that is checked before a study trains


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
    """A forward pass without gradients: its logits, what each layer's mixer adds to the stream, and the cache."""

    def __init__(self, model: LanguageModel, ids: Tensor, cache: DecodeCache | None = None, keep: bool = False) -> None:
        self.mixed: list[Tensor] = []
        hooks = [
            module.register_forward_hook(lambda module, inputs, out: self.mixed.append(out[0]))
            for module in model.modules()
            if isinstance(module, Mixer)
        ]
        try:
            with torch.no_grad():
                out = model(input_ids=ids, cache=cache, use_cache=keep)
        finally:
            for hook in hooks:
                hook.remove()
        self.logits, self.cache = out.logits, out.cache


def named(config: ModelConfig, layer: int) -> str:
    return f"layer {layer} ({config.by_layer[layer][0].arch})"


def check_parameters(config: ModelConfig) -> None:
    """flops.count_params is the number of parameters: of every preset, and with untied head and every norm."""
    configs = [config, *(config.replace(tie_embeddings=False, norm=norm) for norm in NORMS)]
    configs += [] if config.layers else [preset(config.arch, size) for size in SIZES]  # a pattern fits some alone
    for other in configs:
        with torch.device("meta"):
            model = LanguageModel(other)
        counted, real = count_params(other).total, sum(parameter.numel() for parameter in model.parameters())
        if counted == real:
            continue
        for index, (layer, (kind, _)) in enumerate(zip(model.decoder.layers, other.by_layer, strict=True)):
            of_layer, own = sum(layer_params(kind).values()), {n: list(p.shape) for n, p in layer.named_parameters()}
            if of_layer != (there := sum(parameter.numel() for parameter in layer.parameters())):
                raise AssertionError(
                    f"{named(other, index)}: flops counts {of_layer:,} parameters, the layer has {there:,}: {own}"
                )
        raise AssertionError(f"flops counts {counted:,} parameters, the model has {real:,} ({other})")


def check_flop(config: ModelConfig) -> None:
    """flops' products are what torch counts: forward exactly, backward to 5 %, at four lengths, one token too."""
    if any(entry.core is None for entry in entries_of(config)):
        raise Skipped("the costs declare no FLOP of the sequence operation")
    if on_a_gpu(config):
        raise Skipped("torch's counter does not see kernels")
    model = build_model(config, seed=0)
    names = {f"LanguageModel.decoder.layers.{index}": index for index in range(config.n_layers)}
    for rows, length in ((2, 4 * CHUNK), (1, LENGTH), (3, 20), (2, 1)):
        forward, backward = products_of_torch(model, random_ids(rows, length))
        of_kinds = [kind for kind, _ in config.by_layer]
        unseen = [rows * sum(unseen_products(kind, length).values()) / kind.n_layers for kind in of_kinds]
        passes = (
            ("forward", forward, layers_products, forward_products),
            ("backward", backward, layers_backward, backward_products),
        )
        for name, real, of_layers, of_model in passes:
            counted = {
                key: rows * sum(of_layers(of_kinds[index], length).values()) / of_kinds[index].n_layers
                for key, index in names.items()
            } | {"Global": sum(of_model(config, length, rows).values())}
            for key, flop in counted.items():
                hidden = unseen[names[key]] if key in names else sum(unseen)
                what = named(config, names[key]) if key in names else "the whole model"
                check_products(f"{what}: {rows} x {length} tokens: {name}", flop, hidden, real.get(key, 0), name)


def products_of_torch(model: LanguageModel, ids: Tensor) -> tuple[dict[str, int], dict[str, int]]:
    """FLOP by module of a forward and of a backward pass, as torch counts them; "Global" is all. Each layer's backward
    pass is one of that layer alone, on the inputs that it has in the model."""
    inputs: dict[str, tuple[object, ...]] = {}
    layers = {f"LanguageModel.decoder.layers.{index}": layer for index, layer in enumerate(model.decoder.layers)}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: inputs.setdefault(name, given) and None)
        for name, layer in layers.items()
    ]
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False, depth=4) as counter:
            loss = model(input_ids=ids, targets=ids).loss
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
    """Every parameter has a finite gradient, and one that is not zero."""
    model, ids = moved_model(config), random_ids(2, LENGTH)
    model(input_ids=ids, targets=ids.roll(-1, 1)).loss.backward()
    single = [kind.arch for kind in config.kinds if kind.n_layers == 1]  # its bounds, a softmax over layers, are fixed
    fixed = [f"decoder.{gamma}" for arch, gamma in model.decoder.gammas.items() if arch in single]
    for name, parameter in model.named_parameters():
        what = f"{name}, {list(parameter.shape)},"
        assert parameter.grad is not None, f"{what} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {what} is not finite"
        assert name in fixed or parameter.grad.abs().sum() > 0, f"the gradient of {what} is zero"


def check_causality(config: ModelConfig) -> None:
    """Changing a token changes no bit before it, and something from it on."""
    model, ids = moved_model(config), random_ids(2, LENGTH)
    before = Reading(model, ids)
    for at in (0, CHUNK - 1, CHUNK, 50, LENGTH - 1):
        other = ids.clone()
        other[:, at] = (other[:, at] + 1) % 256
        after = Reading(model, other)
        for index, (was, now) in enumerate(zip(before.mixed, after.mixed, strict=True)):
            early = (was != now)[:, :at].flatten(2).any(-1).any(0)
            if early.any():
                token = int(early.int().argmax())
                numbers = f"{was[:, token].sum():.9g} before, {now[:, token].sum():.9g} after"
                raise AssertionError(
                    f"{named(config, index)}: token {at} changes its output, {list(was.shape)}, at token {token} (sum "
                    f"{numbers}): it sees the future"
                )
        moved = (after.logits != before.logits).any(-1).any(0)
        assert not moved[:at].any(), f"token {at} changes the logits of token {int(moved.int().argmax())}"
        assert moved[at], f"token {at} does not change its own logits"
        assert at > LENGTH - 10 or moved[at + 1 :].any(), f"token {at} changes nothing after it"


def check_batch(config: ModelConfig) -> None:
    """A row of a batch has the logits it has alone."""
    model, ids = moved_model(config), random_ids(3, LENGTH)
    with torch.no_grad():
        together = model(input_ids=ids).logits
        for row in range(3):
            close(model(input_ids=ids[row : row + 1]).logits, together[row : row + 1], f"row {row} alone")


def check_state(config: ModelConfig) -> None:
    """Reading in pieces with a cache, token by token too, is reading at once; the cache does not grow."""
    model, ids = moved_model(config), random_ids(2, LENGTH)
    whole, cache, sizes, read = Reading(model, ids), None, [], 0
    for size in (33, 1, 1, 1, 32, 2):
        out, span = Reading(model, ids[:, read : read + size], cache, keep=True), slice(read, read + size)
        for index, (actual, expected) in enumerate(zip(out.mixed, whole.mixed, strict=True)):
            close(actual, expected[:, span], f"{named(config, index)}: its output after {read} tokens in the cache")
        close(out.logits, whole.logits[:, span], f"tokens {read} .. {read + size - 1} after a cache")
        cache, read = out.cache, read + size
        assert cache is not None
        sizes.append(cache.n_bytes)
    assert not config.constant_state or len(set(sizes)) == 1, f"the cache grows: {sizes} bytes"


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
    with torch.no_grad():
        together = model(input_ids=ids, documents=names).logits
        alone = [model(input_ids=document).logits for document in ids.split(DOCUMENTS, 1)]
    for index, (actual, expected) in enumerate(zip(together.split(DOCUMENTS, 1), alone, strict=True)):
        close(actual, expected, f"document {index}, of {DOCUMENTS[index]} tokens, among others")


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


def check_backends(config: ModelConfig) -> None:
    """The naive backend of the sequence operations gives what the fast one gives."""
    if on_a_gpu(config):
        raise Skipped("layers that run on GPUs alone have no other backend")
    model, ids = moved_model(config), random_ids(2, LENGTH)
    with torch.no_grad():
        close(model(input_ids=ids, backend="naive").logits, model(input_ids=ids).logits, "naive backend")


def check_autocast(config: ModelConfig) -> None:
    """Trains under bf16 autocast: the loss is that of fp32 to 1 %, and every gradient is finite."""
    model, ids = placed(build_model(config, seed=1)), random_ids(2, LENGTH)
    full = model(input_ids=ids, targets=ids.roll(-1, 1)).loss.item()
    with torch.autocast("cuda" if on_a_gpu(config) else "cpu", torch.bfloat16):
        loss = model(input_ids=ids, targets=ids.roll(-1, 1)).loss
    loss.backward()
    assert abs(loss.item() / full - 1) < 0.01, f"loss {loss.item():.4f}, in fp32 {full:.4f}"
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"


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
    "flop": check_flop,
    "gradients": check_gradients,
    "causality": check_causality,
    "batch": check_batch,
    "state": check_state,
    "state size": check_state_size,
    "packing": check_packing,
    "padding": check_padding,
    "backends": check_backends,
    "autocast": check_autocast,
    "file": check_file,
}


DOUBLE = ("gradients", "causality", "batch", "state", "packing", "padding", "backends")  # those of moved_model
QUICK = ("parameters", "flop", "gradients", "causality", "state")


def failures(config: ModelConfig, checks: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """(check, what is wrong in one line, "" where nothing is, None where there was nothing to check); an exception ends
    one check, not all."""
    for name in checks:
        problem: str | None = ""
        try:
            CHECKS[name](config)
        except Skipped:
            problem = None
        except InputError:
            raise
        except AssertionError as error:
            problem = " ".join(str(error).split()) or "an assertion failed"
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            last = next((frame for frame in reversed(frames) if not frame.filename.startswith(TORCH)), frames[-1])
            dtype = (
                "; this check runs in float64"
                if name in DOUBLE and re.search("dtype|scalar type|Double", str(error))
                else ""
            )
            problem = f"{type(error).__name__}: {' '.join(str(error).split())} ({last.filename}:{last.lineno}){dtype}"
        yield name, problem


@lru_cache
def first_failure(config: ModelConfig, known: tuple[Architecture, ...]) -> str | None:
    """The first of the QUICK checks that fails, and why; None where all pass. known: the architectures of its kinds as
    they are registered now."""
    return next((f"check `{name}`: {problem}" for name, problem in failures(config, QUICK) if problem), None)


def small_like(config: ModelConfig, n_layers: int) -> ModelConfig:
    """A narrow model with the options of `config` and so many layers; only its vocabulary and context are smaller where
    its options need its width."""
    try:
        narrow = config.replace(**SMALL | {"n_layers": n_layers})
        count_params(narrow)  # layers from other packages are made for it, which may refuse the width
        return narrow
    except InputError:
        return config.replace(vocab_size=257, context_length=256, n_layers=n_layers)


def check_models(runs: Iterable[RunSpec], study: str) -> list[str]:
    """The names of the architectures that are not of this package, which all pass the QUICK checks at the largest depth
    that the runs have (up to DEEPEST); raises InputError for the first that fails. Runs with `jobs.checked: false` are
    left out, and record it; without a GPU here, those whose layers run on GPUs alone too. study: the path of the study
    file, for the message."""
    depths: dict[ModelConfig, int] = {}
    plugins: dict[str, list[str]] = {}
    for run in runs:
        alone = any(architecture(kind.arch).gpus_alone for kind in run.config.kinds)
        if run.checked and run.arch not in ARCHS and (torch.cuda.is_available() or not alone):
            config = run.config.shortened(DEEPEST)
            kind = small_like(config, len(config.layers) or 1)
            depths[kind] = max(depths.get(kind, 0), config.n_layers)
            plugins[kind.arch] = run.plugins
    for kind, depth in depths.items():
        known = tuple(architecture(part.arch) for part in kind.kinds)
        if problem := first_failure(kind.replace(n_layers=depth), known):
            words = [kind.arch, *plugin_words(plugins[kind.arch]), *(["--study", study] if kind.layers else [])]
            raise InputError(
                f"architecture {kind.arch!r} fails {problem}; nothing was trained. `python -m scaling.check "
                f"{shlex.join(words)}` makes all checks; --set jobs.checked=false trains it all the same"
            )
    return list(plugins)


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
            print(f"{name:<10}  {outcome}  ({(CHECKS[name].__doc__ or '').strip()})", flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
