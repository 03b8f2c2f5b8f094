"""The section `recipe` of a study file: what training follows from a run's parameters N and tokens D, by rules with
their sources. It fills in keys of `training` that the study does not give; what is given wins.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from arch.amounts import count

from .schedule import WSD
from .training_rules import LAW, Keys, Sized, horizon_of, or_default
from .types import Amount, Count, Number, Positive, Section

BATCH, WEIGHT_DECAY = "batch_tokens", "weight_decay"
# rule: the keys of training that take its place
BY_HAND = {
    "lr": ("lr",),
    BATCH: ("batch_tokens", "min_steps"),
    "beta2": ("betas", "beta2_batch_tokens"),
    WEIGHT_DECAY: ("weight_decay",),
    "schedule": ("schedule",),
}


class TrainingRecipe(Section):
    """Rules for the keys of `training` that the study leaves out."""

    batch_tokens: Count
    """The batch of a run on `at_tokens` tokens, in the place of `training.batch_tokens`; the second of `betas` is
    stated for it, so that its average forgets half within the same tokens at every batch (Marek et al. 2025)."""
    at_tokens: Amount
    """The tokens of the run that `batch_tokens` is for."""
    batch_exponent: Annotated[Number, Field(ge=0, le=1)] = 0.4
    """A run on D tokens has a batch of `batch_tokens` (D / `at_tokens`)^this, to whole sequences; 0.38 in Bergsma et
    al. 2025."""
    timescale: Positive = 1.08
    """tau = B / (lr weight_decay D), the share of a run's tokens that its weights average over, is this times (D / N)^
    `timescale_exponent`, which gives `training.weight_decay` (Bergsma et al. 2025)."""
    timescale_exponent: Annotated[Number, Field(ge=-2, le=0)] = -0.53
    """The exponent of tokens a parameter in `timescale`."""

    def tau(self, n_params: float, n_tokens: float) -> float:
        """The share of its tokens that a run's weights average over."""
        return self.timescale * (n_tokens / n_params) ** self.timescale_exponent

    def fill(self, given: Keys, model: Sized) -> tuple[Keys, dict[str, str]]:
        """The keys of a run's training with those that the rules give, and the rules that decide its batch and weight
        decay, in words. A weight decay waits for the rate of a law: `decay_at`."""
        horizon = horizon_of(given, model)
        if horizon is None:
            return given, {}
        rules = {rule for rule, keys in BY_HAND.items() if not any(given.get(key) is not None for key in keys)}
        filled, words = dict(given), dict[str, str]()
        if "schedule" in rules:
            filled["schedule"] = WSD
        if "lr" in rules:
            filled["lr"] = LAW
        if "beta2" in rules:
            filled["beta2_batch_tokens"] = self.batch_tokens
        if BATCH in rules:
            words[BATCH] = self.batch_rule
            filled |= _whole_batch(self.batch_tokens * (horizon / self.at_tokens) ** self.batch_exponent, given, model)
        if WEIGHT_DECAY in rules:
            words[WEIGHT_DECAY] = self.decay_rule
            if filled["lr"] != LAW:
                tau = self.tau(model.n_params(), horizon)
                filled[WEIGHT_DECAY] = decay_at(filled["lr"], or_default(filled, BATCH), horizon, tau)
        return filled, words

    @property
    def batch_rule(self) -> str:
        return f"{self.batch_tokens:,} (D / {count(self.at_tokens)})^{self.batch_exponent:g}"

    @property
    def decay_rule(self) -> str:
        return f"B / (lr tau D), tau = {self.timescale:g} (D / N)^{self.timescale_exponent:g}"

    def stated_batch(self, given: Keys) -> int | None:
        """The batch that the second of `betas` is stated for; None where betas are given without one."""
        batch: int | None = given.get("beta2_batch_tokens")
        return self.batch_tokens if not any(given.get(key) is not None for key in BY_HAND["beta2"]) else batch

    def lines(self, beta2: float) -> dict[str, str]:
        """The rules of BY_HAND with their sources, a line each. beta2: what the second of `betas` is stated as."""
        half_life = count(round(self.batch_tokens * math.log(0.5) / math.log(beta2))) if 0 < beta2 < 1 else "0"
        return {
            "lr": "lr by the law of a sweep, ln lr = k + a ln N + b ln D, with the slopes a and b shared by all "
            "architectures unless a test tells them apart",
            BATCH: f"batch_tokens = {self.batch_rule} (Bergsma et al. 2025, arXiv 2505.13738)",
            "beta2": f"beta2 = {beta2:g}^(B / {self.batch_tokens:,}), a half-life of {half_life} tokens (Marek et al. "
            f"2025, arXiv 2507.07101)",
            WEIGHT_DECAY: f"weight_decay = {self.decay_rule} (Bergsma et al. 2025, arXiv 2505.13738)",
            "schedule": "schedule wsd: every run decays over the last decay_fraction of its tokens (Hägele et al. "
            "2024, arXiv 2405.18392)",
        }


def decay_at(lr: float, batch_tokens: int, n_tokens: float, tau: float) -> float:
    """B / (lr tau D), to three digits: the weight decay of AdamW, whose step multiplies weights by 1 - lr weight_decay,
    with which weights average over the share tau of D tokens."""
    return float(f"{batch_tokens / (lr * tau * n_tokens):.3g}")


def _whole_batch(batch: float, given: Keys, model: Sized) -> Keys:
    """The batch next to `batch` of whole sequences for every process and for every pass that micro_batch_tokens asks
    for, and the tokens of such a pass."""
    context, micro = model.context_length, given.get("micro_batch_tokens")
    rows = max(1, round(batch / (context * model.processes)))  # of a process
    if micro is None or micro % context:  # the latter is refused with the section
        return {BATCH: rows * context * model.processes}
    passes = math.ceil(rows * context / micro)
    each = min(max(1, round(rows / passes)), micro // context)
    return {BATCH: passes * each * context * model.processes, "micro_batch_tokens": each * context}
