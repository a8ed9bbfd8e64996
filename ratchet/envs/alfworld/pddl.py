"""PDDL and grammar texts of games: written for the real engine and for export, read for the compiled engine."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ratchet.envs.alfworld.games import Game
from ratchet.envs.alfworld.layouts import TASK_TYPES, domain_text, goal_templates, grammar_text, rules, scene
from ratchet.envs.alfworld.world import ABILITIES, STATES, World, display_names, mangle, object_abilities, object_ids, place_id, start_place
from ratchet.errors import RatchetError

UNKNOWN_TASK = "UNKNOWN GOAL"

# The texts whose play the compiled engine was compared with, byte by byte; games with others go to the real engine.
VERIFIED_DOMAINS = frozenset({"f1473041ed01da514de1f87adfd7ef0804862361f83ccf63c75e43633b0eb280"})
VERIFIED_GRAMMARS = frozenset({"c5b22f0f73309a7fd7c8e5b71de42ad4803b60766ab4a51cc2feb34162be036b"})

_TASK = re.compile(r'("rhs": "Your task is to: )([^"]*)(\.")')
_PLAIN_SENTENCE = re.compile(r"[A-Za-z0-9,.'-]+( [A-Za-z0-9,.'-]+)*")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_PLAIN_ID = re.compile(r"[a-z]+_bar_[a-z0-9_]+")
_IGNORED = frozenset(("=", "ison", "moveable", "wasinreceptacle", "checked", "examined", "full", "isreceptacleobjectfull"))
_TYPE_FACTS = ("receptacletype", "objecttype", "cancontain")
_PLACE_FACTS = ("atlocation", "receptacleatlocation", "objectatlocation", "inreceptacle", "inreceptacleobject")
_PAIRS = frozenset((*_TYPE_FACTS, *_PLACE_FACTS))
_SINGLES = frozenset(("openable", "opened", *ABILITIES, *STATES))


class NotCompilable(Exception):
    """The game holds something the compiled engine was not compared on; the real engine must play it."""


def digest(text: str) -> str:
    """Hex SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


# ---- writing -----------------------------------------------------------------------------------------------------------


def problem_text(game: Game) -> str:
    """The PDDL problem of a generated game."""
    room = scene(game.scene)
    kept = [room.receptacles[i] for i in game.receptacles]
    ids = list(zip(object_ids(game), game.objects, strict=True))
    start = place_id(start_place(game))
    places = sorted({place_id(r.place) for r in kept} | {start})
    receptacle_types = sorted({r.type for r in kept} | ({game.parent} if game.task_type != "look_at_obj_in_light" else set()))
    object_types = sorted({kind for kind, _ in game.objects})
    objects = ["agent1 - agent"]
    objects += [f"{t}Type - rtype" for t in receptacle_types] + [f"{t}Type - otype" for t in object_types]
    objects += [f"{mangle(r.id)} - receptacle" for r in kept] + [f"{id_} - object" for id_, _ in ids] + [f"{p} - location" for p in places]
    facts = ["(= (total-cost) 0)", f"(atLocation agent1 {start})"]
    for r in kept:
        facts += [f"(receptacleType {mangle(r.id)} {r.type}Type)", f"(receptacleAtLocation {mangle(r.id)} {place_id(r.place)})"]
        facts += [f"(openable {mangle(r.id)})"] if r.type in rules().openable else []
    facts += [f"(canContain {r}Type {o}Type)" for r in receptacle_types for o in object_types if o in rules().contains[r]]
    for id_, (kind, position) in ids:
        holder = room.receptacles[position]
        facts += [f"(objectType {id_} {kind}Type)", f"(inReceptacle {id_} {mangle(holder.id)})"]
        facts += [f"(objectAtLocation {id_} {place_id(holder.place)})"]
        facts += [f"({ability} {id_})" for ability in object_abilities(kind)]
    inner = "\n        "
    return (
        f"(define (problem {game.task_id.rsplit('/', 1)[-1]})\n    (:domain alfred)\n    (:objects\n        {inner.join(objects)}\n    )\n"
        f"    (:init\n        {inner.join(facts)}\n    )\n{goal_text(game)}"
    )


def goal_text(game: Game) -> str:
    """The goal from the wheel's goal library, with the bracket that closes the problem."""
    pddl = goal_templates()[game.task_type][0].replace("#", "-")
    return pddl.format(obj=game.target, recep=game.parent, toggle=game.parent)


def game_data(game: Game) -> dict[str, Any]:
    """What a `game.tw-pddl` file of this game holds."""
    return {
        "pddl_domain": domain_text(),
        "grammar": grammar_text().replace(UNKNOWN_TASK, game.sentence),
        "pddl_problem": problem_text(game),
        "solvable": True,
        "walkthrough": [],
        "task_id": game.task_id,
    }


def export_game(game: Game, folder: Path) -> Path:
    """Writes `game.tw-pddl` and a minimal `traj_data.json` into `folder`, as in the json_2.1.1 data; returns the game file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(game_data(game)), encoding="utf-8")
    looking = game.task_type == "look_at_obj_in_light"
    params = {
        "object_target": game.target,
        "parent_target": "" if looking else game.parent,
        "toggle_target": game.parent if looking else "",
        "mrecep_target": "",
        "object_sliced": False,
    }
    trajectory = {
        "task_id": game.task_id,
        "task_type": game.task_type,
        "pddl_params": params,
        "scene": {"scene_num": game.scene, "floor_plan": f"FloorPlan{game.scene}"},
    }
    (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    return path


# ---- reading -----------------------------------------------------------------------------------------------------------


def read_game_file(path: Path) -> dict[str, Any]:
    """The parsed `game.tw-pddl`. Raises RatchetError where it is missing, not JSON, or lacks a part."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RatchetError(f"{path} cannot be read ({error.strerror}); check ALFWORLD_DATA") from error
    except ValueError as error:
        raise RatchetError(f"{path} is damaged ({error}); delete it and run alfworld-download again") from error
    missing = [
        key for key in ("pddl_domain", "grammar", "pddl_problem") if not isinstance(data, dict) or not isinstance(data.get(key), str)
    ]
    if missing:
        raise RatchetError(f"{path} lacks {', '.join(missing)}; it is not a game file, or a damaged one: run alfworld-download again")
    return data


def world_from_data(data: dict[str, Any]) -> World:
    """The world of a game file. Raises NotCompilable where anything in it is unlike what the compiled engine was compared on."""
    if digest(data["pddl_domain"]) not in VERIFIED_DOMAINS:
        raise NotCompilable("another PDDL domain")
    sentence = _sentence(data["grammar"])
    sections = _sections(data["pddl_problem"])
    task_type, target, parent = _goal(sections[":goal"][0])
    facts = _Facts(sections[":init"])
    if ":metric" in sections:
        raise NotCompilable("a metric")
    return facts.world(task_type, target, parent, sentence)


@lru_cache(maxsize=1)
def wheel_is_verified() -> bool:
    """Whether the installed wheel's domain and grammar, which generated games use, are those that were compared."""
    return digest(domain_text()) in VERIFIED_DOMAINS and digest(grammar_text()) in VERIFIED_GRAMMARS


def _sentence(grammar: str) -> str:
    """The task sentence, where the grammar around it is a verified one."""
    found = _TASK.search(grammar)
    if found is None or digest(_TASK.sub(rf"\g<1>{UNKNOWN_TASK}\3", grammar, count=1)) not in VERIFIED_GRAMMARS:
        raise NotCompilable("another text grammar")
    if not _PLAIN_SENTENCE.fullmatch(found[2]):
        raise NotCompilable("a task sentence with characters that the text engine may interpret")
    return found[2]


def _parse(text: str) -> list[Any]:
    """Nested lists of lower-case tokens; what follows the first complete expression is left (the goal library closes twice)."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(re.sub(r";[^\n]*", "", text).lower()):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:
                return done
    raise NotCompilable("a problem text with unbalanced brackets")


def _sections(problem: str) -> dict[str, list[Any]]:
    parts = [part for part in _parse(problem) if isinstance(part, list) and part and isinstance(part[0], str)]
    sections = {part[0]: part[1:] for part in parts}
    if len(sections) != len(parts) or not {":init", ":goal"} <= sections.keys() or len(sections[":goal"]) != 1:
        raise NotCompilable("a problem without one :init and one :goal")
    return sections


@lru_cache(maxsize=1)
def _goal_patterns() -> tuple[tuple[str, list[Any]], ...]:
    patterns = []
    for kind in TASK_TYPES:
        text = goal_templates()[kind][0].replace("#", "-").format(obj="@target", recep="@parent", toggle="@parent")
        patterns.append((kind, _parse(text)[1]))
    return tuple(patterns)


def _goal(tree: list[Any]) -> tuple[str, str, str]:
    """(task type, target type, parent or lamp type) of a goal written as in the goal library."""
    for kind, pattern in _goal_patterns():
        bound: dict[str, str] = {}
        if _matches(pattern, tree, bound):
            return kind, bound["@targettype"], bound["@parenttype"]
    raise NotCompilable("a goal of none of the six task types")


def _matches(pattern: Any, tree: Any, bound: dict[str, str]) -> bool:
    if isinstance(pattern, str):
        if isinstance(tree, str) and pattern.startswith("@"):
            return bound.setdefault(pattern, tree) == tree
        return pattern == tree
    return isinstance(tree, list) and len(pattern) == len(tree) and all(map(_matches, pattern, tree, [bound] * len(tree)))


class _Facts:
    """The facts of an `:init`, by predicate, checked to be of the kind that was compared with the real engine."""

    def __init__(self, init: Iterable[Any]) -> None:
        self.of: dict[str, list[tuple[str, ...]]] = {name: [] for name in _PAIRS | _SINGLES}
        self.entities: set[str] = set()
        for atom in init:
            if not isinstance(atom, list) or not atom or not isinstance(atom[0], str):
                raise NotCompilable("a malformed fact")
            if atom[0] in _IGNORED:
                self.entities.update(a for a in atom[1:] if isinstance(a, str) and atom[0] != "=")
                continue
            if atom[0] not in self.of or len(atom) != (3 if atom[0] in _PAIRS else 2) or not all(isinstance(a, str) for a in atom):
                raise NotCompilable(f"the fact {atom[0]}")
            self.of[atom[0]].append(tuple(atom[1:]))
            self.entities.update(atom[1:])

    def single(self, name: str) -> set[str]:
        return {atom[0] for atom in self.of[name]}

    def function(self, name: str) -> dict[str, str]:
        """A relation that holds at most once for each first argument."""
        found = dict(self.of[name])
        if len(found) != len(set(self.of[name])):
            raise NotCompilable(f"two facts {name} about one thing")
        return found  # type: ignore[return-value]

    def world(self, task_type: str, target: str, parent: str, sentence: str) -> World:
        r_types, o_types = self.function("receptacletype"), self.function("objecttype")
        place_of = self.function("receptacleatlocation")
        start = self.function("atlocation")
        receptacles, objects = sorted(r_types), sorted(o_types)
        self._check(receptacles, objects, place_of, start)
        names = display_names(sorted(e for e in self.entities if "_bar_" in e))
        o_index = {id_: i for i, id_ in enumerate(objects)}
        r_index = {id_: i for i, id_ in enumerate(receptacles)}
        (agent_at,) = start.values()
        at_facts = self.of["objectatlocation"]
        places = {p: i for i, p in enumerate(sorted({*place_of.values(), agent_at, *(p for _, p in at_facts)}))}
        contains = set(self.of["cancontain"])
        inner = _grouped((o_index[outer], o_index[o]) for o, outer in self.of["inreceptacleobject"])
        inside = _grouped((r_index[r], o_index[o]) for o, r in self.of["inreceptacle"])
        at = _grouped((o_index[o], places[p]) for o, p in at_facts)
        openable, opened = self.single("openable"), self.single("opened")
        return World(
            receptacle_names=tuple(names[r] for r in receptacles),
            receptacle_types=tuple(r_types[r] for r in receptacles),
            place_of=tuple(places[place_of[r]] if r in place_of else -1 for r in receptacles),
            openable=tuple(r in openable for r in receptacles),
            opened=tuple(r in opened for r in receptacles),
            fits=tuple(frozenset(i for o, i in o_index.items() if (r_types[r], o_types[o]) in contains) for r in receptacles),
            object_names=tuple(names[o] for o in objects),
            object_types=tuple(o_types[o] for o in objects),
            abilities={name: frozenset(o_index[o] for o in self.single(name)) for name in ABILITIES},
            states={name: frozenset(o_index[o] for o in self.single(name)) for name in STATES},
            holds_inside=inner,
            inside=tuple(inside.get(r, ()) for r in range(len(receptacles))),
            at=tuple(frozenset(at.get(o, ())) for o in range(len(objects))),
            places=len(places),
            start=places[agent_at],
            task_type=task_type,
            target=target,
            parent=parent,
            sentence=sentence,
        )

    def _check(self, receptacles: list[str], objects: list[str], place_of: dict[str, str], start: dict[str, str]) -> None:
        if len(start) != 1:
            raise NotCompilable("not exactly one agent")
        known_r, known_o = set(receptacles), set(objects)
        o_uses = {*known_o, *(o for name in (*ABILITIES, *STATES) for o in self.single(name))}
        o_uses |= {o for name in ("objectatlocation", "inreceptacle") for o, _ in self.of[name]}
        o_uses |= {o for pair in self.of["inreceptacleobject"] for o in pair}
        r_uses = {*known_r, *place_of, *self.single("openable"), *self.single("opened"), *(r for _, r in self.of["inreceptacle"])}
        if o_uses != known_o or r_uses != known_r or known_o & known_r:
            raise NotCompilable("a receptacle or an object without a type")
        if any(inner == outer for inner, outer in self.of["inreceptacleobject"]):
            raise NotCompilable("an object inside itself")
        if not all(_PLAIN_ID.fullmatch(id_) for id_ in (*receptacles, *objects)):
            raise NotCompilable("an id of another form")


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Key -> its sorted, different values."""
    groups: dict[int, set[int]] = {}
    for key, value in pairs:
        groups.setdefault(key, set()).add(value)
    return {key: tuple(sorted(values)) for key, values in sorted(groups.items())}
