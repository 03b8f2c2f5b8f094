"""Whole models: padding, packed documents and a carried state change nothing but the layout. fp64."""

import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.cache import DecodeCache
from arch.model.lm import build_model, load_model, next_token_loss
from arch.presets import preset
from arch.registry import ARCHITECTURES
from tests.arch.architectures.test_ablations import ALONG, PLAIN, ablated, name_of
from tests.arch.model.test_model import tokens

LENGTHS = [1, 37, 64, 2, 32]  # of packed documents: of one token, across chunks of 32, aligned with them
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
every_model = pytest.mark.parametrize("arch, changes", [*PLAIN, *ALONG], ids=name_of)
every_model_and_backend = pytest.mark.parametrize(
    "arch, changes, backend",
    [*((*model, backend) for model in PLAIN for backend in (None, "naive")), *((*case, None) for case in ALONG)],
    ids=name_of,
)


def model_of(arch, changes=None):
    model = build_model(ablated(arch, "25k", changes or {}, init_std=0.1), seed=1).double()
    with torch.no_grad():  # away from the start, where gates of all tokens are much alike
        for index, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)).double()
    return model


def packed(model):
    """ids [1, T] of documents one after the other, their ids, and each alone [1, n]."""
    ids = tokens(model.model_config, rows=1, length=sum(LENGTHS), seed=5)
    documents = torch.repeat_interleave(torch.tensor([7, 3, 4, 3, 9]), torch.tensor(LENGTHS))[None]
    return ids, documents, list(ids.split(LENGTHS, 1))


@every_model_and_backend
def test_packed_documents_are_each_as_if_alone(arch, changes, backend):
    """Logits, loss and the gradient of every parameter; no bit of a document is of another one."""
    model = model_of(arch, changes)
    ids, documents, alone = packed(model)
    targets = ids.roll(-1, 1)
    targets[:, -1] = -100
    together = model(input_ids=ids, targets=targets, documents=documents, backend=backend)
    grads = torch.autograd.grad(together.loss, list(model.parameters()))
    separate = [model(input_ids=document, backend=backend).logits for document in alone]
    torch.testing.assert_close(together.logits, torch.cat(separate, 1), **CLOSE)
    last = model(input_ids=alone[2], logits_to_keep=3, backend=backend).logits
    torch.testing.assert_close(last, separate[2][:, -3:], **CLOSE)
    losses = [
        torch.nn.functional.cross_entropy(logits[0, :-1], document[0, 1:], reduction="sum")
        for logits, document in zip(separate, alone, strict=True)
    ]
    loss = sum(losses) / (sum(LENGTHS) - len(LENGTHS))
    torch.testing.assert_close(together.loss, loss, **CLOSE)
    for (name, _), grad, reference in zip(
        model.named_parameters(), grads, torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(grad, reference, rtol=1e-7, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("arch", ARCHS)
def test_a_token_that_begins_documents(arch, tmp_path):
    """From each such token on, a row is read as if it began there, and every token has its target."""
    model = model_of(arch)
    ids, begins = tokens(model.model_config, rows=2, length=120, seed=5).clamp(min=1), 0
    pieces = [[37, 1, 64, 18], [2, 118]]
    for row, lengths in zip(ids, pieces, strict=True):
        row[torch.tensor([0, *lengths[:-1]]).cumsum(0)[1:]] = begins
    targets = ids.roll(-1, 1)
    targets[:, -1] = 3
    alone = torch.cat(
        [
            torch.cat([model(input_ids=piece[None]).logits for piece in row.split(lengths)], 1)
            for row, lengths in zip(ids, pieces, strict=True)
        ]
    )
    model.decoder.document_start_id = begins
    result = model(input_ids=ids, targets=targets)
    torch.testing.assert_close(result.logits, alone, **CLOSE)
    torch.testing.assert_close(result.loss, next_token_loss(alone, targets), **CLOSE)
    model.save_pretrained(tmp_path, torch.float64)
    assert load_model(tmp_path).decoder.document_start_id == begins


@every_model_and_backend
def test_padding_at_either_end_changes_nothing(arch, changes, backend):
    model = model_of(arch, changes)
    lengths, widest = [1, 40, 70], 70
    alone = [tokens(model.model_config, rows=1, length=n, seed=n) for n in lengths]
    plain = [model(input_ids=ids, backend=backend, use_cache=True) for ids in alone]
    for left in (True, False):
        ids = torch.full((3, widest), 11)
        mask = torch.zeros(3, widest, dtype=torch.int64)
        spans = [slice(widest - n, widest) if left else slice(0, n) for n in lengths]
        for row, span in enumerate(spans):
            ids[row, span] = alone[row]
            mask[row, span] = 1
        out = model(input_ids=ids, attention_mask=mask, backend=backend, use_cache=left)
        assert torch.isfinite(out.logits).all()
        for row, span in enumerate(spans):
            torch.testing.assert_close(out.logits[row : row + 1, span], plain[row].logits, **CLOSE)
        if left and ARCHITECTURES[arch].constant_state:
            assert out.cache.seen.tolist() == lengths
            for layer in range(model.model_config.n_layers):
                for name, state in out.cache.layers[layer].items():
                    for row in range(3):
                        torch.testing.assert_close(state[row], plain[row].cache.layers[layer][name][0], **CLOSE)


@every_model
def test_a_carried_state_is_as_good_as_the_tokens(arch, changes):
    """In pieces of any length, one token too; with left padding in the first."""
    model = model_of(arch, changes)
    ids = tokens(model.model_config, rows=3, length=90)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    mask[2, :33] = 0
    whole = model(input_ids=ids, attention_mask=mask).logits
    parts, cache, read = [], None, 0
    for size in (40, 1, 1, 32, 13, 3):
        read += size
        out = model(input_ids=ids[:, read - size : read], attention_mask=mask[:, :read], cache=cache, use_cache=True)
        parts.append(out.logits)
        cache = out.cache
    kept = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[kept], whole[kept], **CLOSE)
    picked = cache.select(torch.tensor([2, 2, 0]))
    step = model(input_ids=ids[[2, 2, 0], :1], cache=picked).logits
    torch.testing.assert_close(step, model(input_ids=ids[:, :1], cache=cache).logits[[2, 2, 0]], **CLOSE)


@pytest.mark.parametrize("arch", ARCHS)
def test_gradient_checkpointing_changes_no_bit(arch):
    model = build_model(preset(arch, "25k"), seed=1)
    ids = tokens(model.model_config)
    grads = []
    for share in (0, 0.5, True):
        model.decoder.gradient_checkpointing = share
        model.zero_grad()
        model(input_ids=ids, targets=ids.roll(-1, 1)).loss.backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*grads, strict=True))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"input_ids": torch.zeros(1, 0, dtype=torch.int64)}, "at least one token"),
        ({"input_ids": torch.tensor([[1, 257]])}, "token id 257 is outside the vocabulary 0 .. 256"),
        ({"input_ids": torch.tensor([[1, -5]])}, "token id -5 is outside"),
        ({"input_ids": torch.tensor([[1.0]])}, "input_ids are float32"),
        ({"attention_mask": torch.ones(2, 3)}, "one entry a token"),
        ({"attention_mask": torch.tensor([[1, 0, 1]])}, "between"),
        ({"attention_mask": torch.tensor([[1, 1, 0]]), "use_cache": True}, "pad on the left"),
        ({"documents": torch.ones(1, 2)}, "documents has shape"),
        ({"documents": torch.ones(1, 3), "attention_mask": torch.ones(1, 3)}, "a document of its own"),
        ({"targets": torch.ones(3, 1, dtype=torch.int64)}, "one target a token"),
        ({"targets": torch.ones(1, 3, dtype=torch.int64), "logits_to_keep": 2}, "one target a token"),
        *(({"logits_to_keep": n}, "must be a number of tokens") for n in (-1, torch.tensor([1]), 1.0)),
    ],
)
def test_bad_inputs_are_named(arguments, message):
    model = build_model(preset("hgrn2", "14k"), seed=0)
    with pytest.raises(InputError, match=message):
        model(**{"input_ids": torch.ones(1, 3, dtype=torch.int64)} | arguments)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("last", [2, 30])
def test_a_state_after_packed_documents_is_the_last_ones(arch, last):
    """Also where the last is shorter than Mamba's convolution, and for LLaMA, which keeps every token."""
    model = model_of(arch)
    ids = tokens(model.model_config, rows=2, length=60)
    documents = (torch.arange(40) >= 40 - last).long().expand(2, -1)
    cache = model(input_ids=ids[:, :40], documents=documents, use_cache=True).cache
    alone = model(input_ids=ids[:, 40 - last :]).logits[:, last:]
    torch.testing.assert_close(model(input_ids=ids[:, 40:], cache=cache).logits, alone, **CLOSE)
    for token in range(40, 45):
        out = model(input_ids=ids[:, token : token + 1], cache=cache, use_cache=True)
        cache = out.cache
        torch.testing.assert_close(out.logits, alone[:, token - 40 : token - 39], **CLOSE)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_state_after_one_document_masks_nothing(arch):
    """So that it joins others to a batch, though documents begin at a token."""
    model = model_of(arch)
    model.decoder.document_start_id = 0
    ids = tokens(model.model_config, rows=2, length=20, seed=5).clamp(min=1)
    ids[:, 0] = 0
    with torch.inference_mode():
        cache = model(ids, use_cache=True).cache
        assert cache.masked_keys is None
        joined = DecodeCache.concat([model(row[None], use_cache=True).cache for row in ids])
        for actual, expected in zip(joined.tensors(), cache.tensors(), strict=True):
            torch.testing.assert_close(actual, expected, **CLOSE)
        ids[0, 7] = 0
        masked = model(ids, use_cache=True).cache.masked_keys
    assert (masked is None) == (ARCHITECTURES[arch].constant_state)
    if masked is not None:
        assert masked[0].tolist() == [True] * 7 + [False] * 13 and not masked[1].any()


@every_model
def test_padding_after_a_state(arch, changes):
    """On the right it changes nothing; on the left, where Tpe and convolutions would read it, it is refused."""
    model = model_of(arch, changes)
    ids = tokens(model.model_config, rows=2, length=40)
    cache = model(input_ids=ids[:, :20], use_cache=True).cache
    mask = torch.ones(2, 20, dtype=torch.int64)
    mask[1, 13:] = 0
    out = model(input_ids=ids[:, 20:].masked_fill(mask == 0, 7), attention_mask=mask, cache=cache)
    torch.testing.assert_close(out.logits[mask == 1], model(input_ids=ids).logits[:, 20:][mask == 1], **CLOSE)
    with pytest.raises(InputError, match="between the cache's tokens and these"):
        model(input_ids=ids[:, 20:], attention_mask=mask.flip(1), cache=cache)


@pytest.mark.parametrize("arch", ARCHS)
def test_another_models_state_is_refused(arch):
    model = model_of(arch)
    ids = tokens(model.model_config, rows=2, length=4)
    other = "tnl" if arch == "llama" else "llama"
    cache = build_model(preset(other, "14k"), 0)(input_ids=ids, use_cache=True).cache
    with pytest.raises(InputError, match=f"another model's: arch is '{other}' there and '{arch}' here"):
        model(input_ids=ids, cache=cache)
    deeper = build_model(preset(arch, "25k", init_std=0.1, n_layers=5), 0)(input_ids=ids, use_cache=True).cache
    with pytest.raises(InputError, match=f"n_layers is 5 there and {model.model_config.n_layers} here"):
        model(input_ids=ids, cache=deeper)
    cache = model(input_ids=ids, use_cache=True).cache
    with pytest.raises(InputError, match="the cache is of 2 rows, input_ids of 1"):
        model(input_ids=ids[:1], cache=cache)


@pytest.mark.parametrize("left", [True, False])
def test_padding_does_not_count_in_the_loss(left):
    """Whatever its targets are."""
    model = model_of("tnl")
    ids = tokens(model.model_config, rows=1, length=30)
    part = slice(10, 30) if left else slice(0, 20)
    mask = torch.zeros_like(ids)
    mask[:, part] = 1
    padded = model(input_ids=ids, targets=ids, attention_mask=mask).loss
    torch.testing.assert_close(padded, model(input_ids=ids[:, part], targets=ids[:, part]).loss, **CLOSE)
