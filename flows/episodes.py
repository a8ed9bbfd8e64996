"""`ratchet episode`: one episode turn by turn, found by the beginning of its id in any run's files."""

import json as json_module
from collections.abc import Iterator
from typing import Any

from flows.commands import root
from flows.text import one_line, visible
from ratchet.store.episodes import Found, find_episode

CURVES = {"cost": "{:.0f}", "value": "{:.3f}", "advantage": "{:+.3f}", "weight": "{:.2f}", "fit_weight": "{:.2f}"}
SPARKS = "▁▂▃▄▅▆▇█"
BAR = 10  # characters of a step's bar
MOST = 60  # points of a curve in one line


def show_episode(episode_id: str, run: str | None, json: bool) -> None:
    """`ratchet episode`."""
    found = find_episode(root(), episode_id, run)
    if json:
        value = {"run": found.run_id, "file": str(found.path), "episode": found.episode, "steps": found.steps, **found.credit}
        print(json_module.dumps(value, indent=1))
        return
    print("\n".join(lines(found)))


def lines(found: Found) -> Iterator[str]:
    """The episode for a terminal. What was written by a model or an environment is escaped, so it can only be read."""
    one = found.episode
    yield f"episode {one_line(one['episode_id'])}"
    yield f"  run {found.run_id}, {found.path}"
    yield f"  {one_line(str(one['env']))} {one_line(str(one['task_id']))} ({one_line(str(one['stratum']))}), {one_line(str(one['split']))}"
    yield f"  policy {one_line(str(one['policy_id']))}, round {one['round']}, iteration {one['iteration']}, sample {one['sample']}"
    yield f"  {_end(one)}, score {one['score']:g}, {one['n_steps']} steps, {one['n_tokens']} generated tokens"
    curves = found.curves
    yield from (f"  {name:<10} {spark(values)}  {_span(name, values)}" for name, values in curves.items())
    for place, step in enumerate(found.steps):
        yield ""
        yield f"[{step['t']}] {_indented(step['observation'] or '')}"
        yield f"  « {_indented(step['reply'] or '')}"
        if curves:
            yield f"    {'  '.join(_gauge(name, values, place) for name, values in curves.items())}"
        flags = [text for text, holds in _flags(step) if holds]
        if flags:
            yield f"    ({', '.join(flags)})"


def spark(values: list[float | None]) -> str:
    """A curve in one line, its lowest point ▁ and its highest █; a long one in MOST means, and a point without a number as a dot."""
    size = -(-len(values) // MOST)
    groups = [[value for value in values[i : i + size] if value is not None] for i in range(0, len(values), size)]
    means = [sum(group) / len(group) if group else None for group in groups]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join("·" if mean is None else SPARKS[_level(mean, low, high, len(SPARKS) - 1)] for mean in means)


def _span(name: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{CURVES[name].format(min(known))} to {CURVES[name].format(max(known))}"


def _gauge(name: str, values: list[float | None], place: int) -> str:
    """A step's number, and where it lies between the episode's lowest and highest."""
    value = values[place] if place < len(values) else None
    known = [one for one in values if one is not None]
    if value is None:
        return f"{name} – {'·' * BAR}"
    filled = _level(value, min(0.0, *known), max(0.0, *known), BAR)
    return f"{name} {CURVES[name].format(value)} {'━' * filled}{'·' * (BAR - filled)}"


def _level(value: float, low: float, high: float, most: int) -> int:
    return round((value - low) / (high - low) * most) if high > low else 0


def _flags(step: dict[str, Any]) -> list[tuple[str, bool]]:
    return [
        ("no action in the expected format", not step["format_ok"]),
        ("not admissible", not step["valid"]),
        ("nothing changed", bool(step["repeated"])),
        (f"reward {step['reward'] or 0:g}", bool(step["reward"])),
    ]


def _end(episode: dict[str, Any]) -> str:
    if episode["error"] is not None:
        return f"ended by an error: {one_line(episode['error'])}"
    return f"{'solved' if episode['solved'] else 'not solved'}{', truncated' if episode['truncated'] else ''}"


def _indented(text: str) -> str:
    return visible(text).replace("\n", "\n    ")
