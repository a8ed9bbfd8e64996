"""Recorded episodes of a tiny world: numbers that count down to success, or nothing that does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.episodes.files import table_of
from tests.models import tiny


def recorded(count: int = 8, policy: str = "actor", tokenizer: str | None = None) -> tuple[list[dict[str, Any]], pa.Table]:
    """(rows of episodes, their steps): 2 to 4 steps, every second one solved, in the tiny tokenizer's own ids."""
    template = tiny.template()
    rng = np.random.default_rng(3)
    rows, steps = [], []
    for number in range(count):
        name, solved, length = f"episode-{number:02d}", number % 2 == 0, 2 + number % 3
        for t in range(length):
            seen, said = f"You see a cabinet {number % 5 + 1}, {'up' if solved else 'wait'}", f"> go to cabinet {t + 1}"
            [reply] = template.replies_ids([said])
            steps.append(
                {"episode_id": name, "t": t, "observation": seen, "reply": said, "action": said[2:], "action_type": "go",
                 "prompt_ids": template.observation_ids(seen, t == 0), "reply_ids": reply, "logprobs": [-1.0] * len(reply),
                 "tokens_from": "generated", "valid": True, "format_ok": True, "repeated": False, "score": float(solved and t + 1 == length)}
            )  # fmt: skip
        rows.append(
            {"episode_id": name, "env": "toy", "task_id": f"task-{number // 2}", "policy_id": policy, "group_id": f"g{number // 4}", "solved": solved,
             "score": float(solved), "truncated": not solved and bool(rng.integers(2)), "error": None, "n_steps": length,
             "tokenizer_id": tokenizer or template.tokenizer_id, "stratum": "toy"}
        )  # fmt: skip
    return rows, table_of("steps", steps)
