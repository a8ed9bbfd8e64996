"""The measuring process of benchmarks/critic.py: `python -m benchmarks.critic_run JSON` prints the result on a line of its own."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.peers.make import Shape
from benchmarks.peers.spec import MARK, result_of

VOCAB, BUDGET = 1200, 4096
EPISODE, STEP = "a pass an episode", "a pass a step"
OFFLINE, ONLINE = "offline", "online"


@dataclass(frozen=True)
class Work:
    """What one process measures, on `episodes` of `turns` turns of `read` and `write` tokens."""

    what: str  # reading, updates, tabular
    shape: dict[str, int]
    episodes: int
    turns: int
    read: int
    write: int
    rounds: int
    steps: int = 4000  # of the tabular fit


def in_process(work: Work) -> Any:
    """Measures in a new process. Raises RatchetError with the end of what it said where it fails."""
    command = [sys.executable, "-m", "benchmarks.critic_run", json.dumps(asdict(work))]
    return result_of(command, {"HF_HUB_OFFLINE": "1"}, f"the process that measures {work.what}")


def model_of(work: Work) -> Any:
    from ratchet.models.build import from_scratch

    context = 2 * work.turns * (work.read + work.write)
    return from_scratch(**asdict(Shape(**work.shape)), vocab=VOCAB, context=context, seed=1, begin=1, end=4, pad=0)


def sequences_of_work(work: Work, seed: int) -> list[Any]:
    """Random tokens; every episode has all its turns, and half of them succeed."""
    from ratchet.episodes.files import table_of
    from ratchet.learners.batches import sequences_of

    rng = np.random.default_rng(seed)
    rows = []
    for number in range(work.episodes):
        for t in range(work.turns):
            read, wrote = (rng.integers(5, VOCAB, size).tolist() for size in (work.read, work.write))
            logprobs = [float(-np.log(VOCAB))] * work.write
            rows.append({"episode_id": f"{seed}-{number:05d}", "t": t, "prompt_ids": read, "reply_ids": wrote, "logprobs": logprobs})
    out = sequences_of(table_of("steps", rows))
    for number, one in enumerate(out):
        one.solved, one.advantages = number % 2 == 0, rng.normal(size=work.turns).astype(np.float32)
        one.reference_logprobs = one.old_logprobs
    return out


def judged_of_work(work: Work, seed: int) -> list[Any]:
    from ratchet.critic.data import Judged, reading_points
    from ratchet.losses.expectile import iql_weights

    out = []
    for one in sequences_of_work(work, seed):
        reward = np.zeros(work.turns, np.float32)
        reward[-1] = float(one.solved)
        weight = iql_weights(work.turns, one.solved).numpy()
        out.append(Judged(one, *reading_points(one), reward, np.zeros(work.turns, np.float32), weight, True, one.solved, one.episode_id))
    return out


def a_pass_a_step(one: Any) -> list[Any]:
    """The same episode as one would read it who asks at one step at a time: each step with its whole history."""
    from ratchet.learners.batches import Sequence

    out = []
    for t, end in enumerate(one.last):
        ids = one.sequence.ids[: end + 1]
        kept = Sequence(f"{one.episode_id} {t}", ids, one.sequence.role[: end + 1], np.zeros(end + 1, np.int32), np.zeros(end + 1, np.float32), np.zeros(1, np.float32))
        part = {name: getattr(one, name)[t : t + 1] for name in ("before", "last", "reward", "aux", "weight")}
        out.append(replace(one, sequence=kept, **part))
    return out


def reading(work: Work) -> dict[str, list[dict[str, float]]]:
    """An epoch of fitting and the labelling behind it, in both ways by turns: seconds and tokens that were read."""
    from ratchet.clock import CLOCK
    from ratchet.critic import learner as fitting
    from ratchet.critic.model import Critic
    from ratchet.learners.batches import shuffled

    settings = fitting.FitSettings(1, BUDGET, 1e-4, 0.0, 1.0, 0.99, 0.7, 0.05, True, 0)
    learner = fitting.CriticLearner(Critic(model_of(work), twin=True, seed=0), settings)
    learner.update(judged_of_work(replace(work, episodes=2), 0), 0.0)
    found: dict[str, list[dict[str, float]]] = {EPISODE: [], STEP: []}
    for number in range(work.rounds):
        whole = judged_of_work(work, number + 1)
        ways = {EPISODE: whole, STEP: [part for one in whole for part in a_pass_a_step(one)]}
        for way in ways if number % 2 == 0 else reversed(ways):
            CLOCK.clear()
            began = time.perf_counter()
            for batch in shuffled(ways[way], BUDGET, number):
                learner.update(batch, 1e-5)
            learner.judge(ways[way])
            read = CLOCK.counts["tokens_learned"] + sum(one.size for one in ways[way])
            found[way].append({"seconds": time.perf_counter() - began, "tokens": read})
    return found


def updates(work: Work) -> dict[str, list[dict[str, float]]]:
    """The offline update (BPPO with its divergence) and the online learner's (GRPO) on the same tokens by turns."""
    from ratchet.clock import CLOCK
    from ratchet.learners.actor import ActorLearner
    from ratchet.losses.clipped_surrogate import ClippedSurrogate
    from ratchet.losses.kl import ReferenceKL

    model = model_of(work)
    terms = {ONLINE: [ClippedSurrogate(low=0.2, high=0.28)], OFFLINE: [ClippedSurrogate(low=0.8, high=0.4), ReferenceKL(0.01)]}
    learners = {way: ActorLearner(model, one, optimizer="adamw", batch_tokens=BUDGET, max_grad_norm=1.0) for way, one in terms.items()}
    few = sequences_of_work(replace(work, episodes=2), 0)
    found: dict[str, list[dict[str, float]]] = {ONLINE: [], OFFLINE: []}
    for learner in learners.values():
        learner.update(few, 0.0)
    for number in range(work.rounds):
        batch = sequences_of_work(work, number + 1)
        for way in learners if number % 2 == 0 else reversed(learners):
            CLOCK.clear()
            began = time.perf_counter()
            learners[way].update(batch, 1e-5)
            found[way].append({"seconds": time.perf_counter() - began, "tokens": CLOCK.counts["tokens_learned"]})
    return found


@dataclass(frozen=True)
class Chain:
    """A chain of `states` whose last step pays 1 and ends: `right` moves on where it does not slip, `left` goes back. What was played is
    `right` with probability `skill`, less in every second state. Arrays [transitions]."""

    states: int = 6
    slip: float = 0.2
    skill: float = 0.6
    gamma: float = 0.9

    def transitions(self) -> tuple[np.ndarray, ...]:
        """(state, action, next state or −1, reward, share of the data)."""
        rows = []
        for s in range(self.states):
            right = self.skill if s % 2 == 0 else self.skill / 2
            for action, chance in ((0, 1 - right), (1, right)):
                ends = {max(s - 1, 0): 1.0} if action == 0 else {s: self.slip, s + 1: 1 - self.slip}
                for end, share in ends.items():
                    done = end == self.states
                    rows.append((s, action, -1 if done else end, float(done), chance * share / self.states))
        return tuple(np.array(column) for column in zip(*rows, strict=True))

    def solved(self, tau: float) -> tuple[np.ndarray, np.ndarray]:
        """(V [states], Q [states, 2]) by dynamic programming: V is the τ-expectile of Q over the data's actions. Of two actions the better
        one pulls with τ times its share and the other with 1 − τ times its own, so V is their mean with these weights."""
        s, a, following, reward, share = self.transitions()
        value, q, mass = np.zeros(self.states), np.zeros((self.states, 2)), np.zeros((self.states, 2))
        np.add.at(mass, (s, a), share)
        for _ in range(400):
            ahead = np.where(following >= 0, value[np.maximum(following, 0)], 0.0)
            q = np.zeros((self.states, 2))
            np.add.at(q, (s, a), share * (reward + self.gamma * ahead))
            q /= mass
            pull = mass * np.where(q >= q.max(1, keepdims=True), tau, 1 - tau)
            value = (pull * q).sum(1) / pull.sum(1)
        return value, q


def tabular(tau: float, steps: int = 4000, chain: Chain | None = None) -> float:
    """The largest error of V and Q, fitted as tables by the losses of ratchet/losses/expectile.py, against dynamic programming."""
    from ratchet.losses.expectile import iql_losses

    chain = chain or Chain()
    s, a, following, reward, share = (torch.from_numpy(column) for column in chain.transitions())
    value = torch.zeros(chain.states, dtype=torch.float64, requires_grad=True)
    q = torch.zeros(chain.states, 2, dtype=torch.float64, requires_grad=True)
    slow = torch.zeros_like(q)
    optimizer = torch.optim.Adam([value, q], lr=0.03)
    ends = torch.full_like(following, -1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * min(1.0, 2 * (1 - step / steps)) ** 2
        bootstrap = torch.where(following >= 0, value.detach()[following.clamp(min=0)], 0.0)
        losses = iql_losses(value[s], q[s, a][:, None], slow[s, a], reward, ends, bootstrap, share, gamma=chain.gamma, tau=tau)
        optimizer.zero_grad()
        (losses.value + losses.q).backward()
        optimizer.step()
        slow.lerp_(q.detach(), 0.05)
    expected_v, expected_q = chain.solved(tau)
    return float(max(np.abs(value.detach().numpy() - expected_v).max(), np.abs(q.detach().numpy() - expected_q).max()))


def main(given: str) -> None:
    work = Work(**json.loads(given))
    if work.what == "tabular":
        measured: Any = {str(tau): tabular(tau, work.steps) for tau in (0.5, 0.7)}
    else:
        measured = {"reading": reading, "updates": updates}[work.what](work)
    print(MARK + json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
