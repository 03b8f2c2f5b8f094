"""What must be computed in fp32 is, whatever autocast says and whatever dtype the weights have."""

import pytest
import torch

from arch.architectures.common.forget_gates import lower_bounds
from arch.config import ARCHS, NORMS
from arch.model.lm import build_model, load_model, next_token_loss
from arch.model.norms import Norm
from arch.model.positions import cosine_pairs, rotate_pairs, rotation
from arch.ops import gated_attention
from arch.presets import preset

from ..ops.compare import CASES, case


def randn(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operations():
    """Each island outside of the sequence operations by name: a function of leaves, and the leaves."""
    q, x = randn(1, 40, 2, 8, seed=0, dtype=torch.bfloat16), randn(1, 40, 8, seed=5, dtype=torch.bfloat16)
    theta, logits = randn(2, 8, seed=7), randn(2, 20, 50, seed=8, dtype=torch.bfloat16)
    targets = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(9))
    operations = {
        "angles": (lambda theta: torch.stack(rotation(theta, torch.arange(3, 43))), [theta]),
        "lrpe": (lambda x, theta: cosine_pairs(x, *rotation(theta, torch.arange(3, 43))), [q, theta]),
        "rope": (lambda x, theta: rotate_pairs(x, x, *rotation(theta, torch.arange(3, 43)))[0], [q, theta[0, :4]]),
        "bounds": (lower_bounds, [randn(3, 8, seed=11)]),
        "loss": (lambda logits: next_token_loss(logits, targets), [logits]),
    }
    for kind in NORMS:
        operations[f"norm {kind}"] = (Norm(kind, 8, 1e-6), [x])
    return operations


@pytest.mark.parametrize("name", operations())
def test_autocast_changes_no_bit_of_result_or_gradient(name):
    function, inputs = operations()[name]

    def run():
        leaves = [leaf.clone().requires_grad_() for leaf in inputs]
        return function(*leaves), leaves

    outside, leaves = run()
    with torch.autocast("cpu", torch.bfloat16):
        inside, again = run()
    assert inside.dtype == outside.dtype and torch.equal(inside, outside)
    for out, into in ((outside, leaves), (inside, again)):
        out.backward(torch.ones_like(out))
        assert all(leaf.grad is not None for leaf in into)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(leaves, again, strict=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_changes_no_bit_of_a_sequence_operation(name, dtype):
    """Nor of its gradients: autograd runs the backward pass under the autocast state of whoever calls it."""
    example = case(name, 2, 40, dtype)

    def run(forward, backward):
        leaves = [x.clone().requires_grad_() for x in example.inputs()]
        with torch.autocast("cpu", torch.bfloat16, enabled=forward):
            out, state = example.run(leaves)
        total = out.sum() + state.square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=backward):
            return [out, state, *torch.autograd.grad(total, leaves)]

    plain = run(False, False)
    for result in (run(False, True), run(True, True)):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(result, plain, strict=True))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("setting, expected", [("auto", torch.bfloat16), ("fp32", torch.float32)])
def test_residual_dtype_is_what_was_asked_for(arch, setting, expected):
    model = build_model(preset(arch, "14k", residual_dtype=setting), 0)
    seen = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda module, inputs, output: seen.extend([inputs[0].dtype, output[0].dtype]))
    ids = torch.zeros(1, 8, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids)
    assert seen == [expected] * 2 * len(model.decoder.layers)
    seen.clear()
    model(input_ids=ids)
    assert seen == [torch.float32] * 2 * len(model.decoder.layers)


@pytest.mark.parametrize("family", ARCHS)
@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_model_in_bf16_keeps_its_time_scales(family, norm, tmp_path):
    """Loaded in bf16, by our loader or by the library's: angles and bounds stay those of the fp32 model."""
    import transformers

    import arch.hf.auto  # noqa: F401 (registers)

    config = preset(family, "14k", norm=norm)
    model = build_model(config, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in model.keep_fp32():
                parameter += 1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path, torch.bfloat16)
    ids = torch.randint(0, 257, (2, 200), generator=torch.Generator().manual_seed(0))
    expected = load_model(tmp_path)(input_ids=ids).logits
    for loaded in (
        load_model(tmp_path, torch.bfloat16),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16),
    ):
        for name, parameter in loaded.named_parameters():
            kept = name in model.keep_fp32()
            assert parameter.dtype == (torch.float32 if kept else torch.bfloat16), name
            assert not kept or torch.equal(parameter, dict(model.named_parameters())[name]), name
        error = (loaded(input_ids=ids).logits.float() - expected).norm() / expected.norm()
        assert error < 0.03


def test_angles_of_bf16_frequencies_are_fp32():
    theta = torch.tensor([1.0, 0.3]).bfloat16()
    cos, sin = rotation(theta, torch.arange(8000, 8003))
    assert cos.dtype == sin.dtype == torch.float32
    torch.testing.assert_close(cos, (torch.arange(8000, 8003)[:, None] * theta.double()).cos().float())


def test_gated_attention_refuses_a_second_derivative():
    q, v, g = (randn(1, 8, 1, 4, seed=seed).requires_grad_() for seed in range(3))
    out, _ = gated_attention(q, None, v, (g, torch.tensor(0.2)), chunk_size=8)
    (first,) = torch.autograd.grad(out.square().sum(), g, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
