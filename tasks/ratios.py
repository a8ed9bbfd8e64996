"""How likely a version finds what another policy wrote: log-ratios a step, new policy against the one that sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa


def log_ratios(model: Path, steps: pa.Table, *, temperature: float, budget: int) -> dict[str, np.ndarray]:
    """Episode → float64 [its steps]: Σ over a reply's tokens of log π_new − log π_old. `steps` hold the log-probs of the policy that
    sampled them, at `temperature`; a pass reads at most `budget` tokens."""
    import torch

    from ratchet.learners.actor import Scorer
    from ratchet.learners.batches import REPLY, micro_batch, pack, sequences_of
    from ratchet.models.build import load_model
    from ratchet.models.fused import fusable

    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = load_model(model, light=True).to(device)
    scorer = Scorer(policy, temperature, fusable(policy)).eval()
    found: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for group in pack(sequences_of(steps), budget):
            micro = micro_batch(group, frozenset({REPLY}), device)
            change = (scorer(micro).double() - micro.old_logprob.double()).cpu().numpy()
            counts = [len(one.advantages) for one in group]
            sums = np.bincount(micro.step.cpu().numpy(), weights=change, minlength=sum(counts))
            found |= {one.episode_id: values for one, values in zip(group, np.split(sums, np.cumsum(counts)[:-1]), strict=True)}
    return found
