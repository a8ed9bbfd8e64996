"""A model behind an OpenAI-compatible server as a policy: `chat` sends messages, `completions` sends token ids.

A request that fails for good gives an invalid action, is counted, and the episode goes on. A server that has never answered, or
has stopped to (SILENT failures in a row, and more than `max_error_share` of all actions), is taken for down, and that is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ratchet.envs.base import Task, Turn
from ratchet.episodes.formats import FORMATS, TOOL, ActionFormat
from ratchet.episodes.template import Template
from ratchet.errors import RatchetError
from ratchet.policies.base import Reply
from ratchet.policies.served_answers import Answer
from ratchet.policies.served_client import Client, Failed, Request
from ratchet.policies.served_journal import Journal, key_of
from ratchet.policies.served_settings import VERSION, Served
from ratchet.rollout.noise import episode_key

SILENT = 8
FAILED = "+failed"  # ends the `policy_version` of a step whose request failed for good


class _Conversation(Protocol):
    """One episode as the server gets it."""

    def prompt(self, observation: str) -> tuple[dict[str, Any], int] | None:
        """(fields of the request, most tokens of the reply) after a new observation; None where the budget is spent."""
        ...

    def hear(self, answer: Answer | None) -> Reply:
        """The reply that an answer is, which is then part of the conversation; None: there was none."""
        ...


class _Messages:
    """The messages of a chat. Servers want turns that alternate, so what follows an unanswered observation is put behind it."""

    def __init__(self, instruction: str, limit: int, action_format: ActionFormat) -> None:
        self.messages = [{"role": "system", "content": instruction}] if instruction else []
        self.limit, self.format = limit, action_format

    def prompt(self, observation: str) -> tuple[dict[str, Any], int]:
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1] = {"role": "user", "content": f"{self.messages[-1]['content']}\n\n{observation}"}
        else:
            self.messages.append({"role": "user", "content": observation})
        tools = {"tools": [TOOL]} if self.format.name == "tool" else {}
        return {"messages": list(self.messages), **tools}, self.limit

    def hear(self, answer: Answer | None) -> Reply:
        if answer is None or not answer.text:
            return Reply("", "", False)
        self.messages.append({"role": "assistant", "content": answer.text})
        action, format_ok = self.format.parse(answer.text) if answer.whole else ("", False)
        return Reply(answer.text, action, format_ok)


class _Ids:
    """The token ids of an episode, each piece encoded once: what the server generated is sent back as the ids that it gave."""

    def __init__(self, template: Template, limit: int, max_tokens: int) -> None:
        self.template, self.limit, self.max_tokens = template, limit, max_tokens
        self.ids: list[int] = []
        self.new: list[int] = []  # since the last reply

    def prompt(self, observation: str) -> tuple[dict[str, Any], int] | None:
        self.new += self.template.observation_ids(observation, not self.ids and not self.new)
        limit = min(self.limit, self.max_tokens - len(self.ids) - len(self.new))
        if limit <= 0:
            return None
        wanted = {"stop_token_ids": list(self.template.ends), "return_token_ids": True, "logprobs": 0, "add_special_tokens": False}
        return {"prompt": [*self.ids, *self.new], **wanted}, limit

    def hear(self, answer: Answer | None) -> Reply:
        if answer is None:
            return Reply("", "", False)
        new, self.new = self.new, []
        if not answer.ids:  # a text without its tokens: the server has to be told of it in some, but they are not its own
            self.ids += [*new, *self.template.replies_ids([answer.text])[0]]
            action, format_ok = self.template.format.parse(answer.text) if answer.whole else ("", False)
            return Reply(answer.text, action, format_ok)
        self.ids += [*new, *answer.ids]
        [text] = self.template.decode_replies([answer.ids])
        action, format_ok = self.template.format.parse(text) if answer.ids[-1] in self.template.ends else ("", False)
        return Reply(text, action, format_ok, new, answer.ids, answer.logprobs, answer.entropy, "generated")


class ServedPolicy:
    """Sees observations only, as every language model does. To be closed."""

    needs_admissible = False

    def __init__(
        self,
        name: str,
        settings: Served,
        *,
        temperature: float,
        max_tokens: int,
        max_reply_tokens: int,
        max_error_share: float,
        action_format: str = "plain",
        template: Template | None = None,
        journal: Path | None = None,
    ) -> None:
        """`name` is that of the entry in `served`, whose settings come before `temperature` and `max_reply_tokens`.

        `template` and `max_tokens` (of a whole episode) are those of api=completions. Answers are kept in `journal`, so that a
        resumed shard asks only for what is missing. Raises RatchetError where the key is not in its variable.
        """
        self.name, self.settings, self.template = name, settings, template
        self.policy_id, self.version = name, VERSION + settings.model
        self.tokenizer_id = template.tokenizer_id if template else None
        self._temperature = temperature if settings.temperature is None else settings.temperature
        sent = settings.extra.get("temperature", self._temperature)
        self.temperature = sent if isinstance(sent, (int, float)) else None  # None: the server takes its own
        self.max_error_share = max_error_share
        self.actions = self.failures = 0
        self._silent = 0  # failures since the last answer
        self._limit, self._max_tokens = settings.max_tokens or max_reply_tokens, max_tokens
        self._format = FORMATS[action_format]
        self._client = Client(name, settings, len(template.tokenizer) if template else 0)
        self._journal = Journal(journal)
        self._answered = len(self._journal) > 0
        self._rows: dict[int, _Conversation] = {}
        self._episode: dict[int, tuple[str, int, int]] = {}  # id, seed, turn

    def __repr__(self) -> str:
        return f"ServedPolicy({self.name!r}, {self.settings.url!r}, {self.settings.model!r})"

    def close(self) -> None:
        self._client.close()

    @property
    def counts(self) -> dict[str, int]:
        """Requests, retries and the server's own counts of tokens, those of an interrupted run of the same stage included."""
        return dict(self._journal.counts)

    def start(self) -> None:
        """Rows share nothing."""

    def begin(self, row: int, task: Task, turn: Turn, episode_id: str, seed: int) -> None:
        self._episode[row] = (episode_id, seed, 0)
        if self.template is not None:
            self._rows[row] = _Ids(self.template, self._limit, self._max_tokens)
        else:
            self._rows[row] = _Messages(self._instruction(), self._limit, self._format)

    def _instruction(self) -> str:
        if self.settings.instruction == "":
            return ""
        own = self._format.instruction.partition("\n\n# Tools")[0]  # a server writes its tools into the prompt by itself
        return own if self.settings.instruction is None else f"{self.settings.instruction}\n\n{own}"

    def act(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply | None]:
        """Raises RatchetError where the server is down, refuses the key, or refuses all requests."""
        asked = {row: request for row, turn in zip(rows, turns, strict=True) if (request := self._request(row, turn)) is not None}
        answers = dict(zip(asked, self._ask(list(asked), list(asked.values())), strict=True))
        self._look_for_outage(list(answers.values()))
        return [self._reply(row, answers[row]) if row in answers else None for row in rows]

    def _request(self, row: int, turn: Turn) -> Request | None:
        prompt = self._rows[row].prompt(turn.observation)
        if prompt is None:
            return None
        fields, limit = prompt
        episode_id, seed, t = self._episode[row]
        self._episode[row] = (episode_id, seed, t + 1)
        key = episode_key(seed, episode_id, f"served {t}")
        usual = {"model": self.settings.model, **fields, "max_tokens": limit, "temperature": self._temperature, "seed": int(key) % 2**31}
        body = {name: value for name, value in {**usual, **self.settings.extra}.items() if value is not None}
        return Request(body, limit, key)

    def _ask(self, rows: list[int], requests: list[Request]) -> list[Answer | Failed]:
        """Answers of the journal, and of the server for the rest."""
        keys = [key_of(self._episode[row][0], self._episode[row][2], one.body) for row, one in zip(rows, requests, strict=True)]
        known = [self._journal.get(key) for key in keys]
        missing = [index for index, answer in enumerate(known) if answer is None]
        found = self._client.ask(
            [requests[index] for index in missing], lambda place, answer: self._journal.put(keys[missing[place]], answer)
        )
        fresh = dict(zip(missing, found, strict=True))
        return [fresh[index] if answer is None else answer for index, answer in enumerate(known)]

    def _look_for_outage(self, answers: list[Answer | Failed]) -> None:
        if not answers:
            return
        failed = [answer for answer in answers if isinstance(answer, Failed) and not answer.too_long]
        self.actions += len(answers)
        self.failures += len(failed)
        self._answered |= len(failed) < len(answers)
        self._silent = self._silent + len(failed) if len(failed) == len(answers) else 0
        is_down = self._silent >= SILENT if self._answered else self._silent > 0
        if not is_down or self.failures <= self.max_error_share * self.actions:
            return
        where = f"served.{self.name}: {self.settings.url}"
        if failed[0].refused and not self._answered:
            raise RatchetError(f"{where} refuses every request ({failed[0].reason}); correct url, model or extra of served.{self.name}")
        raise RatchetError(
            f"{where} does not answer: {self.failures} of {self.actions} actions failed after {failed[0].attempts} requests each "
            f"({failed[0].reason}), above env.max_error_share={self.max_error_share}; see to the server, then go on with "
            "`ratchet run --resume ID`"
        )

    def _reply(self, row: int, answer: Answer | Failed) -> Reply | None:
        if isinstance(answer, Failed):
            if answer.too_long:
                return None
            reply = self._rows[row].hear(None)
            reply.version = self.version + FAILED
            return reply
        reply = self._rows[row].hear(answer)
        reply.text, reply.action = self._client.redact(reply.text), self._client.redact(reply.action)
        return reply
