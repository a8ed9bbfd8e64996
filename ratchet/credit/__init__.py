"""Credit: one file an estimator; `ESTIMATORS` maps the name in params.yaml (`evolve_online.credit`) to its function.

An estimator takes a `Batch` of N episodes and its own options, the section of `evolve_online` that has its name (None where it has
none), and returns a `Credit`: one advantage a step for each episode, and which episodes are silent.
"""

from collections.abc import Callable
from typing import Any

from ratchet.credit.batch import Batch, Credit
from ratchet.credit.dapo import dapo
from ratchet.credit.empg import empg
from ratchet.credit.gigpo import gigpo
from ratchet.credit.grpo import grpo
from ratchet.credit.hgpo import hgpo
from ratchet.credit.rloo import rloo

ESTIMATORS: dict[str, Callable[[Batch, Any], Credit]] = {
    "grpo": grpo,
    "rloo": rloo,
    "dapo": dapo,
    "gigpo": gigpo,
    "hgpo": hgpo,
    "empg": empg,
}
