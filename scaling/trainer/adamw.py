"""PyTorch's AdamW as it is, without its compiler: an optimizer's first method imports that, for 4 to 6 s, only to tell
it that it is not wanted."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW, its own methods below what torch.compile needs around them."""

    add_param_group: Any = unwrap(torch.optim.AdamW.add_param_group)
    state_dict: Any = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict: Any = unwrap(torch.optim.AdamW.load_state_dict)
    step: Any = torch.no_grad()(unwrap(torch.optim.AdamW.step))
