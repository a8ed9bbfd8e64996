"""The round's critic: V and Q on its buffer, and what they say of every step of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ratchet.episodes.files import read_table, write_table
from ratchet.files import read_json, write_json
from ratchet.settings import params_hash
from tasks.common import Progress, Stage, main, say, skipped, tensorboard

if TYPE_CHECKING:
    from ratchet.critic.data import Judged
    from ratchet.critic.learner import FitSettings, Verdicts


def run(stage: Stage) -> None:
    """Writes models/rounds/K/critic and data/rounds/K/critic."""
    assert stage.key is not None
    buffer = stage.path(f"data/rounds/{stage.key}/buffer")
    if not stage.settings.fit_critic.enabled:
        return stage.skip("fit_critic is off")
    reason = skipped(buffer)
    if reason is None and stage.settings.fit_critic.reward != "score":  # by which failures differ, too
        reason = read_json(buffer / "buffer.json")["one_sided"]
    if reason:
        return stage.skip(reason)
    _Fit(stage, buffer).run()


def fit_settings(stage: Stage) -> FitSettings:
    """What the learner takes of the stage's settings."""
    from ratchet.critic.learner import FitSettings

    own, learner = stage.settings.fit_critic, stage.settings.learner
    return FitSettings(
        epochs=own.epochs,
        batch_tokens=own.batch_tokens,
        lr=own.lr,
        warmup_share=own.warmup_share,
        max_grad_norm=own.max_grad_norm,
        gamma=own.gamma,
        tau=own.tau,
        polyak=own.polyak,
        aux=own.aux,
        seed=stage.settings.seed,
        autocast=learner.autocast,
        max_grad_norm_ratio=learner.max_grad_norm_ratio,
        max_skipped_share=learner.max_skipped_share,
    )


def judged_of(stage: Stage, episodes: pa.Table, steps: pa.Table, aux: np.ndarray) -> list[Judged]:
    """Episodes as the settings mean them."""
    from ratchet.critic.data import judged

    own = stage.settings.fit_critic
    return judged(episodes, steps, aux, reward=own.reward, truncated=own.truncated, time=own.time_term, outcome=own.success_term)


class _Fit:
    def __init__(self, stage: Stage, buffer: Path) -> None:
        assert stage.key is not None
        self.stage, self.own, self.round, self.buffer = stage, stage.settings.fit_critic, stage.key, buffer
        prev = stage.settings.rounds[stage.key].prev
        before = stage.path(f"models/rounds/{prev}/critic")
        follows = self.own.backbone == "previous" and skipped(before) is None
        self.start, self.before = stage.path(f"models/rounds/{prev}/start"), before if follows else None

    def run(self) -> None:
        from ratchet.critic.buffer import by_the_start
        from ratchet.critic.data import in_parts
        from ratchet.critic.learner import fit, td_error_of
        from ratchet.critic.lora import merge
        from ratchet.critic.metrics import rank_correlation
        from ratchet.critic.model import save_critic
        from ratchet.models.build import card_of

        stage, rows = self.stage, self._read("buffer").to_pylist()
        steps, labels = self._read("steps"), self._read("labels")
        all_of = judged_of(stage, self._read("episodes"), steps, labels["r_aux"].to_numpy())
        held_out = {row["episode_id"] for row in rows if row["held_out"]}
        train, measured = in_parts(all_of, {one.task_id for one in all_of if one.episode_id in held_out})
        if not train:
            return stage.skip("all tasks of the buffer are held out; lower buffer.held_out_share")
        if len({one.outcome for one in train}) == 1:
            return stage.skip(f"all {len(train)} episodes to fit on have the return {train[0].outcome:g}, and a critic learns from outcomes that differ")
        bar = Progress(stage.title, self.own.epochs, "epochs", every_s=0)
        with tensorboard(stage) as log:

            def progress(done: int, total: int, point: dict[str, Any]) -> None:
                bar(done, f"TD error {point['td_error']:.4f}")
                for name, value in point.items():
                    if value is not None:
                        log(name, value, done)

            learner, result = fit(self._critic(), train, measured, fit_settings(stage), scratch=stage.scratch, progress=progress)
        found = learner.judge(all_of, kind=self.own.advantage, lam=self.own.lam, traces=self._traces(steps, rows))
        write_table(stage.out(f"data/rounds/{self.round}/critic/critic.parquet"), "critic", credit_table(all_of, found))
        newest = by_the_start(rows)
        mine = [one for one in measured if one.episode_id in newest]
        ranks = rank_correlation([found[one.episode_id].value[:-1].mean() for one in mine], [one.outcome for one in mine])
        gate = gate_of(ranks, self.own.min_rank_correlation)
        gate["step_accuracy"] = self._step_accuracy(mine, found, steps)
        errors = {name: td_error_of(found, some, learner.settings) for name, some in (("fitted", train), ("held_out", measured))}
        write_json(stage.out(f"data/rounds/{self.round}/critic/gate.json"), gate)
        told = {"curve": result.curve, "steps": result.steps, "skipped_steps": result.skipped_steps, "gate": gate, "td_error": errors}
        told |= {"fitted": len(train), "held_out": len(measured)}
        write_json(stage.out(f"data/rounds/{self.round}/critic/fit.json"), told)
        merge(learner.critic.backbone)
        version = save_critic(learner.critic, self.start, stage.out(f"models/rounds/{self.round}/critic"), self._card(card_of(self.before or self.start)))
        stage.metrics({"version": version, **told})
        say(f"{stage.title}: critic {version}, {gate['reason']}")
        shutil.rmtree(stage.scratch / "critic", ignore_errors=True)
        stage.finish()

    def _critic(self) -> Any:
        from ratchet.critic.lora import add_low_rank
        from ratchet.critic.model import Critic, load_critic
        from ratchet.models.build import load_model

        seed = self.stage.settings.seed
        if self.before is not None:
            critic = load_critic(self.before)
            if critic.twin != self.own.twin:
                critic = Critic(critic.backbone, twin=self.own.twin, seed=seed)
        else:
            critic = Critic(load_model(self.start, light=True), twin=self.own.twin, seed=seed)
        if self.own.lora.rank:
            add_low_rank(critic.backbone, self.own.lora.rank, self.own.lora.alpha, seed)
        return critic

    def _step_accuracy(self, mine: list[Judged], found: dict[str, Verdicts], steps: pa.Table) -> float | None:
        """Balanced accuracy of an advantage's sign about held-out steps, where the environment has exact labels; read for `share.beta: auto`."""
        from ratchet.evaluation.step_labels import step_labels
        from ratchet.evaluation.step_quality import step_quality

        if self.stage.settings.evolve_online.share.beta != "auto":
            return None
        names = {one.episode_id for one in mine}
        rows = [row for row in self._read("episodes").to_pylist() if row["episode_id"] in names]
        _, labels = step_labels(self.stage.settings.env, self.stage.path("data/games"), rows, steps)
        known = [(found[row["episode_id"]].advantage, label) for row, label in zip(rows, labels, strict=True) if label is not None]
        return step_quality(*(np.concatenate(part) for part in zip(*known, strict=True)))["signed_balanced_accuracy"] if known else None

    def _traces(self, steps: pa.Table, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Truncated ratios of the episodes that an older policy played."""
        from ratchet.critic.buffer import by_older_policies, step_ratios

        older = by_older_policies(rows)
        if not older:
            return {}
        ratios = step_ratios(steps, self._read("logprobs"), 1.0)
        return {name: ratios[name] for name in older}

    def _read(self, name: str) -> pa.Table:
        return read_table(self.buffer / f"{name}.parquet", name)

    def _card(self, parent: dict[str, Any]) -> dict[str, Any]:
        settings = self.stage.settings
        return {
            "stage": "fit_critic",
            "actor": settings.actor,
            "line": settings.line,
            "round": int(self.round),
            "iteration": 0,
            "parents": [parent["version"]],
            "data_hashes": {"buffer": read_json(self.buffer / "buffer.json")["hash"]},
            "params_hash": params_hash(settings),
        }


def credit_table(all_of: list[Judged], found: dict[str, Verdicts]) -> pa.Table:
    """The sidecar of the kind `critic`: what the critic says of each step, and the weight that the step had in its fit."""
    columns: dict[str, list[Any]] = {name: [] for name in ("episode_id", "t", "value", "q", "advantage", "weight")}
    for one in all_of:
        said, size = found[one.episode_id], len(one.reward)
        columns["episode_id"] += [one.episode_id] * size
        columns["t"] += range(size)
        for name, values in (("value", said.value[:-1]), ("q", said.q), ("advantage", said.advantage), ("weight", one.weight)):
            columns[name] += np.asarray(values, np.float32).tolist()
    kinds = {"episode_id": pa.string(), "t": pa.int32()}
    return pa.table({name: pa.array(values, kinds.get(name, pa.float32())) for name, values in columns.items()})


def gate_of(correlation: float | None, limit: float) -> dict[str, Any]:
    """Whether the critic may share in the online rounds' credit (methods §6): does V rank the actor's newest held-out episodes as they ended?"""
    if correlation is None:
        reason = "its gate is shut: what the actor played last on held-out tasks has not both outcomes"
        return {"passed": False, "rank_correlation": None, "limit": limit, "reason": reason}
    passed = correlation >= limit
    said = f"rank correlation with the outcome {correlation:.2f} on held-out tasks"
    return {"passed": passed, "rank_correlation": correlation, "limit": limit, "reason": said if passed else f"its gate is shut: {said}, below {limit:g}"}


if __name__ == "__main__":
    main("fit_critic", run, "round")
