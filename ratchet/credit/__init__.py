"""Credit: one file an estimator; `ESTIMATORS` maps the name in params.yaml (`evolve_online.credit`) to its function.

An estimator takes rewards, groups and step counts of N episodes and returns one advantage a step for each, and which episodes
are silent (their group says nothing: no term may take a gradient from them).
"""

from ratchet.credit.grpo import grpo

ESTIMATORS = {"grpo": grpo}
