"""The Hugging Face classes read and write the same files as arch.lm, through the library's own entry points."""

import json

import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.lm import build_model, load_model
from arch.presets import preset
from data.hf_tokenizer import write_tokenizer
from tests.arch.test_model import tokens


def auto(path, **options):
    import transformers

    import arch.hf  # noqa: F401 (registers)

    return transformers.AutoModelForCausalLM.from_pretrained(path, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """arch -> (directory, our model), large enough weights that tokens differ."""
    models = {}
    for arch in ARCHS:
        path = tmp_path_factory.mktemp(arch)
        model = build_model(preset(arch, "14k", init_std=0.2), 0).eval()
        model.save_pretrained(path)
        write_tokenizer("bytes", path)
        models[arch] = (path, model)
    return models


@pytest.mark.parametrize("arch", ARCHS)
def test_auto_classes_round_trip(arch, saved, tmp_path):
    path, model = saved[arch]
    ids = tokens(model.model_config, length=40)
    other = auto(path)
    assert other.config.max_position_embeddings == model.model_config.context_length
    # the library's loader may place weights at other alignments, which changes the last bit of a sum
    torch.testing.assert_close(other(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    loss = other(input_ids=ids, labels=ids).loss
    shifted = model(input_ids=ids[:, :-1], targets=ids[:, 1:]).loss
    torch.testing.assert_close(loss, shifted, rtol=1e-5, atol=1e-6)
    other.save_pretrained(tmp_path)
    assert torch.equal(load_model(tmp_path).lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("arch", ARCHS)
def test_generate(arch, saved):
    """Greedy, sampling and beams with the state give what they give without it; a padded row what it gives alone."""
    path, model = saved[arch]
    hf = auto(path).double()
    prompt = tokens(model.model_config, rows=2, length=40) % 256  # the library takes pad tokens in a prompt for padding
    options = {"max_new_tokens": 12, "pad_token_id": 256, "eos_token_id": None}
    for name, how in {
        "greedy": {"do_sample": False},
        "sampling": {"do_sample": True, "top_p": 0.9, "num_return_sequences": 2},
        "beams": {"num_beams": 3, "do_sample": False},
    }.items():
        results = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            results.append(hf.generate(prompt, use_cache=use_cache, **how, **options))
        assert torch.equal(*results), name
    greedy = hf.generate(prompt, do_sample=False, **options)
    again = greedy[:, :40]
    for _ in range(12):
        again = torch.cat([again, hf(again).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(greedy, again)

    left = torch.cat([torch.full((1, 7), 256), prompt[:1, :33]], 1)
    mask = torch.ones_like(prompt)
    mask[1, :7] = 0
    both = hf.generate(torch.cat([prompt[1:], left]), attention_mask=mask, do_sample=False, **options)
    assert torch.equal(both[0], greedy[1])
    assert torch.equal(both[1, 40:], hf.generate(prompt[:1, :33], do_sample=False, **options)[0, 33:])


def test_generation_reads_each_token_once(saved):
    path, model = saved["hgrn2"]
    hf = auto(path)
    lengths = []
    hf.decoder.register_forward_pre_hook(lambda module, args: lengths.append(args[0].shape[1]))
    hf.generate(tokens(model.model_config, length=40), max_new_tokens=5, eos_token_id=None, pad_token_id=0)
    assert lengths == [40, 1, 1, 1, 1]


def test_generation_goes_on_from_a_state(saved):
    path, model = saved["tnl"]
    hf = auto(path).double()
    ids = tokens(model.model_config, length=40)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    state = hf(ids[:, :30], use_cache=True).state
    assert torch.equal(hf.generate(ids, state=state, **options), hf.generate(ids, **options))


@pytest.mark.parametrize("arch", ["llama", "hgrn2", "mamba2"])
def test_pipeline(arch, saved):
    import transformers

    path, _ = saved[arch]
    auto(path)
    generator = transformers.pipeline("text-generation", model=str(path))
    [answer] = generator("def main", max_new_tokens=5, do_sample=False)
    assert answer["generated_text"].startswith("def main")
    two = generator(["def main", "x"], max_new_tokens=5, do_sample=False, batch_size=2)
    assert two[0] == [answer]


@pytest.mark.parametrize("arch", ARCHS)
def test_training_arguments_of_the_library(arch, saved):
    """Gradient checkpointing, packing and logits_to_keep under the library's names."""
    path, model = saved[arch]
    hf = auto(path).train()
    ids = tokens(model.model_config, length=40)
    documents = (torch.arange(40) >= 13).long().expand(2, -1)
    plain = hf(ids, labels=ids, documents=documents).loss
    plain.backward()
    grads = [p.grad.clone() for p in hf.parameters()]
    hf.zero_grad()
    hf.gradient_checkpointing_enable()
    assert hf.decoder.gradient_checkpointing
    hf(ids, labels=ids, documents=documents).loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, hf.parameters(), strict=True))
    alone = [hf(part, labels=part).loss * (part.shape[1] - 1) for part in (ids[:, :13], ids[:, 13:])]
    torch.testing.assert_close(plain, sum(alone) / 38, rtol=1e-5, atol=1e-6)
    assert hf(ids, logits_to_keep=2).logits.shape[1] == 2


def test_what_is_not_supported_is_refused(saved):
    path, model = saved["tnl"]
    hf, ids = auto(path), tokens(model.model_config)
    for name in ("position_ids", "inputs_embeds", "output_hidden_states"):
        with pytest.raises(InputError, match=name):
            hf(ids, **{name: torch.ones(2, 70)})
    hf(ids, output_attentions=False, return_dict=True)


def test_weights_of_another_shape_are_refused(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    path, _ = saved["tnl"]
    weights = load_file(path / "model.safetensors")
    del weights["decoder.layers.1.mixer.gate.up.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    with pytest.raises(InputError, match=r"missing.*layers\.1\.mixer\.gate\.up\.weight"):
        auto(tmp_path)
    fields = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"d_ffn": fields["d_ffn"] + 8}))
    with pytest.raises(InputError, match=r"tensor 'decoder\.layers\.0\.channel\.down\.weight' has shape \["):
        auto(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(fields | {"lower_bound": "off"}))
    with pytest.raises(InputError, match="lower_bound means nothing to tnl"):
        auto(tmp_path)
