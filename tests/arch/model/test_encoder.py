"""Encoders as classifiers: softmax without a mask is the formula, patches are squares of pixels, pooling leaves padding
out, two documents are one encoder's; scans by axes; files and refusals. What every architecture keeps stands in
scaling/check.py."""

import pytest
import torch

from arch.config import ModelConfig
from arch.errors import InputError
from arch.model.encoder import PatchEmbedding
from arch.model.lm import Classifier, build_model, load_model
from arch.presets import preset
from arch.registry import register_pattern
from flops import count_params, train_flops_per_token, training_memory
from scaling.check import check_encoder, check_flop_at, check_parameters, moved_model
from tests.registries import as_registered

LENGTH = 24


def config_of(arch: str = "hgrn2", length: int = LENGTH, **encoder: object) -> ModelConfig:
    return preset(arch, "25k", context_length=length, encoder={"n_classes": 3, "padding_id": 256} | encoder)


def image_of(side: int, arch: str, scan: str = "axes", **fields: object) -> ModelConfig:
    return config_of(arch, side**2, padding_id=None, image=(side, side, 1), patch=1, scan=scan, **fields)


def random_rows(lengths: list[int], width: int = LENGTH) -> torch.Tensor:
    ids = torch.full((len(lengths), width), 256)
    for row, n in enumerate(lengths):
        ids[row, :n] = torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(n))
    return ids


def test_softmax_layers_read_all_real_tokens():
    model = moved_model(config_of("transformer"))
    mixer, seen = model.decoder.layers[0].mixer, []
    mixer.register_forward_hook(lambda module, given, out: seen.append((given[0], given[1], out[0])))
    model(input_ids=random_rows([5, LENGTH]))
    x, stream, out = seen[0]
    query, key, value = (y[:1, :5] for y in mixer._projected(x, stream))
    key, value = (y.repeat_interleave(query.shape[2] // y.shape[2], 2) for y in (key, value))
    scores = torch.einsum("bthp,bshp->bhts", query, key) / query.shape[-1] ** 0.5
    mixed = torch.einsum("bhts,bshp->bthp", scores.softmax(-1), value).flatten(2)
    torch.testing.assert_close(out[:1, :5], mixer.out(mixed))


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_the_head_reads_the_pooled_real_positions(pooling):
    model, ids = moved_model(config_of(pooling=pooling)), random_rows([7, LENGTH])
    add, hidden = model.decoder.norm.add, []  # of the last branch, and the final norm

    def kept(*given):
        hidden.append(add(*given))
        return hidden[-1]

    model.decoder.norm.add = kept
    logits = model(input_ids=ids).logits
    pool = {"mean": lambda h: h.mean(0), "first": lambda h: h[0], "last": lambda h: h[-1]}[pooling]
    pooled = torch.stack([pool(hidden[-1][1][row, :n]) for row, n in enumerate([7, LENGTH])])
    torch.testing.assert_close(logits[:, 0], pooled @ model.lm_head.weight.T)


def test_two_documents_are_read_by_one_encoder():
    config = config_of(documents=2, positions="learned")
    model, documents = moved_model(config), random_rows([3, 12, 9, 1], 12)
    encoder = moved_model(config_of(length=12, positions="learned"))
    encoder.decoder.load_state_dict(model.decoder.state_dict())
    u, v = (encoder.decoder(documents[half::2])[0][:, 0] for half in (0, 1))
    logits = model(input_ids=documents.view(2, LENGTH)).logits[:, 0]
    torch.testing.assert_close(logits, torch.cat([u, v, u * v, u - v], -1) @ model.lm_head.weight.T)
    check_parameters(config)
    check_flop_at(config, 2, LENGTH)


def test_sines_are_positions_that_are_not_learned():
    config = config_of(positions="sines")
    model, learned = moved_model(config), moved_model(config_of(positions="learned"))
    rows = random_rows([7, LENGTH])
    places = torch.arange(LENGTH)[:, None].double() * 10_000.0 ** (-torch.arange(0, config.d_model, 2) / config.d_model)
    table = model.model_config.matrix_std * torch.cat([places.sin(), places.cos()], 1)
    learned.load_state_dict({**model.state_dict(), "decoder.positions": table})
    torch.testing.assert_close(model(input_ids=rows).logits, learned(input_ids=rows).logits)
    check_parameters(config)
    check_flop_at(config, 2, LENGTH)


def test_a_patch_is_a_square_of_pixels():
    config = config_of(length=4 * 6 * 2, padding_id=None, image=(4, 6, 2), patch=2)
    embedding = PatchEmbedding(config, config.encoder)
    torch.nn.init.normal_(embedding.weight)
    image = torch.arange(48).view(4, 6, 2)
    patches = embedding(image.flatten()[None])
    square = image[2:4, 2:4].flatten()  # row 1, column 1 of 2 x 3
    torch.testing.assert_close(patches[0, 4], (square / 128 - 1) @ embedding.weight)
    assert patches.shape == (1, 6, config.d_model)


@pytest.mark.parametrize("arch", ["hgrn1", "llama"])
def test_counts_of_patches_are_those_of_the_model(arch):
    config = config_of(arch, length=8 * 8 * 3, padding_id=None, image=(8, 8, 3), patch=4, positions="learned")
    check_parameters(config)
    check_flop_at(config, 2, config.context_length)
    assert count_params(config).by_module["positions"] == 4 * config.d_model


def test_flop_counts_projections_once_and_the_recurrence_twice():
    encoder, language = config_of("hgrn2", 128), preset("hgrn2", "25k", context_length=128)
    of = {name: train_flops_per_token(config, "exact") for name, config in (("e", encoder), ("l", language))}
    heads = 3 * 2 * language.d_model * (language.vocab_size - 3 / 128)
    from flops.architectures.hgrn2 import ENTRY

    assert of["e"] == pytest.approx(of["l"] - heads + 3 * 2 * sum(ENTRY.core(language, 128).values()) / 128)


def test_flop_of_axes_is_that_of_lines():
    """Four readings of an image of 8 x 8 are 32 lines of 8."""
    from flops.architectures.hgrn2 import ENTRY

    axes, line = (image_of(8, "hgrn2", scan) for scan in ("axes", "line"))
    of = {name: train_flops_per_token(config, "exact") for name, config in (("a", axes), ("l", line))}
    core, long = (axes.n_layers * sum(ENTRY.core(axes, length).values()) for length in (8, 64))
    assert of["a"] - of["l"] == pytest.approx(3 * (32 * core - 2 * long) / 64)
    assert count_params(axes) == count_params(line)


@pytest.mark.parametrize("arch", ["hgrn2", "hgrn1", "tnl"])
def test_a_transposed_image_has_the_same_logits_by_axes_alone(arch):
    image = random_rows([16], 16).view(4, 4)
    orders = {"transposed": image.T, "rows moved": image.roll(1, 0), "pixels swapped": image.flatten().roll(1)}
    for scan in ("axes", "line"):
        model = moved_model(image_of(4, arch, scan))
        logits = {name: model(input_ids=ids.reshape(1, -1)).logits for name, ids in orders.items()}
        plain = model(input_ids=image.reshape(1, -1)).logits
        differ = {name for name, other in logits.items() if not torch.allclose(other, plain)}
        assert differ == set(orders) - ({"transposed"} if scan == "axes" else set())


def test_a_scan_counts_where_layers_read_by_it():
    """Lines are not named, so that older hashes stay; softmax layers ignore a scan."""
    for arch, counts in (("hgrn2", True), ("transformer", False)):
        axes, line = (image_of(4, arch, scan) for scan in ("axes", "line"))
        assert "scan" not in line.to_dict()["encoder"] and ModelConfig.from_dict(axes.to_dict()) == axes
        assert (axes.identity() != line.identity()) == counts
    model, ids = moved_model(axes), random_rows([16], 16)
    assert torch.equal(model(input_ids=ids).logits, moved_model(line)(input_ids=ids).logits)


def test_memory_counts_both_directions():
    own = {name: {"micro_batch_tokens": 512, "precision": "fp32", "kernels": False} for name in ("encoder", "language")}
    activations = [
        training_memory(config, **own[name])["activations"]
        for name, config in (("encoder", config_of(length=64)), ("language", preset("hgrn2", "25k", context_length=64)))
    ]
    assert 1.4 < activations[0] / activations[1] < 2


def test_a_pattern_of_layers_is_an_encoder():
    with as_registered():
        register_pattern("mixed-layers", ["hgrn2", "softmax"])
        config = config_of("mixed-layers")
        assert ModelConfig.from_dict(config.to_dict()) == config
        check_encoder(config)


def test_a_classifier_is_saved_and_loaded(tmp_path):
    model = build_model(config_of(documents=2, positions="learned"), seed=1)
    model.save_pretrained(tmp_path)
    loaded, ids = load_model(tmp_path), random_rows([LENGTH, 20])
    assert isinstance(loaded, Classifier) and loaded.model_config == model.model_config
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_the_target_is_that_of_the_last_place():
    model, ids = build_model(config_of(), seed=0), random_rows([LENGTH, 20])
    targets = torch.full((2, LENGTH), 200)  # ids, as a row of a batch has them
    targets[:, -1] = torch.tensor([2, 0])
    out = model(input_ids=ids, targets=targets, loss_only=True)
    expected = torch.nn.functional.cross_entropy(model(input_ids=ids).logits[:, 0], torch.tensor([2, 0]))
    torch.testing.assert_close(out.loss, expected)


def test_language_models_say_nothing_of_encoders():
    config = preset("hgrn2", "25k")
    assert "encoder" not in config.to_dict() and "encoder" not in config.identity()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_classes": 1}, "n_classes must be"),
        ({"pooling": "max"}, "pooling must be one of"),
        ({"documents": 3}, "documents must be 1 or 2"),
        ({"documents": 2, "length": 25}, "is not 2 equal documents"),
        ({"patch": 2}, "images without padding"),
        ({"patch": 5, "image": (4, 6, 1), "padding_id": None}, "does not divide"),
        ({"patch": 2, "image": (4, 4, 1), "padding_id": None}, "is not a row of 24 numbers"),
        ({"classes": 3}, "must have n_classes"),
        ({"scan": "axis"}, "scan must be one of line, axes, not 'axis'.*axes"),
        ({"scan": "axes"}, "rows and columns of square images"),
        ({"scan": "axes", "patch": 1, "image": (4, 6, 1), "padding_id": None}, "rows and columns of square images"),
        ({"arch": "transformer", "window": 4}, "window"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    own = {name: changes.pop(name) for name in ("arch", "length") if name in changes}
    window = {"window": changes.pop("window")} if "window" in changes else {}
    with pytest.raises(InputError, match=message):
        config_of(**own, **changes).replace(**window)


@pytest.mark.parametrize("given", [{"use_cache": True}, {"attention_mask": torch.ones(1, LENGTH)}, {"ids": LENGTH + 1}])
def test_rows_and_arguments_that_no_encoder_reads_are_refused(given):
    ids = torch.zeros(1, given.pop("ids", LENGTH), dtype=torch.int64)
    with pytest.raises(InputError, match="encoder reads"):
        build_model(config_of(), seed=0)(input_ids=ids, **given)
