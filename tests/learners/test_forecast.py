"""CoPE's targets: literal spans of the policy's own replies, asked for at its own points, with weights that nothing cancels."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from ratchet.episodes.files import table_of
from ratchet.episodes.formats import FORMATS, format_reply
from ratchet.episodes.spans import action_ids
from ratchet.episodes.template import Template, load_template
from ratchet.learners.batches import FORECAST, PROMPT, Sequence, micro_batch, sequences_of
from ratchet.learners.forecast import Forecaster
from tests.episodes import chat_templates as chat
from tests.models import tiny

FOLDERS = {
    "ours": tiny.tokenizer_folder, "markers": tiny.foreign_folder, "chatml": lambda: tiny.chat_folder(chat.QWEN3),
    "llama3": lambda: tiny.chat_folder(chat.LLAMA3, chat.LLAMA3_TOKENS), "gemma": lambda: tiny.chat_folder(chat.GEMMA, chat.GEMMA_TOKENS),
}  # fmt: skip
TURNS = [("You see a cabinet 3.", "think of it", "go to cabinet 3"), ("A drawer 1.", "", "up"), ("Nothing.", "so wait", "wait"), ("Hm, é", "", "ça 🎈 3")]


def rows(template: Template, name: str, turns: Any = TURNS, **columns: Any) -> list[dict[str, Any]]:
    """Steps of an episode of (observation, thought, action); a reply may be given whole in place of the two."""
    out = []
    for t, (observation, *said) in enumerate(turns):
        reply = said[0] if len(said) == 1 else format_reply(*said, template.format.name)
        ids = template.replies_ids([reply])[0]
        more = {key: values[t] for key, values in columns.items()}
        out.append({"episode_id": name, "t": t, "prompt_ids": template.observation_ids(observation, t == 0), "reply_ids": ids, "reply": reply,
                    "logprobs": [-1.0] * len(ids), "valid": True, "action_type": said[-1].split(" ")[0], **more})
    return out


def forecaster(template: Template | None = None, **changes: Any) -> Forecaster:
    return Forecaster(template or tiny.template(), **{"horizon": 2, "gate": "wins", "samples": 4, "seed": 1, "context": 10**6, **changes})


def attached(outcomes: dict[str, list[bool]], *, template: Template | None = None, turns: Any = TURNS, more: Any = None,
             **changes: Any) -> tuple[dict[str, Sequence], dict[str, float]]:
    """Groups with the outcomes of their episodes (`a0`, `a1`, … of group `a`), each with the same turns, or with those of `turns(name)`."""
    one = template or tiny.template()
    names = [(f"{group}{n}", group, solved) for group, members in outcomes.items() for n, solved in enumerate(members)]
    steps = table_of("steps", [row for name, _, _ in names for row in rows(one, name, turns(name) if callable(turns) else turns)])
    sequences = sequences_of(steps)
    for sequence, (_, _, solved) in zip(sequences, names, strict=True):
        sequence.solved = solved
    metrics = forecaster(one, **changes).attach(sequences, [group for _, group, _ in names], steps, **(more or {}))
    return {sequence.episode_id: sequence for sequence in sequences}, metrics


def text(template: Template, ids: Any) -> str:
    return template.tokenizer._tokenizer.decode([int(one) for one in ids], skip_special_tokens=False)


def said_of(one: Sequence) -> list[str]:
    """The texts of the loss tokens of each branch; whether a blank belongs to an action's first token is the tokenizer's choice."""
    return [text(tiny.template(), branch.ids[branch.role == FORECAST]).strip() for branch in one.branches]


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize("name", list(FOLDERS))
def test_loss_is_on_the_actions_as_they_were_written_and_on_the_end_and_on_nothing_else(name: str, form: str) -> None:
    template = load_template(FOLDERS[name](), form)
    found, metrics = attached({"g": [True]}, template=template)
    [one] = found.values()
    end, taken = text(template, [template.end]), [turn[2] for turn in TURNS]
    assert len(one.branches) == len(TURNS) == metrics["forecast_targets"] and metrics["forecast_skipped"] == 0
    for t, branch in enumerate(one.branches):
        expected = taken[t : t + 3]
        # the history ends with the observation of step t; PLAN says how many actions are wanted, and nothing of any reply
        history = one.ids[: branch.at + 1]
        assert text(template, history).rstrip().removesuffix("[reply]").rstrip().endswith(TURNS[t][0])
        assert (one.step[: branch.at + 1] <= t).all() and not ((one.step == t) & (one.role == 1))[: branch.at + 1].any()
        first = int(np.flatnonzero(branch.role == FORECAST)[0])
        plan = text(template, branch.ids[:first])
        assert (str(len(expected)) if len(expected) > 1 else "the next action" if name != "ours" else "1") in plan
        assert not any(action in plan for action in expected)
        # loss tokens: runs of the replies' own tokens, one an action, then the end
        runs = np.split(np.arange(first, len(branch.ids)), np.flatnonzero(np.diff(branch.role[first:])) + 1)
        targets = [branch.ids[run] for run in runs if branch.role[run[0]] == FORECAST]
        assert [text(template, branch.ids[run]) for run in runs if branch.role[run[0]] == PROMPT] == ["\n"] * (len(expected) - 1)
        assert targets[-1][-1] == template.end and sum((run == template.end).sum() for run in targets) == 1
        targets[-1] = targets[-1][:-1]
        for step, (run, action) in enumerate(zip(targets, expected, strict=True)):
            written = one.ids[(one.step == t + step) & (one.role == 1)].tolist()
            assert any(written[k : k + len(run)] == run.tolist() for k in range(len(written)))  # literal, token in, token out
            said = text(template, run)
            assert action in said and len(said) - len(action) <= 2 and "think" not in said and "so wait" not in said
        assert end in text(template, branch.ids)
        micro = micro_batch([one], frozenset({FORECAST}))
    wanted = [token for branch in one.branches for token, role in zip(branch.ids, branch.role, strict=True) if role == FORECAST]
    assert micro.target.tolist() == wanted
    ids = micro.ids[0].tolist()  # what predicts the first token of a branch is its history; of another, the token before it
    assert all(ids[at] == branch.ids[np.flatnonzero(branch.role == FORECAST)[0] - 1]
               for at, branch in zip(micro.before[np.cumsum([0, *[(b.role == FORECAST).sum() for b in one.branches]])[:-1]], one.branches, strict=True))


def test_positions_go_on_from_the_point_and_the_last_token_is_not_read() -> None:
    found, _ = attached({"g": [True]})
    [one] = found.values()
    micro = micro_batch([one], frozenset({FORECAST}))
    expected = [*range(len(one.ids)), *[b.at + 1 + k for b in one.branches for k in range(len(b.ids) - 1)]]
    assert micro.positions[0].tolist() == expected and micro.ids.shape[1] == one.size


def test_a_boundary_inside_a_token_takes_the_token_and_one_inside_a_character_all_its_tokens() -> None:
    template = load_template(tiny.foreign_folder(), "tool")
    vocabulary = template.tokenizer._tokenizer
    reply = format_reply("why", "ça 🎈", "tool")
    ids = template.replies_ids([reply])[0]
    assert text(template, action_ids(template, ids) or ()) == "ça 🎈"
    assert len(vocabulary.encode("🎈").ids) > 1  # bytes of one character
    ours = load_template(tiny.tokenizer_folder(), "plain")
    assert text(ours, action_ids(ours, ours.replies_ids(["> go to cabinet 3"])[0]) or ()) == " go to cabinet 3"  # the blank is the token's


@pytest.mark.parametrize(("form", "reply"), [("plain", "no mark"), ("plain", "> up\nafter"), ("tagged", "<action>a</action><action>b</action>"), ("tool", "{}")])
def test_a_reply_without_an_action_has_no_tokens_of_one(form: str, reply: str) -> None:
    template = load_template(tiny.foreign_folder(), form)
    assert action_ids(template, template.replies_ids([reply])[0]) is None
    cut = template.replies_ids([format_reply("", "go to cabinet 3", form)])[0][:-1]
    assert action_ids(template, cut) is None and action_ids(template, []) is None


def test_of_several_tool_calls_the_first_is_forecast() -> None:
    template = load_template(tiny.chat_folder(chat.QWEN3), "tool")
    reply = format_reply("a thought", "up", "tool") + format_reply("", "wait", "tool")
    assert text(template, action_ids(template, template.replies_ids([reply])[0]) or ()) == "up"


def test_a_chunk_holds_what_is_left_and_a_step_without_action_adds_nothing() -> None:
    turns = [TURNS[0], ("A drawer 1.", "no action at all"), TURNS[2], ("Nothing.", "nor here")]
    found, metrics = attached({"g": [True]}, turns=turns, horizon=1)
    [one] = found.values()
    assert said_of(one) == ["go to cabinet 3<end>", "wait<end>", "wait<end>"] and metrics["forecast_skipped"] == 1


@pytest.mark.parametrize("horizon", [0, 2])
def test_replace_invalid_asks_for_the_next_valid_actions(horizon: int) -> None:
    turns = [("o", "", action) for action in ("up", "wait", "go to cabinet 3", "up")]
    template = tiny.template()
    steps = table_of("steps", rows(template, "e", turns, valid=[False, True, True, False]))
    expected = {0: ["wait", "wait", "go to cabinet 3"], 2: ["wait go to cabinet 3"] * 2 + ["go to cabinet 3"]}[horizon]
    for replaced in (True, False):
        [one] = sequences_of(steps)
        one.solved = True
        metrics = forecaster(horizon=horizon, replace_invalid=replaced).attach([one], ["g"], steps)
        assert (said_of(one) == [f"{actions}<end>" for actions in expected]) == replaced
        assert metrics["forecast_skipped"] == replaced  # none is left after the last step


def test_only_successes_are_asked_and_each_gate_knows_its_own() -> None:
    outcomes = {"a": [True, False, True], "b": [False, False, False], "c": [True, True, True]}
    for gate, expected in {"wins": "a0 a2 c0 c1 c2", "mixed": "a0 a2", "all": "a0 a1 a2 b0 b1 b2 c0 c1 c2"}.items():
        found, metrics = attached(outcomes, gate=gate)
        assert " ".join(name for name, one in found.items() if one.branches) == expected
        assert metrics["forecast_episodes"] == len(expected.split())
        np.testing.assert_allclose([one.group_share for one in found.values()], 1 / 3)  # every group counts, whatever the gate


def total(one: Sequence) -> float:
    """What the weights of an episode's target tokens sum to."""
    return sum(branch.weight * (branch.role == FORECAST).sum() for branch in one.branches)


def test_weights_are_those_of_the_formula() -> None:
    outcomes = {"a": [True, False, True], "b": [True, False, False]}
    found, _ = attached(outcomes)
    assert [round(total(found[name]), 6) for name in ("a0", "a2", "b0")] == [0.5, 0.5, 1.0]
    for branch in found["a0"].branches:  # a mean over prefixes, then over a target's tokens
        np.testing.assert_allclose(branch.weight, 0.5 / 4 / (branch.role == FORECAST).sum())
    summed, _ = attached(outcomes, target_norm="sum")
    assert {branch.weight for branch in summed["a0"].branches} == {0.5 / 4}
    constant, _ = attached(outcomes, group_norm=False)
    assert [round(total(constant[name]), 6) for name in ("a0", "a2", "b0")] == [0.25, 0.25, 0.25]  # grows with the number of successes


def test_a_length_weight_stands_in_the_numerator_alone() -> None:
    lengths = {"a0": 4, "a1": 2, "a2": 3}
    found, _ = attached({"a": [True, True, False]}, turns=lambda name: TURNS[: lengths[name]], length_power=2.0)
    np.testing.assert_allclose([total(found["a0"]), total(found["a1"])], [0.5 * (2 / 4) ** 2, 0.5])


def test_strata_get_their_share_of_the_tasks_and_the_sum_stays() -> None:
    outcomes = {"a": [True] * 3, "b": [False, False, True], "c": [True] * 3}
    strata = ["easy"] * 3 + ["hard"] * 3 + ["easy"] * 3
    plain, _ = attached(outcomes, target_norm="sum", group_norm=False)
    found, _ = attached(outcomes, target_norm="sum", group_norm=False, more={"strata": strata})
    mass = {name: sum(branch.weight for branch in one.branches) for name, one in found.items()}
    easy, hard = (sum(value for name, value in mass.items() if name[0] in letters) for letters in ("ac", "b"))
    np.testing.assert_allclose(easy, 2 * hard)
    np.testing.assert_allclose(easy + hard, sum(branch.weight for one in plain.values() for branch in one.branches))


def test_earlier_successes_count_as_a_groups_own_and_add_no_group() -> None:
    found, _ = attached({"a": [False, False, True]}, more={"replayed": {"a2": 0.25}})
    assert [one.group_share for one in found.values()] == [0.5, 0.5, 0.0]
    assert not found["a0"].branches and round(total(found["a2"]), 6) == 0.25


def test_each_prefix_is_drawn_equally_often_and_a_draw_stays_the_same() -> None:
    drawn: Counter[tuple[int, ...]] = Counter()
    points = [branch.at for branch in attached({"g": [True]})[0]["g0"].branches]
    for seed in range(600):
        found, _ = attached({"g": [True]}, prefixes=2, seed=seed)
        drawn[tuple(points.index(branch.at) for branch in found["g0"].branches)] += 1
        np.testing.assert_allclose(total(found["g0"]), 1.0)
    assert len(drawn) == 6 and all(60 < count < 145 for count in drawn.values())  # 100 of each pair
    again, more = attached({"f": [True, True], "g": [True]}, prefixes=2, seed=5), attached({"g": [True]}, prefixes=2, seed=5)
    assert [branch.at for branch in again[0]["g0"].branches] == [branch.at for branch in more[0]["g0"].branches]
    assert len(attached({"g": [True]}, prefixes=9)[0]["g0"].branches) == 4


def test_what_would_not_fit_the_context_is_left_out_and_counted_never_cut() -> None:
    whole, _ = attached({"g": [True]})
    sizes = [branch.at + 1 + len(branch.ids) for branch in whole["g0"].branches]
    found, metrics = attached({"g": [True]}, context=sizes[2])
    kept = [index for index, size in enumerate(sizes) if size <= sizes[2]]
    assert [branch.ids.tolist() for branch in found["g0"].branches] == [whole["g0"].branches[index].ids.tolist() for index in kept]
    assert metrics["forecast_skipped"] == 4 - len(kept) > 0


def test_targets_have_the_action_mix_of_the_rollouts() -> None:
    """With all prefixes and K = 0 exactly; a longer horizon asks less often for the first actions."""
    outcomes = {"a": [True] * 4}
    assert attached(outcomes, horizon=0)[1]["forecast_mix_gap"] == 0
    assert 0 < attached(outcomes, horizon=2)[1]["forecast_mix_gap"] < 0.2
    assert attached({"a": [True, False]}, turns=lambda name: TURNS[:1] if name == "a0" else TURNS[1:2], horizon=0)[1]["forecast_mix_gap"] == 0.5


def test_the_mean_over_successes_has_the_expectation_of_methods_4() -> None:
    """E[1/max(1,|S|) Σ_S ℓ] = (1 − (1 − p)^G) · E_{Y=1}[ℓ], by all outcomes of G = 3 episodes on a tree of four leaves."""
    leaves = [(0.4, True, 1), (0.2, True, 3), (0.3, False, 2), (0.1, False, 4)]  # probability, success, number of turns
    loss = [0.7, 1.9, 5.0, 11.0]  # ℓ of each leaf, at every one of its prefixes
    expected_given_success = sum(p * value for (p, won, _), value in zip(leaves, loss, strict=True) if won) / 0.6
    whole = 0.0
    for chosen in product(range(4), repeat=3):
        found, _ = attached({"g": [leaves[one][1] for one in chosen]}, turns=lambda name, chosen=chosen: TURNS[: leaves[chosen[int(name[1:])]][2]])
        value = sum(total(one) * loss[leaf] for one, leaf in zip(found.values(), chosen, strict=True))
        groups = sum(one.group_share for one in found.values())
        whole += np.prod([leaves[one][0] for one in chosen]) * value / groups
    np.testing.assert_allclose(whole, (1 - 0.4**3) * expected_given_success, rtol=1e-9)
