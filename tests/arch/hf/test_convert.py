"""Conversion keeps every bit of the weights, and refuses what would become another function."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from arch.errors import InputError
from arch.hf.convert import from_hf, to_hf
from arch.hf.families import families
from arch.model.lm import build_model
from arch.presets import preset
from arch.registry import register_pattern
from tests.arch.bench.test_peers import ARCHS, scattered
from tests.commands import refused
from tests.registries import as_registered

FAMILIES = families()
TYPES = {family.arch: kind for kind, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """arch -> (directory that transformers wrote, our model)."""
    models = {}
    for arch in ARCHS:
        path, model = tmp_path_factory.mktemp(arch), scattered(arch, "14k")
        to_hf(model).save_pretrained(path)
        models[arch] = (path, model)
    return models


def same_weights(model, other):
    first, second = model.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def copied(source, path, tensors=None, **fields):
    """The directory again at `path`, with other fields in config.json and `tensors` (None: not there) replaced."""
    config = json.loads((source / "config.json").read_text()) | fields
    weights = load_file(source / "model.safetensors") | (tensors or {})
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in weights.items() if v is not None}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_there_and_back_bit_for_bit(arch, tied, tmp_path):
    model = scattered(arch, tie_embeddings=tied, residual_dtype="auto" if arch == "llama" else "fp32")
    theirs = to_hf(model)
    back = from_hf(theirs)
    theirs.save_pretrained(tmp_path)
    for other in (back, from_hf(tmp_path)):
        same_weights(other, model)
    same_weights(to_hf(back), theirs)
    meaningless = {} if arch == "llama" else {"d_ffn": 1} | ({"n_heads": 1} if arch == "mamba1" else {})
    chunks = {} if arch == "mamba2" else {"chunk_size": 64}
    assert back.model_config.replace(**meaningless, **chunks) == model.model_config.replace(**meaningless, **chunks)


def test_shards_and_narrow_weights(tmp_path):
    """Several files with an index, in bf16: widened without another rounding."""
    model = scattered("llama", "98k")
    theirs = to_hf(model).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    back = from_hf(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight.bfloat16().float()), name


def test_a_directory_is_read_without_transformers(saved):
    code = "import sys; from arch.hf.convert import from_hf; from_hf(sys.argv[1])"
    code += "; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(saved["llama"][0])], check=True)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_field_of_the_library_is_accounted_for(kind):
    """Read, refused or of no effect; and the defaults here are the library's."""
    import transformers

    family = FAMILIES[kind]
    config = getattr(transformers, family.classes[0])
    fields_of_family = {field.name for field in dataclasses.fields(config)} & set(config.__annotations__)
    assert fields_of_family == family.defaults.keys() | set(family.ignored)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name, value in family.defaults.items():
        theirs = defaults[name]
        theirs = getattr(theirs, "default", theirs)  # a field may carry limits
        assert value == (list(theirs) if isinstance(theirs, tuple) else theirs), name


def test_the_older_place_of_rope_theta(saved, tmp_path):
    path, _ = saved["llama"]
    old = copied(path, tmp_path / "old", rope_parameters=None, rope_theta=500.0, rope_scaling=None)
    assert from_hf(old).model_config.options.rope_base == 500.0
    new = copied(path, tmp_path / "new", rope_parameters={"rope_type": "default", "rope_theta": 700.0})
    assert from_hf(new).model_config.options.rope_base == 700.0
    neither = copied(path, tmp_path / "neither", rope_parameters=None)
    assert from_hf(neither).model_config.options.rope_base == 10_000.0


REFUSED = [
    ("llama", "attention_bias", True),
    ("llama", "mlp_bias", True),
    ("llama", "attention_dropout", 0.1),
    ("llama", "hidden_act", "gelu"),
    ("llama", "head_dim", 16),
    ("llama", "num_key_value_heads", 3),
    ("llama", "vocab_size", "257"),
    ("llama", "rope_scaling", {"type": "linear", "factor": 2.0}),
    ("llama", "rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}),
    ("llama", "rope_parameters", {"full_attention": {"rope_type": "default"}}),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "quantization_config", {"quant_method": "gptq"}),
    ("mamba2", "n_groups", 2),
    ("mamba2", "use_bias", True),
    ("mamba2", "use_conv_bias", False),
    ("mamba2", "hidden_act", "relu"),
    ("mamba2", "time_step_limit", [0.0, 1.0]),
    ("mamba2", "time_step_limit", [0.001, {"__float__": "Infinity"}]),
    ("mamba2", "head_dim", 48),
    ("mamba1", "use_bias", True),
    ("mamba1", "time_step_rank", "half"),
    ("mamba1", "state_size", 0),
]


@pytest.mark.parametrize("arch, field, value", REFUSED)
def test_what_cannot_be_expressed_is_refused(arch, field, value, saved, tmp_path):
    path = copied(saved[arch][0], tmp_path / "x", **{field: value})
    with refused(f"{path}: {field}=", f"our {arch}"):
        from_hf(path)
    if isinstance(value, bool):  # of a model object too
        theirs = to_hf(saved[arch][1])
        setattr(theirs.config, field, value)
        with pytest.raises(InputError, match=field):
            from_hf(theirs)


def test_another_model_type(saved, tmp_path):
    with pytest.raises(InputError, match=r"model_type='mamba3' has no counterpart here .did you mean 'mamba"):
        from_hf(copied(saved["mamba2"][0], tmp_path / "x", model_type="mamba3"))


NAME = "model.layers.1.self_attn.k_proj.weight"
TENSORS = [
    ({NAME: None}, f"tensor '{NAME}' is missing"),
    ({"model.layers.0.self_attn.k_proj.bias": torch.zeros(24)}, "'model.layers.0.self_attn.k_proj.bias' is not one of"),
    ({NAME: torch.zeros(24, 23)}, f"'{NAME}' has shape .24, 23., the configuration needs .24, 24."),
    ({NAME: torch.zeros(24, 24, dtype=torch.int8)}, f"'{NAME}' is torch.int8"),
    ({"lm_head.weight": torch.zeros(257, 24)}, "'lm_head.weight' is not the embedding"),
]


@pytest.mark.parametrize("tensors, message", TENSORS)
def test_tensors_that_do_not_fit(tensors, message, saved, tmp_path):
    path = copied(saved["llama"][0], tmp_path / "x", tensors)
    with pytest.raises(InputError, match=message):
        from_hf(path)


def test_tensors_that_say_nothing_new(saved, tmp_path):
    """A tied head that was saved too, and older checkpoints' rotary frequencies."""
    path, model = saved["llama"]
    more = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    more["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
    same_weights(from_hf(copied(path, tmp_path / "x", more)), model)


def test_directories_without_a_model(saved, tmp_path):
    path = saved["llama"][0]
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        from_hf(tmp_path / "nothing")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((path / "config.json").read_text())
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        from_hf(bare)
    torch.save({}, bare / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights are never read"):
        from_hf(bare)
    (bare / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(InputError, match="is not a file name in this directory"):
        from_hf(bare)
    (bare / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InputError, match="not an index"):
        from_hf(bare)
    (bare / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(InputError, match="no readable safetensors file"):
        from_hf(bare)
    (bare / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        from_hf(bare)


def test_what_the_library_has_no_class_for():
    with pytest.raises(InputError, match="no class for hgrn2"):
        to_hf(build_model(preset("hgrn2", "14k")))
    with as_registered():
        register_pattern("mix", ["llama", "mamba2"])
        hybrid = build_model(preset("mix", "14k"))
    with pytest.raises(InputError, match="no class for mix"):  # loaded where its study is not
        to_hf(hybrid)
    with pytest.raises(InputError, match="RMSNorm only, not norm='layer'"):
        to_hf(build_model(preset("llama", "14k", norm="layer")))
    with pytest.raises(InputError, match="only fp32"):
        to_hf(build_model(preset("llama", "14k")).double())
