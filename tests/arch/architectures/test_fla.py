"""Layers of flash-linear-attention as kinds: with a package in its place whose layers run on CPUs, and on a GPU with
the package itself."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arch.architectures.fla import FlaOptions, kind_of_layers
from arch.config import ModelConfig
from arch.errors import InputError
from arch.model.lm import build_model, load_model
from arch.presets import preset
from arch.registry import ARCHITECTURES, architecture, register_pattern
from flops import conventions_of, cost_table, count_params, train_flops_per_token
from flops.ladder import Ladder, rung
from scaling.check import CHECKS, failures, small, small_like
from scaling.cli import training
from scaling.study.plan import plan, show_plan
from scaling.study.spec import load_study
from tests.commands import in_this_process, refused

STUB = Path(__file__).parent / "fla_stub"
GLA = "fla:GatedLinearAttention"
INSTALLED = importlib.util.find_spec("fla") is not None
needs_fla = pytest.mark.skipif(not INSTALLED, reason="flash-linear-attention is not installed")


@pytest.fixture
def stub(monkeypatch):
    """The package in its place, as on a machine without a GPU; afterwards no pattern of the test is known."""
    # not by the environment: CUDA, once it has started, would find no GPU for the tests of the package either
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(training, "visible_gpus", lambda: [])
    before, others = dict(ARCHITECTURES), {name for name in sys.modules if name.partition(".")[0] == "fla"}
    hidden = {name: sys.modules.pop(name) for name in others}
    monkeypatch.syspath_prepend(str(STUB))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[name]
    sys.modules.update(hidden)
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


def pattern(*layers, size="25k", **own):
    register_pattern("mix", list(layers), {layers[0]: own} if own else None)
    n_layers = 12 if size == "160m" else -(-2 // len(layers)) * len(layers)
    return preset("mix", size, chunk_size=32, n_layers=n_layers)


def test_names_and_options_come_from_the_source_alone(stub):
    """Without the package or torch being imported."""
    code = f"import sys; sys.path.insert(0, {str(STUB)!r})\n"
    code += "import arch.config; from arch.registry import architecture\n"
    code += f"print(architecture({GLA!r}).options.defaults()); print(sorted({{'fla', 'torch'}} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["{'mode': 'chunk', 'expand_k': 0.5, 'num_kv_heads': None}", "[]"]
    assert issubclass(architecture(GLA).options, FlaOptions) and architecture(GLA).gpus_alone


@pytest.mark.parametrize(
    ("layers", "own", "message"),
    [
        (["fla:GatedLinearAtention"], {}, "has no layer 'GatedLinearAtention' (did you mean 'GatedLinearAttention'?)"),
        (["fla:nn"], {}, "has no layer 'nn'"),
        (["fla:os.system"], {}, "has no layer 'os.system'"),
        ([GLA], {"expand_k": [1]}, "model.expand_k must be a number, a word, true, false or null, not [1]"),
        ([GLA], {"expand_k": math.inf}, "model.expand_k must be a number"),
        ([GLA], {"expand_kk": 1}, "unknown model key 'expand_kk'"),
        ([GLA], {"expand_k": 0.3}, "AssertionError: keys are divided among the heads"),
    ],
)
def test_a_wrong_name_or_option_is_one_line(stub, layers, own, message):
    with refused(message):
        count_params(pattern(*layers, **own))


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not installed here: pip install 'linear-scaling\[fla\]'"):
        kind_of_layers(GLA)


def test_the_layers_keep_their_own_initialisation(stub):
    """The same bits from the same seed, whatever was drawn before; each layer its own."""
    config = pattern(GLA, "llama", GLA)
    torch.manual_seed(0)
    model = build_model(config, seed=1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = build_model(config, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    for (name, parameter), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, other), name
    first, _, third = (layer.mixer for layer in model.decoder.layers)
    weight = first.inner.q_proj.weight
    limit = config.d_model**-0.5
    assert 0.9 * limit < weight.abs().max() <= limit  # nn.Linear's rule
    assert first.inner.tap.min() >= 0 and first.inner.f_proj.bias.abs().sum() > 0
    assert not torch.equal(weight, third.inner.q_proj.weight)
    assert "decoder.layers.0.mixer.inner.tap" in model.no_weight_decay()
    assert "decoder.layers.0.mixer.inner.q_proj.weight" not in model.no_weight_decay()


@pytest.mark.parametrize("layers", [[GLA, "softmax"], ["tnl", "fla:NoFormula", "fla:Rounded"]])
def test_the_checks_of_every_architecture(stub, layers):
    register_pattern("mix", layers)
    outcomes = dict(failures(small("mix"), [name for name in CHECKS if name != "backends"]))
    skipped = {"state size", "encoder"} | ({"flop"} if {"fla:NoFormula", "fla:Rounded"} & {*layers} else set())
    assert {name: problem for name, problem in outcomes.items() if problem} == {}
    assert {name for name, problem in outcomes.items() if problem is None} == skipped


def test_what_a_layer_does_not_read_is_refused_where_it_is_needed(stub):
    model = build_model(pattern("fla:Deaf"), seed=0)
    ids = torch.arange(20)[None]
    loss = model(input_ids=ids, targets=ids).loss
    loss.backward()
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).cache
    needs = {
        "packed documents: a token's output differs by": {"documents": (ids > 7).long()},
        "padding: a token's output differs by": {"attention_mask": (ids > 2).long()},
        "tokens after a state: ": {"cache": cache},
    }
    for what, needed in needs.items():
        with pytest.raises(InputError, match=f"fla:Deaf cannot read {what}"):
            model(input_ids=ids, **needed)


def test_a_pass_in_training_keeps_no_state(stub):
    model = build_model(pattern(GLA), seed=0)
    ids = torch.arange(20)[None]
    cache = model(input_ids=ids, use_cache=True).cache
    with pytest.raises(InputError, match=r"use torch\.no_grad"):
        model(input_ids=ids, cache=cache)


def test_costs(stub):
    """Linear modules and the recurrence in chunks of 64; what is not known is under no convention that needs it."""
    config = pattern(GLA, expand_k=0.25)
    d, h, T = config.d_model, config.n_heads, config.context_length
    own = 2 * d * d // 4 + 2 * d * d + d * h
    assert count_params(config).by_module["mixer.q_proj"] == config.n_layers * d * d // 4
    k, v = d // 4, d
    products = 2 * own + 2 * 3 * d * config.d_ffn + 2 * 64 * (k + v) + 4 * k * v / h
    exact = 3 * (config.n_layers * products + 2 * d * config.vocab_size)
    assert T % 64 == 0 and train_flops_per_token(config, "exact") == pytest.approx(exact, rel=1e-12)
    unknown = pattern("hgrn2", "fla:NoFormula")
    assert conventions_of(unknown) == ("6nd", "6nd_total")
    assert set(cost_table(unknown)["flops_per_token_train"]) == {"6nd"}
    with pytest.raises(InputError, match="'exact' has no formula for fla:NoFormula: use 6nd or 6nd_total"):
        train_flops_per_token(unknown, "exact")


def test_sizes_and_files(stub, tmp_path):
    config = pattern(GLA, "llama", size="160m")
    alone = count_params(preset("llama", "160m")).non_embedding
    assert count_params(config).non_embedding == pytest.approx(alone, rel=0.01)
    ladder = Ladder(1e6, 1e7, 3)
    for target in ladder.targets:
        assert abs(rung("mix", ladder, target, {"vocab_size": 257}).deviation) <= 0.01
    small_config = pattern(GLA, "llama", expand_k=0.25)
    model = build_model(small_config, seed=0)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["kinds"][GLA]["expand_k"] == 0.25
    assert load_model(tmp_path).model_config == small_config == ModelConfig.from_dict(small_config.to_dict())


def test_a_layer_that_needs_its_width_is_checked_at_it(stub):
    config = pattern(GLA, size="55k", expand_k=1 / 3)
    assert config.d_model == 48 and small_like(config, 2).d_model == 48
    assert small_like(pattern(GLA, size="55k", expand_k=1.0), 2).d_model == 32


STUDY = """
name: others
corpus: {source: "synthetic:0:200000"}
architectures: {x: {layers: ["LAYER", softmax], "LAYER": {OWN}}}
grid: {archs: [x, llama], sizes: [6k, 10k]}
model: {context_length: 128}
training: {n_tokens: 4096, batch_tokens: 1024, lr: 3e-3, n_checkpoints: 2}
evaluation: {validation_tokens: 2048}
"""


def test_a_study_plans_them_and_trains_them_on_gpus_alone(stub, tmp_path):
    from scaling.cli.main import main

    def written(layer, own):
        path = tmp_path / "study.yaml"
        path.write_text(STUDY.replace("LAYER", layer).replace("OWN", own))
        return path

    study = load_study(str(written("fla:NoFormula", "n_heads: 2")), own=True)
    text = show_plan(plan(study, study.runs()))
    assert text.count("unknown") >= 4 and "nan" not in text
    done = in_this_process(main, "plan", written(GLA, "expand_k: 0.5, n_heads: 2"), "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert all(run["flops_exact"] > 0 for run in printed["runs"])
    done = in_this_process(main, "run", tmp_path / "study.yaml", "--out", tmp_path / "out")
    assert done.returncode == 2
    line = done.stderr.strip()
    assert "layers fla:GatedLinearAttention run on GPUs alone, and there is none here" in line and "\n" not in line
    assert not list((tmp_path / "out").rglob("run.json"))


@pytest.fixture
def untuned(monkeypatch):
    """Each kernel has the first of its configurations: the package would search for minutes."""
    from triton.runtime.autotuner import Autotuner

    pruned = Autotuner.prune_configs
    monkeypatch.setattr(Autotuner, "prune_configs", lambda self, *given, **named: pruned(self, *given, **named)[:1])


@pytest.mark.gpu("flash-linear-attention's kernels")
@needs_fla
@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize(
    "layer", ["GatedLinearAttention", "GatedDeltaNet", "KimiDeltaAttention", "DeltaNet", "HGRN2Attention"]
)
def test_the_packages_own_layers(layer):
    """Every check that their kernels can take; the loss falls under autocast, as in training."""
    own = {"expand_ratio": 16} if layer == "HGRN2Attention" else {}
    register_pattern("fla-mix", [f"fla:{layer}", "softmax"], {f"fla:{layer}": own})
    config = small("fla-mix")
    assert {name: problem for name, problem in failures(config, CHECKS) if problem} == {}
    model = build_model(config.replace(d_model=128), seed=0).cuda()
    ids = torch.randint(0, 256, (4, 129), generator=torch.Generator().manual_seed(0)).cuda()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(20):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids[:, :-1], targets=ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5, losses


@needs_fla
def test_gated_delta_is_the_packages_recurrence():
    """By head and by channel, against its naive functions, which compute in fp32."""
    pytest.importorskip("einops")
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.kda.naive import naive_recurrent_kda

    from arch.ops import gated_delta

    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 70, 3, width, generator=made) for width in (16, 16, 24))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    beta, state = 2 * torch.rand(2, 70, 3, generator=made), torch.randn(2, 3, 16, 24, generator=made)
    for width, theirs in (((), naive_recurrent_gated_delta_rule), ((16,), naive_recurrent_kda)):
        log_decay = -torch.rand(2, 70, 3, *width, generator=made)
        expected = theirs(q, k, v, g=log_decay, beta=beta, initial_state=state, output_final_state=True)
        for backend in ("naive", "chunk"):
            actual = gated_delta(q * 16**-0.5, k, v, beta, log_decay, initial_state=state, backend=backend)
            for a, b in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_trainer_refuses_a_cpu(stub, tmp_path):
    """The process of a run too, before it loads anything."""
    with pytest.raises(InputError, match="run on GPUs alone"):
        pattern(GLA).check_device(on_a_gpu=False)
    pattern(GLA).check_device(on_a_gpu=True)
    preset("llama", "25k").check_device(on_a_gpu=False)
