"""The Hugging Face classes read and write the same files as arch.lm, through the library's own entry points."""

import torch

from arch.config import ARCHS
from arch.lm import build_model, load_model
from arch.presets import preset


def test_auto_classes_round_trip(tmp_path):
    import transformers

    import arch.hf  # noqa: F401 (registers)

    for arch_name in ARCHS:
        config = preset(arch_name, "14k")
        model = build_model(config, 0)
        ids = torch.randint(0, config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
        model.save_pretrained(tmp_path / arch_name)
        auto = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / arch_name)
        assert auto.config.max_position_embeddings == config.context_length
        # the library's loader may place weights at other alignments, which changes the last bit of a sum
        torch.testing.assert_close(auto(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-5, atol=1e-6)
        loss = auto(input_ids=ids, labels=ids).loss
        shifted = model(input_ids=ids[:, :-1], targets=ids[:, 1:]).loss
        torch.testing.assert_close(loss, shifted, rtol=1e-5, atol=1e-6)
        assert auto.generate(ids[:, :5], max_new_tokens=4, do_sample=False).shape == (2, 9)
        auto.save_pretrained(tmp_path / "again")
        assert torch.equal(load_model(tmp_path / "again").lm_head.weight, model.lm_head.weight)
