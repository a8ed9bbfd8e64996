"""What a server has answered, kept while a stage runs: an answer is paid for once, also where the stage is killed and resumed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ratchet.files import sha256_json
from ratchet.policies.served_answers import Answer
from ratchet.policies.served_client import Failed


class Journal:
    """Answers by the request that they are to, one JSON line each. Without a path they are counted and not kept.

    `counts` holds `requests` (retries included), `retries`, `prompt_tokens` and `reply_tokens`, all processes that wrote this
    file together.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.counts = Counter(requests=0, retries=0, prompt_tokens=0, reply_tokens=0)
        self._answers: dict[str, dict[str, Any]] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            for line in path.read_bytes().splitlines():
                self._take(line)
            with path.open("ab") as file:
                file.write(b"\n")  # ends a line that a kill has torn

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> Answer | None:
        found = self._answers.get(key)
        return None if found is None else Answer(**found)

    def put(self, key: str, answer: Answer | Failed) -> None:
        """A failure is counted and asked for again."""
        entry = {"key": key, "attempts": answer.attempts, "answer": dataclasses.asdict(answer) if isinstance(answer, Answer) else None}
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        self._count(entry)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # torn, or empty
        self._count(entry)
        if entry["answer"] is not None:
            self._answers[entry["key"]] = entry["answer"]

    def _count(self, entry: dict[str, Any]) -> None:
        self.counts.update(requests=entry["attempts"], retries=entry["attempts"] - 1)
        if entry["answer"] is not None:
            self.counts.update({name: entry["answer"][name] for name in ("prompt_tokens", "reply_tokens")})


def key_of(episode_id: str, t: int, body: Any) -> str:
    """What tells one request from all others: two samples of a task may send the same text, and are owed an answer each."""
    return sha256_json([episode_id, t, body])
