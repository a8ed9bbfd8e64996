"""`ratchet plan`: how long a run would take and how much disk it would fill, from a short measurement on this machine."""

import json as json_module
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from flows.calibration import ActorSpeed, Speed, measure
from flows.commands import root, show
from flows.dag import split_name
from flows.speed import duration
from ratchet.models.sizes import GIB, memory_of
from ratchet.rendering import render_run
from ratchet.settings import Settings, parse
from ratchet.settings_critic import uses_buffer

LONGER = 0.25  # a model's episode is taken to be the expert's and so much of the way to the limit of turns
STUCK = 0.45  # of env.max_invalid, likewise (quickstart: 8.8 to 9.1 turns where the expert needs 7.6 and the limit is 3)
SCORING = 1 / 3  # a forward pass alone, of an update
TRL = 2.5  # TRL's trainer beside ours (0.68 s a step where ours takes 0.27)
AFTER_ROUNDS = ("final", "report", "seal")
SUITES = ("check", "drift")  # stages that load the quality suite
MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """Seconds, and bytes that stay on the disk."""

    seconds: float = 0.0
    size: float = 0.0


def plan(preset: str | None, settings: list[str], json: bool) -> None:
    """`ratchet plan`."""
    checkout = root()
    params = render_run(checkout, preset, settings)
    chosen = parse(params, "", checkout)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ratchet-plan-") as scratch:
        speed = measure(chosen, Path(scratch), lambda text: print(f"measuring {text}", file=sys.stderr))
    rows = estimate(chosen, speed, stages(checkout, chosen))
    took, free, memory = time.monotonic() - began, shutil.disk_usage(checkout).free, memory_of(chosen)
    total = Cost(sum(cost.seconds for _, cost in rows), sum(cost.size for _, cost in rows))
    if json:
        costs = [{"stage": name, "seconds": round(cost.seconds, 1), "bytes": round(cost.size)} for name, cost in rows]
        value = {"stages": costs, "seconds": round(total.seconds, 1), "bytes": round(total.size), "memory_bytes": memory, "free_bytes": free}
        print(json_module.dumps(value | {"measured_in_s": round(took, 1), "estimate": True}, indent=1))
        return
    table = [{"stage": name, "time": duration(cost.seconds), "disk": f"{cost.size / MIB:.1f} MiB"} for name, cost in rows]
    show([*table, {"stage": "all", "time": duration(total.seconds), "disk": f"{total.size / MIB:.1f} MiB"}], ["stage", "time", "disk"], False, "")
    print(f"memory: about {memory / GIB:.1f} GiB at the peak; disk: {free / GIB:.1f} GiB are free")
    for name, one in speed.actors.items():
        print(f"{name}: {one.parameters:,} parameters, learns {1 / one.train_s:,.0f} and writes {1 / one.write_s:,.0f} tokens/s")
    print(
        f"This is an estimate, from {took:.0f} s of measuring under a load of {os.getloadavg()[0]:.1f}. It takes a model's episode to have "
        f"{_turns(chosen, speed):.0f} turns ({'the expert' if speed.has_expert else 'a random walk'} needs {speed.turns:.0f}, the limit is "
        f"{chosen.env.max_steps}); a run whose models need more or fewer takes longer or shorter."
    )
    if total.size > free:
        print("The disk is too small for it; `ratchet gc` shows what old runs would free.")


def stages(checkout: Path, settings: Settings) -> list[str]:
    """Names of the run's stages as dvc.yaml gives them, in its order, round by round."""
    entries = yaml.safe_load((checkout / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    values = {"actors": settings.actors, "rounds": settings.rounds, "evaluations": settings.evaluations}
    names: list[tuple[int, int, str]] = []
    last = max(map(int, settings.rounds)) + 1
    for place, (name, entry) in enumerate(entries.items()):
        over = str(entry.get("foreach", "")).removeprefix("${").removesuffix("}")
        if over == "":
            names.append((last if name in AFTER_ROUNDS else 0, place, name))
        else:
            names += [(int(key) if key.isdigit() else 0, place, f"{name}@{key}") for key in values[over]]
    return [name for _, _, name in sorted(names)]


def estimate(settings: Settings, speed: Speed, names: list[str]) -> list[tuple[str, Cost]]:
    """The cost of each stage; one that this knows nothing about costs its start."""
    found = []
    for title in names:
        name, key = split_name(title)
        cost = COSTS[name](settings, speed, key) if name in COSTS else Cost()
        start = speed.start_s + (speed.suite_s if name in SUITES else 0)
        found.append((title, Cost(cost.seconds + start, cost.size)))
    return found


def _turns(settings: Settings, speed: Speed) -> float:
    """Of a model's episode: what fails goes on to the limit of turns, or is ended where it repeats what cannot be done."""
    env = settings.env
    more = LONGER * max(0.0, env.max_steps - speed.turns)
    if env.max_invalid is not None:
        more = min(more, STUCK * env.max_invalid)
    return min(env.max_steps, speed.turns + more)


def _played(settings: Settings, speed: Speed, name: str, episodes: float) -> Cost:
    """Episodes of an actor."""
    one = speed.actors[name]
    tokens = episodes * _turns(settings, speed) * one.reply_tokens
    return Cost(tokens * one.write_s, tokens * one.token_bytes)


def _expert(speed: Speed, episodes: float) -> Cost:
    return Cost(episodes * speed.expert_s, episodes * speed.turns * speed.turn_bytes)


def _prepare(settings: Settings, speed: Speed, key: str | None) -> Cost:
    from tasks.prepare import tokenizer_games

    games = sum(settings.prepare.games.model_dump().values())
    made = settings.prepare.vocab_size is not None
    speaking = min(tokenizer_games(settings), settings.prepare.games.train) if made else 0
    return Cost(games * speed.game_s + _expert(speed, speaking).seconds, games * speed.game_bytes)


def _demonstrate(settings: Settings, speed: Speed, key: str | None) -> Cost:
    return _expert(speed, settings.demonstrate.episodes)


def _warm_start(settings: Settings, speed: Speed, key: str | None) -> Cost:
    assert key is not None
    one = speed.actors[key]
    slower = TRL if settings.warm_start.trainer == "trl" else 1.0
    skipped = settings.start != "scratch" and key == settings.actor
    return Cost(0.0 if skipped else settings.actors[key].tokens * one.train_s * slower, one.bytes)


def _panel(settings: Settings, speed: Speed, games: int) -> Cost:
    return _played(settings, speed, settings.actor, games * settings.evaluate.samples)


def _evaluate(settings: Settings, speed: Speed, key: str | None) -> Cost:
    candidates = 1 if key == "0" else _online_candidates(settings, key) + settings.of_round(key).evolve_offline.enabled
    games = settings.prepare.games
    chosen = _panel(settings, speed, candidates * games.select)
    confirm = _panel(settings, speed, games.confirm)
    return Cost(chosen.seconds + confirm.seconds, confirm.size)


def _harvest(settings: Settings, speed: Speed, key: str | None) -> Cost:
    """Served models are somebody else's time, and not counted."""
    costs = []
    for member in settings.harvest.pool:
        episodes = member.share * settings.harvest.episodes
        if member.policy in speed.actors:
            costs.append(_played(settings, speed, member.policy, episodes))
        elif member.policy == "expert":
            costs.append(_expert(speed, episodes))
        elif member.policy == "random":
            costs.append(_expert(speed, episodes * settings.env.max_steps / max(speed.turns, 1.0)))
    return Cost(sum(one.seconds for one in costs), sum(one.size for one in costs))


def _label(settings: Settings, speed: Speed, key: str | None) -> Cost:
    return Cost(_expert(speed, settings.label.replay_share * settings.harvest.episodes).seconds)


def _evolve_online(settings: Settings, speed: Speed, key: str | None) -> Cost:
    own, one = settings.of_round(key).evolve_online, speed.actors[settings.actor]
    if not own.enabled:
        return Cost()
    episodes = own.iterations * own.tasks * own.samples
    played = _played(settings, speed, settings.actor, episodes)
    tokens = episodes * _tokens(settings, speed, one)
    passes = 1 + (SCORING if own.kl_weight else 0)
    return Cost(played.seconds + tokens * one.train_s * passes, played.size + _online_candidates(settings, key) * one.bytes)


def _online_candidates(settings: Settings, key: str | None) -> int:
    own = settings.of_round(key).evolve_online
    return math.ceil(own.iterations / own.keep_every) if own.enabled else 0


def _buffer(settings: Settings, speed: Speed, key: str | None) -> Cost:
    if not uses_buffer(settings.of_round(key)):
        return Cost()
    own, one = settings.of_round(key).buffer.own, speed.actors[settings.actor]
    played = _played(settings, speed, settings.actor, own.tasks * own.samples)
    return Cost(played.seconds + _buffer_tokens(settings, speed, key) * one.train_s * SCORING, played.size)


def _fit_critic(settings: Settings, speed: Speed, key: str | None) -> Cost:
    own, one = settings.of_round(key).fit_critic, speed.actors[settings.actor]
    passes = own.epochs + SCORING
    return Cost(_buffer_tokens(settings, speed, key) * one.train_s * passes, one.bytes) if own.enabled else Cost()


def _fit_meter(settings: Settings, speed: Speed, key: str | None) -> Cost:
    own, meter, one = settings.fit_meter, settings.evolve_online.meter, speed.actors[settings.fit_meter.base or settings.actor]
    if not meter.enabled or key != "1":  # one that still passes its gate is passed on
        return Cost()
    prefix = _tokens(settings, speed, one) / 2
    answers = (own.sft.examples or settings.harvest.episodes) * own.sft.epochs + own.rl.steps * own.rl.prompts * own.rl.samples
    return Cost(answers * prefix * one.train_s * TRL, one.bytes)


def _evolve_offline(settings: Settings, speed: Speed, key: str | None) -> Cost:
    own, one = settings.of_round(key).evolve_offline, speed.actors[settings.actor]
    passes = own.epochs + SCORING * (2 if own.reference.weight else 1)
    return Cost(_buffer_tokens(settings, speed, key) * one.train_s * passes if own.enabled else 0.0, one.bytes)


def _buffer_tokens(settings: Settings, speed: Speed, key: str | None) -> float:
    """Of a round's buffer: experts are as short as they are, and of the online round before half are taken to have failed."""
    assert key is not None
    own, one = settings.of_round(key).buffer, speed.actors[settings.actor]
    previous = settings.rounds[key].prev
    online = settings.of_round(previous).evolve_online
    harvested = sum(member.share for member in settings.harvest.pool if member.policy == settings.actor) * settings.harvest.episodes
    failed = online.iterations * online.tasks * online.samples / 2 if online.enabled and previous in settings.rounds else 0.0
    failed = failed if own.online_failures is True else min(failed, own.online_failures)
    return own.experts * one.tokens + (own.own.tasks * own.own.samples + harvested + failed) * _tokens(settings, speed, one)


def _tokens(settings: Settings, speed: Speed, one: ActorSpeed) -> float:
    """Of a whole episode of a model, observations included."""
    return min(settings.env.max_tokens, one.tokens * _turns(settings, speed) / max(speed.turns, 1.0))


def _final(settings: Settings, speed: Speed, key: str | None) -> Cost:
    return _panel(settings, speed, 2 * settings.prepare.games.test)


def _only_starts(settings: Settings, speed: Speed, key: str | None) -> Cost:
    return Cost()


COSTS: dict[str, Callable[[Settings, Speed, str | None], Cost]] = {
    "prepare": _prepare,
    "demonstrate": _demonstrate,
    "warm_start": _warm_start,
    "harvest": _harvest,
    "label": _label,
    "check": _only_starts,
    "buffer": _buffer,
    "fit_meter": _fit_meter,
    "fit_critic": _fit_critic,
    "evolve_offline": _evolve_offline,
    "evolve_online": _evolve_online,
    "evaluate": _evaluate,
    "drift": _only_starts,
    "baseline": _only_starts,
    "decide": _only_starts,
    "final": _final,
    "report": _only_starts,
    "seal": _only_starts,
}
