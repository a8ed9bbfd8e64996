"""Against refusal skew (methods §4): what learns from successes alone learns most from what succeeds most easily, such as doing nothing.

`evolve_online.balance` gives each stratum the share of the loss that it has among the tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

Balance = Literal["none", "stratum", "last_action"]


def strata_of(rows: Sequence[dict], steps: pa.Table, balance: Balance) -> list[str]:
    """The stratum of each episode of `rows`: the environment's, or the type of its last action ("" where it has none)."""
    if balance != "last_action":
        return [row["stratum"] or "" for row in rows]
    last = dict(zip(steps["episode_id"].to_pylist(), steps["action_type"].to_pylist(), strict=True))  # sorted by t: the last one stays
    return [last[row["episode_id"]] or "" for row in rows]


def stratum_factors(strata: Sequence[str], groups: Sequence[str], mass: Sequence[float]) -> dict[str, float]:
    """What the loss of each stratum is multiplied with, so that its mass becomes its share of the tasks and the sum stays.

    `strata`, `groups`, `mass` [N], of all episodes: `mass` is what an episode has of the loss before, 0 where the loss does not learn
    from it. A stratum's share is the mean over groups of the share of its episodes in it (with strata of tasks: its share of the
    groups). Strata without mass cannot get theirs; the others divide it in proportion.
    """
    size: dict[str, int] = defaultdict(int)
    for group in groups:
        size[group] += 1
    share: dict[str, float] = defaultdict(float)
    found: dict[str, float] = defaultdict(float)
    for stratum, group, own in zip(strata, groups, mass, strict=True):
        share[stratum] += 1 / size[group]
        found[stratum] += own
    there = [stratum for stratum, own in found.items() if own > 0]
    wanted, total = sum(share[stratum] for stratum in there), sum(found.values())
    return {stratum: share[stratum] / wanted * total / found[stratum] for stratum in there}
