"""Test-time guidance: several candidate actions a turn, each tried in a copy of the environment, and the meter chooses (methods §3).

The cost of a candidate is what the meter says of the history that it leads to: 0 where it solves the task, C where it ends it otherwise.
The least cost is played; of equals the one that the policy thought likelier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ratchet.engines.local import LocalEngine
from ratchet.envs.base import Task, Turn
from ratchet.envs.pool import Failure
from ratchet.meter.lookahead import Lookahead
from ratchet.meter.meter import Meter
from ratchet.meter.passes import Ask, Trunk
from ratchet.policies.base import Reply
from ratchet.policies.language_model import ModelSpec, reply_of
from ratchet.rollout.noise import episode_key

TRIES = 3  # times that a turn's candidates are drawn until there are enough different ones


@dataclass
class _Row:
    """One episode as it is guided."""

    episode_id: str
    seed: int
    used: int = 0  # tokens of the episode so far
    pending: list[int] = field(default_factory=list)  # the chosen reply, which the engine reads with the next observation
    trunk: list[int] = field(default_factory=list)  # the episode in the meter's tokens


class GuidedPolicy:
    """A language model whose every action is the best of `candidates` different ones by a meter. Plays in this process.

    The first candidate is what the policy would have said by itself, at its own temperature; the others are sampled at `temperature`.
    """

    needs_admissible = False
    is_learning = False
    spec = None  # other processes have no copies of its environments

    def __init__(self, spec: ModelSpec, meter: Meter, lookahead: Lookahead, *, candidates: int, temperature: float = 1.0) -> None:
        from ratchet.episodes.template import load_template
        from ratchet.models.build import load_model

        self.template = load_template(spec.folder, spec.action_format)
        length = spec.max_tokens + spec.max_reply_tokens
        model = load_model(spec.folder, light=True)
        self.engine = LocalEngine(model, slots=spec.rows * candidates, length=length, end=self.template.ends, pad=self.template.pad)
        self.own, self.meter, self.lookahead, self.count, self.sampling = spec, meter, lookahead, candidates, temperature
        self.policy_id, self.version, self.tokenizer_id = f"{spec.policy_id}-guided", f"{spec.version}+guide", self.template.tokenizer_id
        self.temperature = spec.temperature
        self.rows: dict[int, _Row] = {}

    def start(self) -> None:
        self.engine.reset()

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str, seed: int) -> None:
        self.engine.clear(self._slots(row))
        self.rows[row] = _Row(episode_id, seed)
        self.lookahead.begin(row, task, turn, episode_id)

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        new = self.template.observations_ids([turn.observation for turn in turns], [self.rows[row].used == 0 for row in rows])
        limits = [min(self.own.max_reply_tokens, self.own.max_tokens - self.rows[row].used - len(ids)) for row, ids in zip(rows, new, strict=True)]
        playing = [index for index, limit in enumerate(limits) if limit > 0]
        replies: list[Reply | None] = [None] * len(rows)
        if not playing:
            return replies
        mine = [rows[index] for index in playing]
        prompts = [new[index] for index in playing]
        drawn = self._draw(mine, prompts, [limits[index] for index in playing])
        observations = [turns[index].observation for index in playing]
        self._read(mine, observations)
        after = self.lookahead.tried(mine, observations, [[one.action for one in some] for some in drawn])
        costs = self._costs(mine, drawn, after)
        for index, row, some, cost in zip(playing, mine, drawn, costs, strict=True):
            best = min(range(len(some)), key=lambda j: (cost[j], -sum(some[j].logprobs)))
            replies[index] = some[best]
            self._chosen(row, some[best], new[index])
            self.lookahead.took(row, best)
        return replies

    def _slots(self, row: int) -> list[int]:
        return [row * self.count + place for place in range(self.count)]

    def _draw(self, rows: Sequence[int], prompts: Sequence[list[int]], limits: Sequence[int]) -> list[list[Reply]]:
        """Different candidates of each row, at most `count`."""
        found: list[list[Reply]] = [[] for _ in rows]
        asked = [[*self.rows[row].pending, *prompt] for row, prompt in zip(rows, prompts, strict=True)]
        for attempt in range(TRIES):
            waiting = [at for at in range(len(rows)) if len(found[at]) < self.count]
            for greedy in (True, False) if attempt == 0 else (False,):
                entries = [(at, place) for at in waiting for place in range(self.count) if (place == 0 and attempt == 0) == greedy]
                if entries:
                    self._sample(rows, prompts, asked, limits, entries, attempt, self.own.temperature if greedy else self.sampling, found)
            asked = [prompt[-1:] for prompt in prompts]  # what is read again to sample again
        for row, prompt in zip(rows, prompts, strict=True):
            self._rewind(row, self.rows[row].used + len(prompt))
        return found

    def _sample(
        self, rows: Sequence[int], prompts: Sequence[list[int]], asked: Sequence[list[int]], limits: Sequence[int],
        entries: Sequence[tuple[int, int]], attempt: int, temperature: float, found: list[list[Reply]],
    ) -> None:  # fmt: skip
        """Replies in the slots of `entries` (row's place, candidate's place), added to `found` where their action is new."""
        slots = [rows[at] * self.count + place for at, place in entries]
        if attempt:
            for (at, _), slot in zip(entries, slots, strict=True):
                self.engine.used[slot], self.engine.held[slot] = self.rows[rows[at]].used + len(prompts[at]) - 1, None
        keys = [episode_key(self.rows[rows[at]].seed, self.rows[rows[at]].episode_id, f"guide {place}.{attempt}") for at, place in entries]
        written = self.engine.reply(slots, [asked[at] for at, _ in entries], np.array(keys, np.uint64), [limits[at] for at, _ in entries], float(temperature))
        texts = self.template.decode_replies([one.ids for one in written])
        for (at, _), one, text in zip(entries, written, texts, strict=True):
            reply = reply_of(self.template, one, text, prompts[at])
            if len(found[at]) < self.count and all(reply.action != other.action for other in found[at]):
                found[at].append(reply)

    def _rewind(self, row: int, used: int) -> None:
        for slot in self._slots(row):
            self.engine.used[slot], self.engine.held[slot] = used, None

    def _chosen(self, row: int, reply: Reply, prompt: list[int]) -> None:
        one = self.rows[row]
        one.used += len(prompt) + len(reply.reply_ids)
        one.pending = list(reply.reply_ids)
        one.trunk += self._meter_reply(reply)

    def _read(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """The latest observations in the meter's tokens."""
        template = self.meter.template
        ids = template.observations_ids(list(observations), [not self.rows[row].trunk for row in rows])
        for row, some in zip(rows, ids, strict=True):
            self.rows[row].trunk += some

    def _meter_reply(self, reply: Reply) -> list[int]:
        if self.tokenizer_id in self.meter.alike:
            return list(reply.reply_ids)
        return self.meter.template.replies_ids([reply.text])[0]

    def _costs(self, rows: Sequence[int], drawn: Sequence[list[Reply]], after: Sequence[Sequence[Turn | Failure]]) -> list[list[float]]:
        """c_j of each candidate."""
        limit, behind = self.meter.limit, self.meter.grammar.behind
        costs = [[limit] * len(some) for some in drawn]
        trunks, places = [], []
        for at, (row, some, turns) in enumerate(zip(rows, drawn, after, strict=True)):
            trunk, asks = self.rows[row].trunk, []
            for j, (reply, turn) in enumerate(zip(some, turns, strict=True)):
                if isinstance(turn, Failure):
                    continue
                if turn.done:
                    costs[at][j] = 0.0 if turn.solved else limit
                    continue
                observed = self.meter.template.observation_ids(turn.observation, False)
                extra = [*self._meter_reply(reply), *(observed[:-behind] if behind else observed)]
                if len(trunk) - 1 + len(extra) <= self.meter.room:
                    asks.append(Ask(len(trunk) - 1, tuple(extra)))
                    places.append((at, j))
            trunks.append(Trunk(np.asarray(trunk, np.int64), tuple(asks)))
        if places:
            found = self.meter.answers(trunks)
            for (at, j), able, value in zip(places, found.completable, found.remaining, strict=True):
                costs[at][j] = min(float(value), limit) if able else limit
        return costs
