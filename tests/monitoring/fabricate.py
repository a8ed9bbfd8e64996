"""Clean tables of made-up episodes, as a harvest leaves them, for tests that then spoil them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ratchet.episodes.files import table_of

Rows = list[dict[str, Any]]
LIMITS = {"max_error_share": 0.02, "max_invalid_share": 0.9, "max_truncated_share": 0.95, "max_replay_mismatch": 0.0}
WORDS = ["desk 1", "shelf 2", "fridge 1", "drawer 3", "lamp 1", "bed 1", "safe 1"]


class Made:
    """Rows that a test changes, and their tables. Policies `actor` (sampled) and `expert` (encoded); even samples succeed."""

    def __init__(self, tasks: int = 8, samples: int = 4, length: int = 5) -> None:
        self.episodes: Rows = []
        self.steps: Rows = []
        self.labels: Rows = []
        self._latest: dict[str, Any] = {"episode_id": None, "t": -1}
        self.panels = {"train": {f"train-{n}" for n in range(tasks)}, "select": {"select-0"}, "confirm": {"confirm-0"}, "test": {"test-0"}}
        for task in range(tasks):
            for sample in range(samples):
                self._episode(task, sample, length + (task + sample) % 3)

    def _episode(self, task: int, sample: int, n_steps: int) -> None:
        name, solved = f"e{task:05d}-{sample}", sample % 2 == 0
        policy = "expert" if task % 4 == 3 else "actor"
        steps = [self._step(name, t, task + sample, policy, solved and t == n_steps - 1) for t in range(n_steps)]
        lengths = [len(step["reply_ids"]) for step in steps]
        self.steps += steps
        self.labels += [self._label(step, sum(lengths[t:]) if solved else None) for t, step in enumerate(steps)]
        self.episodes.append(
            {"episode_id": name, "env": "toy", "env_version": "1", "task_id": f"train-{task}", "split": "train", "stratum": "put",
             "cluster": f"room-{task % 3}", "policy_id": policy, "round": 1, "iteration": 0, "group_id": f"{policy}-{task}",
             "sample": sample, "seed": 7, "solved": solved, "score": float(solved), "terminated": solved, "truncated": not solved,
             "error": None, "n_steps": n_steps, "n_tokens": sum(lengths), "tokenizer_id": "t" * 12,
             "temperature": 1.0 if policy == "actor" else None}
        )  # fmt: skip

    def _step(self, name: str, t: int, offset: int, policy: str, wins: bool) -> dict[str, Any]:
        action = f"go to {WORDS[(t + offset) % len(WORDS)]}"
        kind = (t + offset) % 7 if policy == "actor" and not wins else 6  # 0: bad format, 1: invalid, 2: nothing happens
        format_ok, valid = kind != 0, kind not in (0, 1)
        before = self._latest
        same = (before["episode_id"], before["t"]) == (name, t - 1) and before["repeated"]
        observation = before["observation"] if same else f"You see step {t} of {name}."
        ids = list(range(3 + (t + offset) % 4))
        generated = policy == "actor"
        step = {
            "episode_id": name, "t": t, "observation": observation, "reply": f"I look.\n> {action}" if format_ok else "I look.",
            "action": action if format_ok else "", "action_type": "go" if format_ok else "", "prompt_ids": [1, 2, 3], "reply_ids": ids,
            "logprobs": [-0.5 * (1 + i) for i in ids] if generated else [], "entropy": [0.25 for _ in ids] if generated else [],
            "policy_version": "v" * 12, "tokens_from": "generated" if generated else "encoded", "reward": float(wins),
            "score": float(wins), "format_ok": format_ok, "valid": valid, "repeated": kind == 2,
        }  # fmt: skip
        self._latest = step
        return step

    @staticmethod
    def _label(step: dict[str, Any], ttg: int | None) -> dict[str, Any]:
        rules = [(not step["format_ok"], -0.3), (not step["valid"], -0.2), (step["repeated"], -0.1)]
        r_aux = next((value for applies, value in rules if applies), 0.0)
        return {"episode_id": step["episode_id"], "t": step["t"], "r_aux": r_aux, "ttg": ttg}

    def episode(self, name: str) -> dict[str, Any]:
        return next(row for row in self.episodes if row["episode_id"] == name)

    def step(self, name: str, t: int) -> dict[str, Any]:
        return next(row for row in self.steps if (row["episode_id"], row["t"]) == (name, t))

    def label(self, name: str, t: int) -> dict[str, Any]:
        return next(row for row in self.labels if (row["episode_id"], row["t"]) == (name, t))

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        return table_of("episodes", self.episodes), table_of("steps", self.steps), table_of("labels", self.labels)
