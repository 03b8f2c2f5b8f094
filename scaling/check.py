"""What every architecture is held to, those of plugins too: `python -m scaling.check ARCH [--plugin MODULE]`.

Each check builds tiny models in fp64, away from their initialisation, and raises AssertionError with what differs.
Passing says that a mixer keeps the contract of arch.model.mixer.Mixer and that its costs are those of the real model;
it does not say that the mixer computes what its paper says.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arch.arguments import Parser, add_plugin
from arch.config import NORMS
from arch.errors import InputError
from arch.model.lm import LanguageModel, build_model, load_model
from arch.presets import PAPER, TINY, preset
from arch.registry import ARCHITECTURES, load_plugins
from flops import count_params, decode_state
from flops.forward import forward_products
from flops.registry import entry_of

SIZE, CHUNK = "25k", 32
LENGTH = 70  # tokens: two chunks and a rest
DOCUMENTS = [1, 37, 64, 2, 32]  # tokens of packed documents: one token, across chunks, aligned with them
RTOL, ATOL = 1e-9, 1e-11


def moved_model(arch: str) -> LanguageModel:
    """A tiny model in fp64 whose gates are not all alike, as they are at the start."""
    model = build_model(preset(arch, SIZE, init_std=0.1, chunk_size=CHUNK), seed=1).double()
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
            parameter.add_(0.05 * noise.to(parameter.dtype))
    return model


def random_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    """Token ids [rows, length] of the tiny presets' vocabulary, without the last one."""
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=RTOL, atol=ATOL, msg=lambda text: f"{what}: {text}")


def check_parameters(arch: str) -> None:
    """flops.count_params is the number of parameters: of every preset, and with untied head and every norm."""
    configs = [preset(arch, size) for size in (*TINY, *PAPER)]
    configs += [preset(arch, SIZE, tie_embeddings=False, norm=norm) for norm in NORMS]
    for config in configs:
        with torch.device("meta"):
            real = sum(parameter.numel() for parameter in LanguageModel(config).parameters())
        counted = count_params(config).total
        assert counted == real, f"flops counts {counted:,} parameters, the model has {real:,} ({config})"


def check_flop(arch: str) -> None:
    """flops.forward_products is what torch counts: in whole chunks, with a rest, in less than one, for one token."""
    config = preset(arch, SIZE, chunk_size=CHUNK)
    model = build_model(config, seed=0)
    for rows, length in ((2, 4 * CHUNK), (1, LENGTH), (3, 20), (2, 1)):
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(input_ids=random_ids(rows, length))
        counted, real = sum(forward_products(config, length, rows).values()), counter.get_total_flops()
        assert counted == real, f"{rows} x {length} tokens: flops counts {counted:,.0f} FLOP, torch {real:,}"


def check_gradients(arch: str) -> None:
    """Every parameter has a finite gradient, and one that is not zero."""
    model, ids = moved_model(arch), random_ids(2, LENGTH)
    model(input_ids=ids, targets=ids.roll(-1, 1)).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"
        assert parameter.grad.abs().sum() > 0, f"the gradient of {name} is zero"


def check_causality(arch: str) -> None:
    """Changing a token changes no bit before it, and something from it on."""
    model, ids = moved_model(arch), random_ids(2, LENGTH)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        for at in (0, CHUNK - 1, CHUNK, 50, LENGTH - 1):
            other = ids.clone()
            other[:, at] = (other[:, at] + 1) % 256
            moved = (model(input_ids=other).logits != before).any(-1).any(0)
            assert not moved[:at].any(), f"token {at} changes the logits of token {int(moved.int().argmax())}"
            assert moved[at], f"token {at} does not change its own logits"
            assert at > LENGTH - 10 or moved[at + 1 :].any(), f"token {at} changes nothing after it"


def check_batch(arch: str) -> None:
    """A row of a batch has the logits it has alone."""
    model, ids = moved_model(arch), random_ids(3, LENGTH)
    with torch.no_grad():
        together = model(input_ids=ids).logits
        for row in range(3):
            close(model(input_ids=ids[row : row + 1]).logits, together[row : row + 1], f"row {row} alone")


def check_state(arch: str) -> None:
    """Reading in pieces with a cache, token by token too, is reading at once; the cache does not grow."""
    model, ids = moved_model(arch), random_ids(2, LENGTH)
    with torch.no_grad():
        whole, cache, sizes, read = model(input_ids=ids).logits, None, [], 0
        for size in (33, 1, 1, 1, 32, 2):
            out = model(input_ids=ids[:, read : read + size], cache=cache, use_cache=True)
            close(out.logits, whole[:, read : read + size], f"tokens {read} .. {read + size - 1} after a cache")
            cache, read = out.cache, read + size
            sizes.append(cache.n_bytes)
    assert not ARCHITECTURES[arch].constant_state or len(set(sizes)) == 1, f"the cache grows: {sizes} bytes"


def check_state_size(arch: str) -> None:
    """flops.decode_state is the cache's size in fp32, where the costs give one."""
    if entry_of(arch).state is None:
        return
    config = preset(arch, SIZE)
    with torch.no_grad():
        cache = build_model(config, seed=0)(input_ids=random_ids(1, LENGTH), use_cache=True).cache
    counted, real = decode_state(config, LENGTH)["bytes"], cache.n_bytes
    assert counted == real, f"flops counts {counted:,} bytes, the model's cache has {real:,}"


def check_packing(arch: str) -> None:
    """Packed documents are each as if alone."""
    model, ids = moved_model(arch), random_ids(1, sum(DOCUMENTS))
    names = torch.arange(len(DOCUMENTS)).repeat_interleave(torch.tensor(DOCUMENTS))[None]
    with torch.no_grad():
        together = model(input_ids=ids, documents=names).logits
        alone = [model(input_ids=document).logits for document in ids.split(DOCUMENTS, 1)]
    for index, (actual, expected) in enumerate(zip(together.split(DOCUMENTS, 1), alone, strict=True)):
        close(actual, expected, f"document {index}, of {DOCUMENTS[index]} tokens, among others")


def check_padding(arch: str) -> None:
    """Padding at either end of a row changes no logit, and on the left no cache."""
    model = moved_model(arch)
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
                if out.cache is None or not ARCHITECTURES[arch].constant_state:
                    continue
                for layer, (actual, expected) in enumerate(zip(out.cache.layers, plain[row].cache.layers, strict=True)):
                    for name, value in expected.items():
                        close(actual[name][row], value[0], f"state {name!r} of layer {layer} after padding")


def check_backends(arch: str) -> None:
    """The naive backend of the sequence operations gives what the fast one gives."""
    model, ids = moved_model(arch), random_ids(2, LENGTH)
    with torch.no_grad():
        close(model(input_ids=ids, backend="naive").logits, model(input_ids=ids).logits, "naive backend")


def check_autocast(arch: str) -> None:
    """Trains under bf16 autocast: the loss is that of fp32 to 1 %, and every gradient is finite."""
    model, ids = build_model(preset(arch, SIZE), seed=1), random_ids(2, LENGTH)
    full = model(input_ids=ids, targets=ids.roll(-1, 1)).loss.item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, targets=ids.roll(-1, 1)).loss
    loss.backward()
    assert abs(loss.item() / full - 1) < 0.01, f"loss {loss.item():.4f}, in fp32 {full:.4f}"
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"


def check_file(arch: str) -> None:
    """A saved model loads to the same bits, and to the same function."""
    model, ids = build_model(preset(arch, SIZE), seed=0), random_ids(2, LENGTH)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        loaded = load_model(folder)
        parameters = dict(loaded.named_parameters())
        for name, parameter in model.named_parameters():
            assert torch.equal(parameters[name], parameter), f"{name} differs after saving and loading"
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits), "the logits differ after loading"


CHECKS: dict[str, Callable[[str], None]] = {
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


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and print a line for each; the exit code is 1 where one failed, 2 for a bad input."""
    parser = Parser("python -m scaling.check", "Check an architecture.")
    parser.add_argument("arch")
    add_plugin(parser)
    options = parser.parse_args(arguments)
    failed = 0
    try:
        load_plugins(options.plugin)
        preset(options.arch, SIZE)
        for name, check in CHECKS.items():
            try:
                check(options.arch)
                outcome = "ok"
            except AssertionError as error:
                failed += 1
                outcome = f"FAILED: {' '.join(str(error).split())}"
            print(f"{name:<10}  {outcome}  ({(check.__doc__ or '').strip()})", flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
