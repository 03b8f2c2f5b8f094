"""The optimizers of a run: PyTorch's AdamW and Adam, and Muon for the matrices of hidden layers beside it.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) moves a weight matrix along its averaged gradient
with all singular values made about equal. Steps are as large as AdamW's in root mean square, so that rates and weight
decay are of the same kind (Liu et al. 2025, arXiv 2502.16982). torch.optim.Muon does the same, a matrix at a time; here
those of one shape are one batch, and nothing waits for the host, so that CUDA graphs can hold a step.

`found_inf`, a tensor: where it is 1, a step changes nothing (the engine sets it; torch's fused kernels read it).
"""

from __future__ import annotations

import math
from inspect import unwrap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from arch.model.lm import LanguageModel

    from ..study.training import Training

MOMENTUM = 0.95  # of the average of gradients, and Nesterov's
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of x, x^3 and x^5 in an iteration
ITERATIONS, EPS = 5, 1e-7
RMS = 0.2  # of a step over its rate, about that of AdamW


class Adam(torch.optim.Adam):
    """torch.optim.Adam without the wrappers that torch.compile needs. Weight decay is L2: the averages are of
    g + weight_decay w."""

    add_param_group: Any = unwrap(torch.optim.Adam.add_param_group)
    state_dict: Any = unwrap(torch.optim.Adam.state_dict)
    load_state_dict: Any = unwrap(torch.optim.Adam.load_state_dict)
    step: Any = torch.no_grad()(unwrap(torch.optim.Adam.step))
    found_inf: Tensor | None = None


class AdamW(Adam, torch.optim.AdamW):
    """torch.optim.AdamW likewise: w <- (1 - lr weight_decay) w beside the step."""


class Muon(AdamW):
    """Muon for the parameters, matrices all, of groups with `matrices`; AdamW for those of the others."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's own expects its steps in every state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group["matrices"]:
                self._move(group)

    def _move(self, group: dict[str, Any]) -> None:
        """w <- (1 - lr weight_decay) w - lr RMS sqrt(max(m, n)) orthogonal(g + MOMENTUM (average - g)) of all matrices
        [m, n] of a group."""
        same_shape: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                same_shape.setdefault(parameter.shape, []).append((parameter, parameter.grad, state["momentum_buffer"]))
        for shape, items in same_shape.items():
            parameters, gradients, averages = (list(column) for column in zip(*items, strict=True))
            if (skip := self.found_inf) is not None:  # the average moves to itself
                gradients = [torch.where(skip > 0, a, g) for a, g in zip(averages, gradients, strict=True)]
            torch._foreach_lerp_(averages, gradients, 1 - MOMENTUM)
            moves = torch.stack(torch._foreach_lerp(gradients, averages, MOMENTUM))
            # a number outside of graphs: both ways round alike
            rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=moves.device)
            rate = rate if skip is None else torch.where(skip > 0, 0.0, rate)
            steps = orthogonal(moves.bfloat16()).to(moves.dtype) * (rate * (RMS * math.sqrt(max(shape))))
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
            torch._foreach_sub_(parameters, list(steps.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """[k, m, n] -> [k, m, n]: U p(S / |S|) V' of each matrix U S V', where p is ITERATIONS rounds of
    a x + b x^3 + c x^5, which take singular values near 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def parameter_groups(model: LanguageModel, weight_decay: float, matrices: bool = False) -> list[dict[str, Any]]:
    """AdamW's two groups: with weight decay, and without it for model.no_weight_decay(). matrices: those of
    model.matrices() have a group of their own, Muon's."""
    exempt, hidden = model.no_weight_decay(), model.matrices() if matrices else set()
    groups: list[dict[str, Any]] = [{"weight_decay": weight_decay}, {"weight_decay": 0.0}]
    groups += [{"weight_decay": weight_decay, "matrices": True}] if matrices else []
    for group in groups:
        group["params"] = []
        if matrices:
            group.setdefault("matrices", False)
    for name, parameter in model.named_parameters():
        groups[2 if name in hidden else 1 if name in exempt else 0]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def optimizer_of(model: LanguageModel, training: Training) -> Adam:
    """The optimizer that `training` asks for; fused: the fastest on every device, and deterministic."""
    return {"adamw": AdamW, "adam": Adam, "muon": Muon}[training.optimizer](
        parameter_groups(model, training.weight_decay, matrices=training.optimizer == "muon"),
        lr=training.peak_lr,
        betas=(training.betas[0], training.betas[1]),
        eps=training.eps,
        fused=True,
    )
