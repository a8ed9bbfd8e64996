from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ratchet.errors import RatchetError
from ratchet.store.cards import add_version, append_check, append_decision, append_evaluation, read_card, read_cards, weights_of
from ratchet.store.champions import champions, find, set_champion
from tests.store.fabricate import model, version_of

CARD = {
    "parents": [],
    "stage": "evolve_online",
    "round": 1,
    "iteration": 5,
    "actor": "actor",
    "line": "quickstart",
    "tokenizer_id": "t",
    "hashes": {},
}


def add(root: Path, name: str, run: str = "run-1", line: str = "quickstart") -> str:
    version = version_of(name)
    model(root / "runs" / run / "models" / name, name, 1, line=line)
    place = {"run": run, "weights": f"runs/{run}/models/{name}", "line": line, "round": 1}
    add_version(root / "registry", CARD | {"version": version, "line": line}, place)
    return version


def entry(i: int) -> dict:
    return {"run": "run-1", "round": i, "panel": "confirm", "panel_hash": "h", "summary": {}, "outcomes": ""}


def test_the_same_event_twice_is_one_entry_and_lists_only_grow(tmp_path: Path) -> None:
    registry, version = tmp_path / "registry", add(tmp_path, "one")
    for append in (append_evaluation, append_check, append_decision):
        assert append(registry, version, entry(1)) is True
        before = (registry / f"{version}.json").read_bytes()
        assert append(registry, version, entry(1)) is False
        assert (registry / f"{version}.json").read_bytes() == before
        first = read_card(registry, version)
        assert append(registry, version, entry(2)) is True
    second = read_card(registry, version)
    assert second["decisions"][:1] == first["decisions"] and [len(second[name]) for name in ("evaluations", "checks", "decisions")] == [
        2,
        2,
        2,
    ]


def test_a_version_that_two_runs_made_is_one_card_with_two_runs(tmp_path: Path) -> None:
    version = add(tmp_path, "one")
    assert add(tmp_path, "one", "run-2") == version
    card = read_card(tmp_path / "registry", version)
    assert [run["run"] for run in card["runs"]] == ["run-1", "run-2"] and card["created_by"] == "run-1"
    (tmp_path / "runs/run-1/models/one/ratchet.json").unlink()
    assert weights_of(tmp_path, card) == tmp_path / "runs/run-2/models/one"


def test_weights_that_became_another_version_are_not_this_ones(tmp_path: Path) -> None:
    version = add(tmp_path, "one")
    model(tmp_path / "runs/run-1/models/one", "two", 1)
    assert weights_of(tmp_path, read_card(tmp_path / "registry", version)) is None
    with pytest.raises(RatchetError, match="dvc checkout"):
        set_champion(tmp_path, "quickstart", version)


@pytest.mark.parametrize("damage", ['{"version": "', "[]", '{"version": "other"}', "\x00"])
def test_a_damaged_card_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    version = add(tmp_path, "one")
    path = tmp_path / "registry" / f"{version}.json"
    path.write_text(damage)
    for call in (lambda: read_cards(tmp_path / "registry"), lambda: append_check(tmp_path / "registry", version, entry(1))):
        with pytest.raises(RatchetError, match="damaged version card") as error:
            call()
        assert "\n" not in str(error.value) and str(path) in str(error.value) and "git checkout" in str(error.value)
    assert path.read_text() == damage


def test_a_card_of_a_newer_ratchet_is_refused(tmp_path: Path) -> None:
    version = add(tmp_path, "one")
    path = tmp_path / "registry" / f"{version}.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(RatchetError, match="card schema 9.*upgrade"):
        read_card(tmp_path / "registry", version)


def _write_many(root: Path, version: str, start: int, ready: Barrier) -> None:
    ready.wait(60)
    for i in range(start, start + 15):
        append_evaluation(root / "registry", version, entry(i))


def test_two_processes_that_write_one_card_both_land(tmp_path: Path) -> None:
    version = add(tmp_path, "one")
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(2)
    writers = [context.Process(target=_write_many, args=(tmp_path, version, start, ready)) for start in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    rounds = sorted(one["round"] for one in read_card(tmp_path / "registry", version)["evaluations"])
    assert rounds == [*range(15), *range(100, 115)]


def test_the_champion_is_a_relative_link_and_one_a_line(tmp_path: Path) -> None:
    one, two = add(tmp_path, "one"), add(tmp_path, "two", line="big")
    set_champion(tmp_path, "quickstart", one)
    set_champion(tmp_path, "big", two)
    link = tmp_path / "models" / "champion"
    assert link.readlink() == Path("../runs/run-1/models/two") and (link / "ratchet.json").is_file()
    assert champions(tmp_path / "registry") == {"quickstart": one, "big": two}
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert (moved / "models" / "champion" / "ratchet.json").is_file()


def test_a_folder_in_the_links_place_is_not_replaced(tmp_path: Path) -> None:
    version = add(tmp_path, "one")
    (tmp_path / "models" / "champion").mkdir(parents=True)
    with pytest.raises(RatchetError, match="is no link"):
        set_champion(tmp_path, "quickstart", version)


def test_versions_are_found_by_what_a_person_types(tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    with pytest.raises(RatchetError, match="registry is empty"):
        find(registry, "abc")
    with pytest.raises(RatchetError, match="no line has a champion"):
        find(registry, "champion")
    one, two = add(tmp_path, "one"), add(tmp_path, "two", line="big")
    assert find(registry, one[:5])["version"] == one
    set_champion(tmp_path, "quickstart", one)
    assert find(registry, "champion")["version"] == one
    set_champion(tmp_path, "big", two)
    assert find(registry, "champion")["version"] == two  # the one promoted last
    assert find(registry, "champion:quickstart")["version"] == find(registry, "champion", line="quickstart")["version"] == one
    with pytest.raises(RatchetError, match="did you mean 'quickstart'"):
        find(registry, "champion:quikstart")
    with pytest.raises(RatchetError, match=f"did you mean '{one}'"):
        find(registry, one[:-1] + "x")
    with pytest.raises(RatchetError, match="did you mean 'champion'"):
        find(registry, "champoin")
    with pytest.raises(RatchetError, match="no version ''"):
        find(registry, "")


def test_a_beginning_of_two_versions_is_refused(tmp_path: Path) -> None:
    for version in ("abc111", "abc222"):
        add_version(tmp_path / "registry", CARD | {"version": version}, {"run": "r", "weights": "w", "line": "l", "round": 1})
    with pytest.raises(RatchetError, match="beginning of 2 versions.*type more"):
        find(tmp_path / "registry", "abc")
