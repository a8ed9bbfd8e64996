"""What the pages tell people to type exists: commands with these options and arguments, settings, presets, targets, modules."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from flows.cli import app
from ratchet.errors import RatchetError
from ratchet.rendering import render_run
from ratchet.settings import parse
from tests.docs.commands import CHECKOUT, commands, of

CLI = get_command(app)
UsageError = typer.BadParameter.__mro__[1]  # of the click that typer brings
SHOWN = of("ratchet")
RUNS = [(page, words) for page, words in SHOWN if words[:1] and words[0] in ("run", "plan") and "--resume" not in words]

PLACEHOLDERS = {"NAME", "evolve_online.credit=mine"}
"""What a reader replaces by a name of their own."""


def named(words: tuple[str, ...], option: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def test_pages_show_commands_in_blocks_and_in_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nexport A=b && ratchet run \\\n  --set x=1   # say\nratchet gc | less\n```\nWith `ratchet watch ID` and `ratchet waive …`.\n")
    assert list(commands(page)) == [["export", "A=b"], ["ratchet", "run", "--set", "x=1"], ["ratchet", "gc"], ["less"], ["ratchet", "watch", "ID"]]
    assert len(SHOWN) > 60 and len(RUNS) > 12


def refused(words: tuple[str, ...]) -> str | None:
    """What the command line has against a command, before it does anything."""
    name, *rest = words
    if name.startswith("--"):
        return None if name in {option for one in CLI.params for option in one.opts} | {"--help"} else "no such option"
    if name not in CLI.commands:
        return None if name == "COMMAND" else "no such command"
    if not rest or rest == ["--help"]:
        return None  # named in a sentence, or it takes nothing
    try:
        CLI.commands[name].make_context(name, rest)
    except UsageError as error:
        return error.format_message()
    return None


def test_commands_take_what_pages_give_them() -> None:
    assert refused(("runs", "--no-such")) and refused(("no-such",)) and refused(("export", "champion", "a", "b"))
    assert [(page, words, reason) for page, words in SHOWN if (reason := refused(words))] == []


def test_settings_of_pages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)  # where the module of an environment is looked for
    for page, words in RUNS:
        preset = (named(words, "--preset") or [None])[0]
        try:
            parse(render_run(CHECKOUT, preset, named(words, "--set")))
        except RatchetError as error:
            assert PLACEHOLDERS & set(words), (page, words, str(error))


def test_presets_of_pages_exist() -> None:
    there = {path.stem for path in (CHECKOUT / "presets").glob("*.yaml")}
    for page, words in SHOWN:
        text = (CHECKOUT / page).read_text(encoding="utf-8")
        for name in [*named(words, "--preset"), *(words[1:] if words[0] == "use" else [])]:
            assert name in there or f"presets/{name}.yaml" in text or name in PLACEHOLDERS, (page, words)


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = [(page, words) for page, words in of("make") if not any("=" in word for word in words)]
    assert len(shown) > 5
    assert [one for one in shown if not set(one[1]) <= targets] == []


def test_modules_that_pages_run_exist() -> None:
    shown = of("python -m")
    assert shown
    assert [one for one in shown if not one[1][0].isupper() and one[1][0] != "tasks.NAME" and find_spec(one[1][0]) is None] == []


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    for page in (CHECKOUT / "README.md", CHECKOUT / "benchmarks" / "README.md"):
        targets = [target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")) if "://" not in target]
        assert targets, page
        assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_index_of_methods_names_functions_that_there_are() -> None:
    rows = (CHECKOUT / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()
    cells = [row.strip("|").split("|")[2] for row in rows if row.startswith("| ") and row.count(" | ") == 3]
    names = {name for cell in cells for name in re.findall(r"`(?:\w+\.)?([A-Za-z_]\w+)`", re.sub(r"\[`\S+`\]", "", cell))}
    assert len(names) > 15
    code = "\n".join(path.read_text(encoding="utf-8") for room in ("ratchet", "tasks") for path in (CHECKOUT / room).rglob("*.py"))
    assert [name for name in sorted(names) if not re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b.* = ", code, re.MULTILINE)] == []

