"""The report: says what the run's files say, in the same bytes each time, whatever a model wrote into them."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ratchet.errors import RatchetError
from ratchet.files import read_json, write_json
from ratchet.page import charts, words
from ratchet.page.environment import breakable, reply_parts, text_parts
from ratchet.page.gather import MAX_TEXT, choose, gather
from ratchet.page.report import render
from ratchet.page.verdict import verdict
from tests.page import browser
from tests.page.fabricate import fabricate, instruments, round_trip

VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}
HOSTILE = (
    "<script>alert(1)</script></script></style><img src=x onerror=alert(2)><svg onload=alert(3)>"
    "\x1b[31mred\x1b[0m\x07\x00\r\x7f\x9b \u202egnp.exe\u202c \u200b\ufeff {{ 7*7 }} {% raw %} &lt;b&gt; http://evil.example/x.js ]]> <!-- -->\n\n"
    + "A" * 1_000_000
)


class Page(HTMLParser):
    """The page's elements, its text by section, and whether its tags are balanced."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: dict[str, str] = {}
        self.section = ""
        self.unbalanced: list[str] = []
        self.feed(html)
        self.close()
        self.unbalanced += self.stack

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs).get("id", "")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.unbalanced.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("script", "style"):
            self.text[self.section] = self.text.get(self.section, "") + data


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fabricate(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def report(workspace: Path) -> dict:
    return gather(workspace)


@pytest.fixture(scope="module")
def html(report: dict) -> str:
    return render(report)


def test_the_page_is_balanced_html_with_a_title_and_all_sections(html: str) -> None:
    page = Page(html)
    assert page.unbalanced == []
    assert html.startswith("<!doctype html>") and "<title>Round 2 was promoted" in html
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section"] == [
        "verdict", "rounds", "types", "learned", "versions", "data", "decisions", "episodes", "provenance",
    ]  # fmt: skip
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_report_and_page_are_the_same_bytes_each_time_and_after_a_way_through_json(workspace: Path, report: dict, html: str) -> None:
    again = gather(workspace)
    assert again == report == round_trip(report)
    assert render(round_trip(again)) == html


def test_rendering_leaves_the_report_as_it_was(report: dict) -> None:
    before = copy.deepcopy(report)
    render(report)
    assert report == before


def test_the_report_names_no_absolute_path_of_the_machine(workspace: Path, tmp_path: Path, html: str) -> None:
    assert str(workspace) not in html
    fabricate(tmp_path)
    file = tmp_path / "data/rounds/2/evaluation/evaluation.json"
    write_json(file, read_json(file) | {"model": str(tmp_path / "models/rounds/2/version")})
    assert str(tmp_path) not in str(gather(tmp_path)["versions"])


def test_nothing_is_loaded_from_anywhere(html: str) -> None:
    page = Page(html)
    loaded = [(tag, key, value) for tag, attrs in page.tags for key, value in attrs.items() if key in ("src", "href", "action", "srcset", "data", "xlink:href")]
    assert loaded and all(value.startswith("#") for _, _, value in loaded)
    assert not {"link", "iframe", "object", "embed", "base", "img"} & {tag for tag, _ in page.tags}
    css = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in css and "@import" not in css
    assert "http://" not in html and "https://" not in html
    assert "default-src 'none'" in html


def test_the_numbers_of_the_headline_are_those_of_the_final_comparison(report: dict, html: str) -> None:
    final, text = report["final"], Page(html).text["verdict"]
    gain = final["comparison"]["gain"]
    for share in (final["warm"]["success"], final["champion"]["success"]):
        assert f"{share['mean'] * 100:.1f}\u202f%" in text
        assert f"{share['low'] * 100:.1f} to {share['high'] * 100:.1f}" in text
    assert f"+{gain['mean'] * 100:.1f}" in text and f"+{gain['low'] * 100:.1f} to +{gain['high'] * 100:.1f}" in text
    assert f"{final['champion']['n']} unseen games" in text
    assert f"{len(final['comparison']['flips']['gained'])} gained" in text and f"{len(final['comparison']['flips']['lost'])} lost" in text
    assert "generated, not a benchmark score" in text


def test_every_summary_task_type_check_and_flip_is_on_the_page(report: dict, html: str) -> None:
    text = Page(html).text
    for one in report["rounds"]:
        confirm = one["evaluation"]["confirm"]
        row = f"{confirm['success']['mean'] * 100:.1f}\u202f% {confirm['success']['low'] * 100:.1f} to {confirm['success']['high'] * 100:.1f}"
        assert row in text["versions"] and one["evaluation"]["version"] in text["provenance"]
        for reason in one["decision"]["reasons"]:
            assert reason in text["decisions"]
        for check in (one["check"] or {"checks": []})["checks"]:
            assert check["name"] in text["data"] and check["detail"] in text["data"]
    for kind, own in report["final"]["champion"]["by_stratum"].items():
        gain = report["final"]["comparison"]["by_stratum"][kind]["gain"]
        assert words.stratum(kind) in text["types"]
        assert f"{own['success']['low'] * 100:.1f} to {own['success']['high'] * 100:.1f}" in text["types"]
        assert words.between_signed(gain) in text["types"]
    for task_id in report["final"]["comparison"]["flips"]["gained"]:
        assert task_id in text["types"]


def test_both_rounds_show_their_checks_once(report: dict, html: str) -> None:
    assert Page(html).text["data"].count("replay_mismatch") == 2
    changed = copy.deepcopy(report)
    changed["rounds"][2]["decision"]["checks"]["checks"][0]["detail"] = "seen on the evaluation's rows"
    assert "seen on the evaluation's rows" in Page(render(changed)).text["data"]


def test_what_taught_nothing_and_what_was_skipped_is_counted_by_round(report: dict, html: str) -> None:
    curves = {one["round"]: one["online"]["curve"] for one in report["rounds"] if (one["online"] or {}).get("curve")}
    assert curves
    changed = copy.deepcopy(report)
    next(one for one in changed["rounds"] if one["round"] == 1)["online"]["curve"][0] |= {"skipped_steps": 3, "logprob_max_diff": 0.0042}
    for k, curve in curves.items():
        alike, groups = (sum(point[name] for point in curve) for name in ("zero_variance_groups", "groups"))
        assert f'<th scope="row">{k}</th><td>{alike} of {groups} (' in html
    assert "</td><td>3</td><td>4.2e-03</td>" in render(changed) and "</td><td>3</td><td>4.2e-03</td>" not in html


def test_the_forecast_loss_is_shown_by_round_where_there_is_one(report: dict, html: str) -> None:
    assert "Forecast loss" not in html
    changed = copy.deepcopy(report)
    for one in changed["rounds"]:
        for point in (one["online"] or {}).get("curve") or []:
            point["forecast_nll"] = 1.23 + one["round"]
    shown = render(changed)
    assert "Forecast loss" in shown and "round 1 from 2.23 to 2.23" in shown.lower()


def test_meter_critic_buffer_offline_update_and_drift_are_shown_where_they_are(tmp_path: Path, report: dict, html: str) -> None:
    assert 'id="instruments"' not in html and "Meter and critic" not in html
    root = fabricate(tmp_path)
    instruments(root, 2)
    write_json(root / "data/rounds/1/meter/skipped.json", {"skipped": "fit_meter is off"})
    online = root / "reports/metrics/evolve_online-2.json"
    metrics = read_json(online)
    for point in metrics["curve"]:
        point |= {"credit_weight_max": 4.25, "credit_capped_share": 0.031, "resampled_groups": 2, "silent_share": 0.125}
    write_json(online, metrics)
    shown = render(round_trip(gather(root)))
    text = Page(shown).text
    said = text["instruments"]
    assert Page(shown).unbalanced == [] and "Calibration of the meter" in said and "TD error of the critic" in said
    assert "gate shut" in said and "calibration error 0.171 (limit 0.150)" in said and "0.171" in said and "Meter of round 1: skipped: fit_meter is off" in said
    assert "Rank correlation with the outcome 0.75" in said and "410 episodes" in said and "200 expert, 312 own" in said and "bppo" in said
    assert "4.25" in said and "3.1\u202f%" in said and "effective share 0.91, KL 0.0123" in said
    assert "action_type" in text["data"] and "Drift: warn" in text["data"]
    row = shown[shown.index('<tr><th scope="row">2</th><td>') :]
    assert "<td>20</td><td>12.5\u202f%</td>" in row


def test_the_action_is_highlighted_as_a_literal_part_of_the_reply(report: dict, html: str) -> None:
    marked = re.findall(r'<mark><span class="text">(.*?)</span>', html)
    actions = [step["action"] for episode in report["episodes"] for step in episode["steps"] if step["action"]]
    assert marked == actions
    parts = reply_parts("thought > go\n> go to desk 1\n> go", "go")
    assert parts["before"] + "\n" + parts["mark"] + parts["action"] + parts["after"] == "thought > go\n> go to desk 1\n> go"
    assert reply_parts("nothing of the kind", "go")["found"] is False


def test_hostile_text_is_shown_and_does_nothing(tmp_path: Path) -> None:
    report = gather(fabricate(tmp_path, hostile=HOSTILE))
    html = render(report)
    page = Page(html)
    assert page.unbalanced == []
    assert [tag for tag, _ in page.tags].count("script") == 1 and "img" not in [tag for tag, _ in page.tags]
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    assert "&lt;script&gt;alert(1)" in html and "\u241b[31mred" in html and "\u27e8U+202E\u27e9" in html and "{{ 7*7 }}" in html
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\ufeff]", html)
    assert len(html) < 2_000_000
    assert max(len(step["observation"]) for one in report["episodes"] for step in one["steps"]) < MAX_TEXT + 100


def test_hostile_text_in_any_string_of_the_report_is_escaped(report: dict) -> None:
    def poison(value: object) -> object:
        if isinstance(value, dict):
            return {key: poison(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poison(item) for item in value]
        return value + "</script><b onclick=x>\x1b\ud800" if isinstance(value, str) else value

    html = render(poison(copy.deepcopy(report)))  # type: ignore[arg-type]
    page = Page(html)
    assert page.unbalanced == [] and html.encode("utf-8")
    assert not [tag for tag, _ in page.tags if tag == "b"] and "\x1b" not in html
    assert [tag for tag, _ in page.tags].count("script") == 1


def test_lone_surrogates_and_nan_in_a_metrics_file_do_not_reach_the_report(tmp_path: Path) -> None:
    fabricate(tmp_path)
    file = tmp_path / "data/rounds/1/decision/decision.json"
    file.write_text(file.read_text().replace('"line": "quickstart"', '"line": "\\ud800", "odd": NaN'))
    report = gather(tmp_path)
    assert report["rounds"][1]["decision"]["line"] == "\ufffd" and report["rounds"][1]["decision"]["odd"] is None
    write_json(tmp_path / "report.json", report)
    assert render(report).encode("utf-8")


def test_a_stopped_run_says_where_and_why(tmp_path: Path) -> None:
    report = gather(fabricate(tmp_path, stop_at=1))
    text = Page(render(report)).text
    assert "The run was stopped in round 1: check replay_mismatch failed" in text["verdict"]
    assert "Nothing was promoted" in text["verdict"] and "Later rounds did not run." in text["verdict"]
    assert "Skipped: round 1 stopped the run." in text["decisions"] and "3 of 52 replayed" in text["data"]
    assert [(one["round"], one["check"], one["waived"]) for one in report["failed_checks"]] == [(1, "replay_mismatch", None)]


def test_a_waived_check_is_shown_with_its_reason(tmp_path: Path) -> None:
    report = gather(fabricate(tmp_path, stop_at=1, waived=True))
    text = Page(render(report)).text["data"]
    assert "fail, waived" in text and "Waived: known: three games" in text
    assert report["failed_checks"][0]["waived"].startswith("known")


def test_nothing_promoted_claims_no_gain(tmp_path: Path) -> None:
    report = gather(fabricate(tmp_path, promoted=()))
    text = Page(render(report)).text["verdict"]
    assert "Nothing was promoted: the warm start stays at" in text and "2 candidates were compared" in text
    assert "Paired gain" not in text and "→" not in text


def test_a_promotion_that_the_test_panel_does_not_bear_out_says_so(report: dict) -> None:
    changed = copy.deepcopy(report)
    changed["final"]["comparison"]["gain"] = {"mean": 0.012, "low": -0.01, "high": 0.034}
    assert "does not establish a gain" in " ".join(verdict(changed)["sentences"])
    changed["final"]["comparison"]["gain"] = {"mean": -0.03, "low": -0.05, "high": -0.01}
    assert "is worse" in " ".join(verdict(changed)["sentences"])
    changed["final"]["champion"]["panel_hash"] = "other"
    assert "different panels" in " ".join(verdict(changed)["notes"])


def test_a_run_without_its_final_comparison_shows_what_there_is(tmp_path: Path) -> None:
    report = gather(fabricate(tmp_path, final=False))
    text = Page(render(report)).text
    assert "no final comparison yet" in text["verdict"] and "Champion so far: round 2" in text["verdict"]
    assert report["episodes_from"] == "confirm" and "on the confirm panel" in text["episodes"]


def test_an_empty_workspace_gives_a_page(tmp_path: Path) -> None:
    assert "no final comparison yet" in render(gather(fabricate(tmp_path / "a", only="nothing")))
    (tmp_path / "b").mkdir()
    assert "no final comparison yet" in render(gather(tmp_path / "b"))


def test_any_one_file_may_be_missing(tmp_path: Path) -> None:
    root = fabricate(tmp_path)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    assert len(files) > 25
    for path in files:
        data = path.read_bytes()
        path.unlink()
        page = Page(render(gather(root)))
        assert page.unbalanced == [], path
        path.write_bytes(data)


def test_a_damaged_file_is_named_and_not_passed_over(tmp_path: Path) -> None:
    root = fabricate(tmp_path)
    (root / "data/final/final.json").write_text("{")
    with pytest.raises(RatchetError, match="final.json"):
        gather(root)


def test_episodes_are_solved_and_failed_in_turn_over_different_task_types(report: dict) -> None:
    chosen = report["episodes"]
    assert [one["solved"] for one in chosen] == [True, False] * 3
    assert len({one["stratum"] for one in chosen}) == 6
    rows = [{"episode_id": str(i), "solved": True, "stratum": "a"} for i in range(9)]
    assert choose(rows, 4) == choose(rows[::-1], 4) and len(choose(rows, 4)) == 4
    assert choose(rows, 99).__len__() == 9 and choose([], 3) == []


def test_numbers_are_honest_about_sign_and_nothing() -> None:
    assert words.signed(0.0724) == "+7.2" and words.signed(-0.0724) == "\u22127.2" and words.signed(-0.0001) == "0.0"
    assert words.percent(None) == "–" and words.percent(0.5507) == "55.1\u202f%" and words.level(0.9875) == "98.75\u202f%"
    assert words.number(16000) == "16,000" and words.number(1234.5) == "1,234.5" and words.short(3_000_000) == "3\u202fM"


def test_long_texts_are_folded_and_what_is_left_out_is_counted() -> None:
    parts = text_parts("x" * 1_000_000)
    assert len(parts["head"]) + len(parts["rest"]) + parts["left"] == 1_000_000 and parts["left"] > 0
    assert text_parts("a\nb") == {"head": "a\nb", "rest": "", "left": 0}


def test_unbroken_runs_can_be_broken_without_changing_their_text() -> None:
    assert breakable("go to desk 1 <b>") == "go to desk 1 &lt;b&gt;"
    broken = breakable("<" * 1000)
    assert broken.count("<wbr>") == 16 and broken.replace("<wbr>", "") == "&lt;" * 1000


def test_charts_carry_a_title_a_description_and_every_value() -> None:
    mark = charts.Mark("champion", "c-new", 0.5, 0.4, 0.6)
    svg = charts.interval_chart("T<", "D&", ["row"], [charts.Panel("success", words.percent, [[mark]])])
    assert "T&lt;" in svg and "D&amp;" in svg and "interval 40.0\u202f% to 60.0\u202f%" in svg
    assert charts.line_chart("t", "d", [], str, str, x_label="x") == ""
    flat = charts.line_chart("t", "d", [charts.Line("a", "c-new", [[(1.0, 0.5)]])], str, str, x_label="x")
    assert "nan" not in flat and "inf" not in flat


def test_ticks_are_round_and_cover_the_values() -> None:
    for low, high in ((0.0, 1.0), (0.553, 0.562), (-3.2, 17.0), (5.0, 5.0), (0.0, 0.0), (1e-6, 3e-6)):
        found = charts.ticks(low, high, 4)
        assert found[0] <= low + 1e-12 and found[-1] >= high - 1e-12 and 2 <= len(found) <= 8


@pytest.mark.skipif(browser.chromium() is None, reason="no chromium executable on PATH; install chromium to look at the page in a browser")
def test_in_a_browser_no_width_overflows_and_the_console_stays_quiet(tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="the browser test talks to chromium through websockets (a dependency of Prefect)")
    cases = {"good": {}, "stopped": {"stop_at": 1}, "hostile": {"hostile": HOSTILE}}
    with browser.tab(tmp_path / "profile") as tab:
        for name, settings in cases.items():
            file = tmp_path / f"{name}.html"
            file.write_text(render(gather(fabricate(tmp_path / name, **settings))), encoding="utf-8")
            for width in (1280, 390):
                tab.open(file, width)
                tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
                assert tab.evaluate("document.documentElement.scrollWidth") == width, (name, width)
            tab.evaluate("document.querySelector('button').click()")
            assert tab.evaluate("document.querySelectorAll('details.episode[open]').length") == 6
        assert tab.errors == []
