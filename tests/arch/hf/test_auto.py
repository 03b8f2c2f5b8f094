"""The Hugging Face classes read and write the same files as arch.model.lm, through the library's own entry points."""

import json
import math
import os
from unittest import mock

import pytest
import torch

from arch.config import ARCHS
from arch.errors import InputError
from arch.model.lm import build_model, load_model
from arch.presets import preset
from data.hf_tokenizer import write_tokenizer
from data.tokenizer import ByteTokenizer
from tests.arch.model.test_model import tokens


def auto(path, **options):
    import transformers

    import arch.hf.auto  # noqa: F401 (registers)

    return transformers.AutoModelForCausalLM.from_pretrained(path, **options)


KINDS = ("llama", "transformer", "hgrn2", "cosformer2", "mamba2")  # of states: all of them are read in every layout


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """arch -> (directory, our model), large enough weights that tokens differ."""
    models = {}
    for arch in ARCHS:
        path = tmp_path_factory.mktemp(arch)
        model = build_model(preset(arch, "14k", init_std=0.2), 0).eval()
        model.save_pretrained(path)
        write_tokenizer(ByteTokenizer(), path)
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
    again = load_model(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("arch", KINDS)
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
    state = hf(prompt[:, :30], use_cache=True).state  # and goes on from one
    assert torch.equal(hf.generate(prompt, state=state, do_sample=False, **options), greedy)

    left = torch.cat([torch.full((1, 7), 256), prompt[:1, :33]], 1)
    mask = torch.ones_like(prompt)
    mask[1, :7] = 0
    both = hf.generate(torch.cat([prompt[1:], left]), attention_mask=mask, do_sample=False, **options)
    assert torch.equal(both[0], greedy[1])
    assert torch.equal(both[1, 40:], hf.generate(prompt[:1, :33], do_sample=False, **options)[0, 33:])


@pytest.mark.parametrize("arch", ARCHS)
def test_vectors_in_the_place_of_ids_and_a_returned_state(arch, saved):
    """inputs_embeds in a pass, its gradients, and in generation; generation goes on from what a call returned."""
    path, model = saved[arch]
    hf, ids = auto(path), tokens(model.model_config)[:, :20]
    vectors = hf.get_input_embeddings()(ids).detach().requires_grad_()
    kept = []
    handle = hf.get_input_embeddings().register_forward_hook(lambda module, given, made: kept.append(made))
    made = hf(ids, labels=ids).loss
    handle.remove()
    (wanted,) = torch.autograd.grad(made, kept)
    (gradient,) = torch.autograd.grad(hf(inputs_embeds=vectors, labels=ids).loss, [vectors])
    assert torch.equal(gradient, wanted) and wanted.abs().sum() > 0
    with torch.no_grad():
        assert torch.equal(hf(ids).logits, hf(inputs_embeds=vectors).logits)
    greedy = {"do_sample": False, "eos_token_id": None}
    whole = hf.generate(ids, max_new_tokens=8, **greedy)
    assert torch.equal(hf.generate(inputs_embeds=vectors, max_new_tokens=8, **greedy), whole[:, 20:])
    first = hf.generate(ids, max_new_tokens=4, return_dict_in_generate=True, **greedy)
    state = first.past_key_values
    assert torch.equal(hf.generate(first.sequences, past_key_values=state, max_new_tokens=4, **greedy), whole)
    with torch.no_grad():
        after = hf(ids[:, :12], use_cache=True).state
        rest = hf(ids[:, 12:], past_key_values=after).logits
    torch.testing.assert_close(rest, hf(ids).logits[:, 12:], rtol=1e-4, atol=1e-5)


def test_a_longer_context_is_the_same_model(saved):
    """Raising it to read more tokens must not move what depends on the one trained at (cosFormer2's filter)."""
    for arch in ARCHS:
        path, model = saved[arch]
        ids = tokens(model.model_config, length=40)
        longer = auto(path, max_position_embeddings=4096)
        assert longer.config.context_length == 4096
        torch.testing.assert_close(longer(ids).logits, auto(path)(ids).logits, rtol=1e-5, atol=1e-6)
        assert preset(arch, "14k", context_length=4096).identity().get("tpe_context") is None


def test_pipeline(saved):
    import transformers

    path, _ = saved["hgrn2"]
    auto(path)
    generator = transformers.pipeline("text-generation", model=str(path))
    [answer] = generator("def main", max_new_tokens=5, do_sample=False)
    assert answer["generated_text"].startswith("def main")
    two = generator(["def main", "x"], max_new_tokens=5, do_sample=False, batch_size=2)
    assert two[0] == [answer]


@pytest.mark.parametrize("arch", KINDS)
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
    mask = (torch.arange(40) >= 10).long().expand(2, -1)  # padded labels do not count
    kept = hf(ids, attention_mask=mask, labels=ids).loss
    torch.testing.assert_close(kept, hf(ids[:, 10:], labels=ids[:, 10:]).loss, rtol=1e-5, atol=1e-6)


def test_what_is_not_supported_is_refused(saved):
    path, model = saved["tnl"]
    hf, ids = auto(path), tokens(model.model_config)
    for name in ("position_ids", "inputs_embeds", "output_hidden_states", "seq_idx", "cu_seq_lens_q"):
        with pytest.raises(InputError, match=name):
            hf(ids, **{name: torch.ones(2, 70)})
    with pytest.raises(InputError, match=r"inputs_embeds has shape \[2, 70, 3\]: give \[B, T, "):
        hf(inputs_embeds=torch.ones(2, 70, 3))
    with pytest.raises(InputError, match="give input_ids or inputs_embeds"):
        hf()
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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_model_from_a_configuration_starts_as_ours(arch, tied):
    """Every parameter spread as ours, drawn from PyTorch's seed, and the same first loss."""
    import transformers

    from arch.hf.auto import LinearScalingConfig

    fields = preset(arch, "14k", tie_embeddings=tied).to_dict()
    config = LinearScalingConfig(**fields)
    models = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        models.append(transformers.AutoModelForCausalLM.from_config(config))
    first, same, other = ([p.detach() for p in model.decoder.parameters()] for model in models)
    assert all(map(torch.equal, first, same)) and not all(map(torch.equal, first, other))
    ours = build_model(config.model_config(), 0)
    for (name, a), b in zip(models[0].named_parameters(), ours.parameters(), strict=True):
        assert torch.isfinite(a).all(), name
        if a.numel() > 500:
            assert a.std().item() == pytest.approx(b.std().item(), rel=0.15), name
    ids = tokens(ours.model_config, rows=4)
    loss = models[0](ids, labels=ids).loss.item()
    assert loss == pytest.approx(ours(ids[:, :-1], ids[:, 1:]).loss.item(), rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_can_grow(tied, tmp_path):
    from arch.hf.auto import LinearScalingConfig, LinearScalingForCausalLM

    hf = LinearScalingForCausalLM(LinearScalingConfig(**preset("hgrn2", "14k", tie_embeddings=tied).to_dict()))
    old = hf(torch.arange(9)[None]).logits
    hf.resize_token_embeddings(260, mean_resizing=False)
    assert hf.decoder.embedding.weight[257:].std() < 0.05  # as at initialisation
    hf.save_pretrained(tmp_path)
    for model in (hf, auto(tmp_path)):
        assert model.config.vocab_size == 260 and model(torch.tensor([[259]])).logits.shape == (1, 1, 260)
        torch.testing.assert_close(model(torch.arange(9)[None]).logits[..., :257], old)
        with pytest.raises(InputError, match=r"0 \.\. 259"):
            model(torch.tensor([[260]]))


@pytest.mark.parametrize("arch", ["hgrn2"])
def test_the_librarys_trainer(arch, tmp_path):
    """From a configuration, in bf16, with checkpointing and evaluation: the loss falls, the checkpoint is the model."""
    import transformers

    from arch.hf.auto import LinearScalingConfig

    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(LinearScalingConfig(**preset(arch, "14k").to_dict()))
    ids = torch.arange(32) * 3 % 100
    options = {"max_steps": 12, "learning_rate": 0.02, "eval_strategy": "steps", "eval_steps": 6, "save_steps": 12}
    options |= {"bf16": True, "gradient_checkpointing": True, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    with mock.patch.dict(os.environ):  # it leaves RANK and WORLD_SIZE there
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(str(tmp_path), **options),
            train_dataset=[{"input_ids": ids, "labels": ids}] * 16,
            eval_dataset=[{"input_ids": ids, "labels": ids}] * 4,
        )
        trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses) == 2 and losses[1] < losses[0] < math.log(257)
    again = auto(tmp_path / "checkpoint-12")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
