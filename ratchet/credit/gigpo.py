"""GiGPO (methods §2; arXiv 2505.10978): the outcome against the group, and each step against those that saw the same.

Steps of one group with the identical raw observation are an anchor group; they differ in what came of the action taken there.
"""

from __future__ import annotations

import numpy as np

from ratchet.credit.batch import Batch, Credit
from ratchet.credit.grpo import by_group
from ratchet.credit.returns import compared, discounted, silent_where_zero
from ratchet.settings_online import Gigpo


def gigpo(batch: Batch, options: Gigpo) -> Credit:
    """A = A_E + ω·A_S; A_E is GRPO's, A_S the return-to-go normalised among the steps of its anchor group (sample std), alone → 0.

    A group whose outcomes are all alike still speaks where its episodes took different numbers of steps; one of a single episode is
    silent, even where that episode came by the same place twice.
    """
    returns = [discounted(rewards, options.gamma) for rewards in batch.step_rewards]
    advantages = [np.full(steps, value) for steps, value in zip(batch.n_steps, by_group(batch, batch.rewards), strict=True)]
    for indices in batch.members():
        if len(indices) > 1:
            keys = ((text, (episode, t)) for episode in indices for t, text in enumerate(batch.observations[episode]))
            for (episode, t), value in compared(keys, returns, ddof=1).items():
                advantages[episode][t] += options.omega * value
    return Credit([values.astype(np.float32) for values in advantages], silent_where_zero(batch, advantages))
