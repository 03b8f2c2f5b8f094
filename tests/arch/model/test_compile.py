"""A whole training step under torch.compile without a graph break: same loss, same gradients."""

import pytest
import torch

from arch.config import ARCHS
from arch.model.lm import build_model
from arch.ops.common import constant
from arch.presets import preset

QUICK = ("hgrn2", "mamba2")  # other operations by themselves: ../ops/test_compile_ops.py


@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("arch", [a if a in QUICK else pytest.param(a, marks=pytest.mark.slow) for a in ARCHS])
def test_forward_and_loss_are_one_graph(arch, packed):
    torch._dynamo.reset()
    model = build_model(preset(arch, "14k", n_layers=1, chunk_size=8), 0)
    ids = torch.randint(0, 257, (2, 20), generator=torch.Generator().manual_seed(0))
    documents = (torch.arange(20) >= 5).long().expand(2, -1) if packed else None

    def step(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, targets=ids.roll(-1, 1), documents=documents).loss

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        loss = function(ids)
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-7)


def test_what_is_constant_is_so_for_torch():
    """The mark that torch itself sets, by whatever name this version has for it."""

    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    assert vars(constant(ours)) == vars(torch.compiler.assume_constant_result(theirs)) != {}
