"""The section `recipe` of a study file: what training follows from a run's parameters N and tokens D, by rules with
their sources. It fills in keys of `training` that the study does not give; what is given wins.

The text below a field is its meaning in docs/study-file.md.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from .schedule import WSD
from .training_rules import HIGHEST_BETA2, LAW, LOWEST_BETA2, Keys, Sized, horizon_of, or_default
from .types import Amount, Count, Number, Positive, Section

BATCH, BETAS, WEIGHT_DECAY = "batch_tokens", "betas", "weight_decay"
USUAL_BETA2 = 0.95  # at recipe.batch_tokens
# rule: the keys of training that take its place
BY_HAND = {
    "lr": ("lr",),
    BATCH: ("batch_tokens", "min_steps"),
    BETAS: ("betas", "beta2_batch_tokens"),
    WEIGHT_DECAY: ("weight_decay",),
    "schedule": ("schedule",),
}


class TrainingRecipe(Section):
    """Rules for the keys of `training` that the study leaves out."""

    batch_tokens: Count
    """The batch of a run on `at_tokens` tokens, in the place of `training.batch_tokens`."""
    at_tokens: Amount
    """The tokens of the run that `batch_tokens` is for."""
    batch_exponent: Annotated[Number, Field(ge=0, le=1)] = 0.4
    """A run on D tokens has a batch of `batch_tokens` (D / `at_tokens`)^this, to whole sequences; 0.38 in Bergsma et
    al. 2025."""
    half_life: Amount | None = None
    """Tokens within which AdamW's second average forgets half: beta2 is clip(0.5^(batch / this), 0.9, 0.9999) (Marek et
    al. 2025); null takes those of a beta2 of 0.95 at `batch_tokens`."""
    timescale: Positive = 1.08
    """tau = B / (lr weight_decay D), the share of a run's tokens that its weights average over, is this times (D / N)^
    `timescale_exponent`, which gives `training.weight_decay` (Bergsma et al. 2025, as others quote it; of subwords)."""
    timescale_exponent: Annotated[Number, Field(ge=-2, le=0)] = -0.53
    """The exponent of tokens a parameter in `timescale`."""

    def tau(self, n_params: float, n_tokens: float) -> float:
        """The share of its tokens that a run's weights average over."""
        return self.timescale * (n_tokens / n_params) ** self.timescale_exponent

    def fill(self, given: Keys, model: Sized) -> tuple[Keys, dict[str, str]]:
        """The keys of a run's training with those that the rules give, and those rules in words that a law of rates
        depends on. A weight decay waits for the rate of a law: `decay_at`."""
        horizon = horizon_of(given, model)
        if horizon is None:
            return given, {}
        rules = {rule for rule, keys in BY_HAND.items() if not any(given.get(key) is not None for key in keys)}
        filled = dict(given)
        if "schedule" in rules:
            filled["schedule"] = WSD
        if "lr" in rules:
            filled["lr"] = LAW
        if BATCH in rules:
            filled |= _whole_batch(self.batch_tokens * (horizon / self.at_tokens) ** self.batch_exponent, given, model)
        batch = or_default(filled, BATCH)
        if BETAS in rules:
            beta2 = min(max(0.5 ** (batch / self.tokens_to_half), LOWEST_BETA2), HIGHEST_BETA2)
            filled[BETAS] = [or_default({}, BETAS)[0], round(beta2, 6)]
        if WEIGHT_DECAY in rules and filled["lr"] != LAW:
            filled[WEIGHT_DECAY] = decay_at(filled["lr"], batch, horizon, self.tau(model.n_params(), horizon))
        return filled, {rule: words for rule, words in self.words.items() if rule in rules}

    @property
    def tokens_to_half(self) -> float:
        """Tokens within which AdamW's second average forgets half."""
        return self.half_life or self.batch_tokens * math.log(0.5) / math.log(USUAL_BETA2)

    @property
    def words(self) -> dict[str, str]:
        """The rules in words, by the key of `training` that they give: those that a law of rates depends on."""
        return {
            BATCH: f"{self.batch_tokens:,} (D / {self.at_tokens:,})^{self.batch_exponent:g}",
            BETAS: f"0.9 and 0.5^(B / {round(self.tokens_to_half):,})",
            WEIGHT_DECAY: f"B / (lr tau D), tau = {self.timescale:g} (D / N)^{self.timescale_exponent:g}",
        }

    @property
    def lines(self) -> dict[str, str]:
        """The rules of BY_HAND with their sources, a line each."""
        bergsma, marek = "Bergsma et al. 2025, arXiv 2505.13738", "Marek et al. 2025, arXiv 2507.07101"
        return {
            "lr": "lr by the law of a sweep, ln lr = k + a ln N + b ln D, with the slopes a and b shared by all "
            "architectures unless a test tells them apart",
            BATCH: f"batch_tokens = {self.words[BATCH]} ({bergsma})",
            BETAS: f"betas = {self.words[BETAS]}, which forgets half within the same tokens at every batch ({marek})",
            WEIGHT_DECAY: f"weight_decay = {self.words[WEIGHT_DECAY]} ({bergsma})",
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
