"""What the N_opt and D_opt of a law really cost, by the counters, beside the budget that they are for. Imports no
torch."""

from __future__ import annotations

from typing import Any

from .conventions import CONVENTIONS, conventions_of, train_flops_per_token
from .laws import Laws
from .shapes import arch_of
from .sizing import best, parameters


def spent(laws: Laws, c: float) -> list[dict[str, Any]]:
    """One row an architecture whose law has both parts: n_opt and d_opt at `c` FLOP, the shape of the hardware grid
    that is nearest to N_opt (`layers`, `width`, `n_params`), and by convention what it costs to train that shape on
    D_opt tokens, as a share of `c`; None under a convention that does not cover the architecture.

    Raises InputError where N_opt is off the grid.
    """
    rows = []
    for arch, law in laws.archs.items():
        if law.n_opt is None or law.d_opt is None:
            continue
        n_opt, d_opt = law.n_opt(c), law.d_opt(c)
        sized = best(arch_of(arch), parameters, n_opt, top=1)[0]
        row: dict[str, Any] = {"arch": arch, "n_opt": n_opt, "d_opt": d_opt, "n_params": sized.value}
        row |= {"layers": sized.cfg.n_layers, "width": sized.cfg.d_model}
        covered = conventions_of(sized.cfg)
        for name in CONVENTIONS:
            row[name] = train_flops_per_token(sized.cfg, name) * d_opt / c if name in covered else None
        rows.append(row)
    return rows
