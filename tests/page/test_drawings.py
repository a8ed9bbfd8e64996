"""Rails of lineage and curves of an episode: what is drawn is what is known."""

from __future__ import annotations

import re
from pathlib import Path

from flows.episodes import lines, spark
from ratchet.page import curves, lineage
from ratchet.page.lineage import rails, width_of
from ratchet.store.episodes import Found


def test_a_line_of_versions_is_one_rail() -> None:
    found = rails([("c", ["b"]), ("b", ["a"]), ("a", [])])
    assert [found[name].lane for name in "cba"] == [0, 0, 0] and width_of(found) == 1
    assert found["c"].edges == [(0, 50, 0, 100)] and found["b"].edges == [(0, 0, 0, 50), (0, 50, 0, 100)] and found["a"].edges == [(0, 0, 0, 50)]


def test_versions_of_one_parent_branch_off_and_meet_at_it() -> None:
    found = rails([("c", ["a"]), ("b", ["a"]), ("a", [])])
    assert [found[name].lane for name in "cba"] == [0, 1, 0]
    assert (0, 0, 0, 100) in found["b"].edges and (1, 50, 0, 100) in found["b"].edges and found["a"].edges == [(0, 0, 0, 50)]


def test_a_version_of_two_parents_leads_to_both_and_an_unknown_parent_to_nothing() -> None:
    found = rails([("d", ["b", "c"]), ("c", ["a"]), ("b", ["a"]), ("a", ["gone"])])
    assert sorted(found["d"].edges) == [(0, 50, 0, 100), (0, 50, 1, 100)] and [found[name].lane for name in "dcba"] == [0, 1, 0, 1]
    assert all(bottom < 100 for _, _, _, bottom in found["a"].edges)


def test_a_card_that_names_itself_or_a_descendant_as_parent_is_drawn_all_the_same() -> None:
    assert rails([("b", ["b", "a"]), ("a", ["b"])])["a"].edges == [(0, 0, 0, 50)]
    card = {"parents": ["a"], "runs": [], "decisions": [], "hashes": None}
    assert [one["version"] for one in lineage.ancestors({"a": card | {"version": "a"}}, "a", {})] == ["a"]


def test_stretches_of_a_curve_meet_between_two_turns() -> None:
    (lane,) = curves.lanes({"cost": [100.0, 40.0, 0.0], "unknown": [1.0]})
    points = [re.findall(r"M([\d.]+) (\d+)L([\d.]+) 50", str(curves.stretch([lane], t))) for t in range(3)]
    assert points[0][0][0] == points[1][0][0] and (points[0][0][1], points[1][0][1]) == ("100", "0")
    assert points[1][1][0] == points[2][0][0] and len(points[0]) == len(points[2]) == 1


def test_a_curve_breaks_where_nothing_is_known_and_one_without_a_number_is_none() -> None:
    (lane,) = curves.lanes({"advantage": [0.1, None, -0.2], "weight": [None, None]})
    assert "series" not in str(curves.stretch([lane], 0)) and "rule" in str(curves.stretch([lane], 1)) and "circle" not in str(curves.dots([lane], 1))
    assert [curves.said(lane, t) for t in range(4)] == ["+0.10", "–", "−0.20", "–"]
    assert curves.lanes({}) == []


def test_a_flat_curve_and_a_single_step_are_drawn_too() -> None:
    for values in ([0.5], [0.5, 0.5], [0.0]):
        shown = curves.lanes({"value": values, "weight": values})
        text = "".join(str(curves.stretch(shown, t)) + str(curves.dots(shown, t)) for t in range(len(values))) + "".join(curves.small_charts(shown))
        assert "nan" not in text and "inf" not in text


def test_an_episode_in_a_terminal_has_its_curves_and_a_number_a_step() -> None:
    one = {"episode_id": "e", "env": "alfworld", "task_id": "t", "stratum": "s", "split": "train", "policy_id": "p", "round": 1, "iteration": 2, "sample": 0,
           "error": None, "solved": True, "truncated": False, "score": 1.0, "n_steps": 2, "n_tokens": 9}  # fmt: skip
    step = {"observation": "o", "reply": "> r", "format_ok": True, "valid": True, "repeated": False, "reward": 0.0}
    steps = [step | {"t": 0}, step | {"t": 1}]
    meter = [{"cost": 412.0, "weight": None}, {"cost": 0.0, "weight": None}]
    critic = [{"value": 0.25, "advantage": -0.5, "weight": 1.5}, None]
    told = list(lines(Found("run", Path("f"), one, steps, {"meter": meter, "critic": critic}, frozenset({"critic"}))))
    assert [line.split()[0] for line in told[5:9]] == ["cost", "value", "advantage", "weight"] and "0 to 412" in told[5]
    gauges = [line for line in told if line.startswith("    cost")]
    assert "cost 412 ━━━━━━━━━━  value 0.250" in gauges[0] and "advantage -0.500" in gauges[0] and "weight 1.50" in gauges[0]
    assert "cost 0 ··········  value – ··········" in gauges[1]
    of_buffer = Found("run", Path("f"), one, steps, {"critic": critic})
    assert "weight" not in of_buffer.curves and of_buffer.curves["fit_weight"] == [1.5, None]
    assert not any("cost" in line for line in lines(Found("run", Path("f"), one, steps)))


def test_a_curve_in_one_line_goes_from_its_lowest_to_its_highest_point() -> None:
    assert spark([0.0, 1.0, None, 0.5]) == "▁█·▅" and spark([2.0, 2.0]) == "▁▁"
    assert len(spark([float(i) for i in range(1000)])) <= 60
