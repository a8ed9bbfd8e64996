"""DAPO (methods §2; arXiv 2503.14476), the part of it that is credit: GRPO's advantage of a reward with an overlong penalty.

Its clip is `evolve_online.clip`, its token mean `evolve_online.loss_mean`; groups without spread are replaced where episodes are played
(tasks/online_rollouts.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.credit.batch import Batch, Credit, per_step
from ratchet.credit.grpo import by_group, silent_groups
from ratchet.settings_online import Dapo


def overlong_penalty(length: Sequence[int] | np.ndarray, limit: int, buffer: float) -> np.ndarray:
    """min(0, −(len − (L − buf)) / buf): 0 up to L − buf tokens, then down to −1 at L. length [N] → float64 [N]."""
    return np.minimum(0.0, -(np.asarray(length, np.float64) - (limit - buffer)) / buffer)


def dapo(batch: Batch, options: Dapo) -> Credit:
    """One advantage for all steps of an episode. Length is that of the whole episode, observations included, against the limit at which
    it would have been truncated [ours: the paper has no observations].

    Silent are groups whose outcomes are all the same, whatever their lengths: the paper filters by outcome, and a group in which nothing
    but the length differs would teach nothing but shortness.
    """
    rewards = np.asarray(batch.rewards, np.float64)
    silent = silent_groups(batch)
    if options.overlong_buffer > 0 and batch.max_length is not None:
        rewards = rewards + overlong_penalty(batch.length, batch.max_length, options.overlong_buffer * batch.max_length)
    return Credit(per_step(np.where(silent, 0.0, by_group(batch, rewards)), batch.n_steps), silent)
