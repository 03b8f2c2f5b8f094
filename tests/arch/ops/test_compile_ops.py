"""Every operation through torch.compile as one graph, forward and backward, packed or not, equal to eager mode."""

import pytest
import torch

from .compare import assert_close, case, randn

PACKED = ["filter", "selective"]  # model/test_compile.py has others, of whole models
SLOW = [*((name, True) for name in ("decay head", "decay step", "gated logits", "scan constant")),
        *((name, False) for name in ("decay none", "gated log", "filter", "scan real", "selective"))]  # fmt: skip
LENGTH = 21  # one chunk of 16 rows and a shorter one


def gradients(function, document_starts, inputs, autocast=False):
    """Output, final state and all gradients; the backward pass outside autocast."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out, state = function(document_starts, *leaves)
        total = (out * randn(*out.shape, dtype=torch.float32, seed=9)).sum() + state.sum()
    return [out.detach(), state.detach(), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize(
    ("name", "packed"),
    [*((name, True) for name in PACKED), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_one_graph_equals_eager(name, packed):
    """Under bf16 autocast, where a compiled backward pass is traced too: fp32 stays fp32."""
    torch._dynamo.reset()
    example, document_starts = case(name, 2, LENGTH, torch.float32), None
    if packed:
        document_starts = torch.zeros(2, LENGTH, dtype=torch.bool)
        document_starts[0, [0, 9, 16]] = True

    def function(document_starts, *leaves):
        return example.run(list(leaves), "chunk", document_starts)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)
    expected = gradients(function, document_starts, example.inputs())
    assert_close(gradients(compiled, document_starts, example.inputs(), autocast=True), expected, 1e-6)
