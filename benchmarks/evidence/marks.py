"""What is read off the episodes of a panel beside success: episode id → yes or no."""

from __future__ import annotations

import pyarrow as pa

from ratchet.envs.proving_ground.rules import DO_NOTHING


def refused(episodes: pa.Table, steps: pa.Table) -> dict[str, bool]:
    """Whether the policy ended the episode without having sent anything: it did nothing."""
    rows = steps.select(["episode_id", "action_type", "valid"]).to_pylist()
    sent = {row["episode_id"] for row in rows if row["action_type"] == "send" and row["valid"]}
    last = dict(zip(steps["episode_id"].to_pylist(), steps["action"].to_pylist(), strict=True))  # sorted by t: the last one stays
    return {one: last.get(one, "").strip() == DO_NOTHING and one not in sent for one in episodes["episode_id"].to_pylist()}
