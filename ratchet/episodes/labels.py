"""Labels that need no model: retrospective rewards by rules (methods §5) and tokens still to go (methods §3)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.episodes.schema import LABELS

PENALTIES = (-0.3, -0.2, -0.1)  # of a broken format, an invalid action, an observation that equals the one before

NONE = (0.0, 0.0, 0.0)


def retrospective_reward(
    format_ok: np.ndarray, valid: np.ndarray, repeated: np.ndarray, penalties: tuple[float, float, float] = PENALTIES
) -> np.ndarray:
    """float32, one a step: the penalty for a broken format, for an invalid action, or for a next observation that equals the one
    before, else 0; the first that applies. It trains a critic and never enters an advantage."""
    return np.select([~format_ok, ~valid, repeated], penalties, 0.0).astype(np.float32)


def ttg_labels(n: np.ndarray, solved: bool) -> list[int | None]:
    """Tokens to go before each action: Σ_{u ≥ t} n_u in a success, None in a failure. n [T]: generated tokens of each step."""
    if not solved:
        return [None] * len(n)
    return [int(value) for value in np.cumsum(n[::-1])[::-1]]


def label(episodes: pa.Table, steps: pa.Table, penalties: tuple[float, float, float] | None = PENALTIES) -> pa.Table:
    """The labels sidecar of a steps table (sorted by episode and t). Without `penalties`, where an environment says nothing that rules
    could read, all retrospective rewards are 0."""
    flags = [np.asarray(steps[name].to_pylist(), bool) for name in ("format_ok", "valid", "repeated")]
    ids = steps["episode_id"].to_pylist()
    tokens = pc.list_value_length(steps["reply_ids"]).to_numpy(zero_copy_only=False)
    solved = dict(zip(episodes["episode_id"].to_pylist(), episodes["solved"].to_pylist(), strict=True))
    to_go: list[int | None] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[start]:
            to_go += ttg_labels(tokens[start:end], solved[ids[start]])
            start = end
    columns = [steps["episode_id"], steps["t"], pa.array(retrospective_reward(*flags, penalties or NONE)), pa.array(to_go, pa.int32())]
    return pa.table([column if isinstance(column, pa.Array) else column.combine_chunks() for column in columns], schema=LABELS)
