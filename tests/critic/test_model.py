"""The critic on tiny models: where it reads, what moves, and that a fit that was killed ends with the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.critic.data import Judged, batch_of, reading_points
from ratchet.critic.learner import CriticLearner, FitSettings, behind, fit
from ratchet.critic.lora import add_low_rank, merge
from ratchet.critic.model import Critic, load_critic, save_critic
from ratchet.errors import RatchetError
from ratchet.learners.batches import REPLY, Sequence
from ratchet.losses.expectile import iql_weights
from ratchet.models.fused import hidden_of
from tests.models import tiny

SETTINGS = FitSettings(
    epochs=3, batch_tokens=120, lr=3e-3, warmup_share=0.0, max_grad_norm=1.0, gamma=0.99, tau=0.7, polyak=0.2, aux=True, seed=0, checkpoint_every=2
)


def episodes(count: int = 10, solved_by: str = "token") -> list[Judged]:
    """Episodes whose outcome can be read off their first token."""
    out = []
    for number, one in enumerate(tiny.sequences(count)):
        steps, solved = len(one.advantages), number % 2 == 0
        one.ids[0] = 7 if solved else 9
        reward = np.zeros(steps, np.float32)
        reward[-1] = float(solved)
        before, last = reading_points(one)
        weight = iql_weights(steps, solved).numpy()
        out.append(Judged(one, before, last, reward, np.full(steps, -0.1, np.float32), weight, True, solved, f"task {number // 2}"))
    return out


def make(twin: bool = True) -> Critic:
    return Critic(tiny.model(), twin=twin, seed=3)


def warmed() -> Critic:
    """Heads that say something."""
    critic = make()
    with torch.no_grad():
        for one in (critic.value_head, *critic.q_heads, *critic.target_heads):
            one[2].weight.normal_(generator=torch.Generator().manual_seed(1))
    return critic


def test_steps_are_read_at_the_last_token_before_and_of_the_action() -> None:
    for one in tiny.sequences(6):
        before, last = reading_points(one)
        for t in range(len(one.advantages)):
            mine = np.flatnonzero(one.step == t)
            wrote = mine[one.role[mine] == REPLY]
            assert last[t] == wrote[-1] and before[t] == wrote[0] - 1


def test_a_new_critic_says_zero_everywhere() -> None:
    found = make()(batch_of(episodes()).read)
    assert not found.value.any() and not found.q.any() and not found.target.any() and found.q.shape[1] == 2


def test_v_does_not_change_when_the_action_does_and_q_does() -> None:
    critic, [one] = warmed(), episodes(1)
    other = Sequence(**{**vars(one.sequence), "ids": one.sequence.ids.copy()})
    last_step = other.step == other.step[-1]
    other.ids[last_step & (other.role == REPLY)] = 11
    first, second = (critic(batch_of([replace(one, sequence=s)]).read) for s in (one.sequence, other))
    assert torch.equal(first.value, second.value)
    assert torch.equal(first.q[:-1], second.q[:-1]) and not torch.allclose(first.q[-1], second.q[-1])


def test_packing_changes_no_reading() -> None:
    critic, all_of = warmed(), episodes(6)
    together = critic(batch_of(all_of).read)
    alone = [critic(batch_of([one]).read) for one in all_of]
    for name in ("value", "q", "target"):
        torch.testing.assert_close(getattr(together, name), torch.cat([getattr(one, name) for one in alone]), rtol=1e-4, atol=1e-5)


def test_the_gradient_does_not_depend_on_how_the_batch_is_cut() -> None:
    kept = []
    for budget in (10**6, 1):
        learner = CriticLearner(warmed(), replace(SETTINGS, batch_tokens=budget))
        learner._step = lambda lr: False  # type: ignore[method-assign]
        learner.update(episodes(), 0.0)
        kept.append({name: p.grad.clone() for name, p in learner.critic.named_parameters() if p.grad is not None})
    assert kept[0].keys() == kept[1].keys() and not any(name.startswith("target") for name in kept[0])
    for name, value in kept[0].items():
        torch.testing.assert_close(value, kept[1][name], rtol=1e-3, atol=1e-5, msg=name)


def test_target_heads_follow_slowly_and_learn_nothing_by_themselves() -> None:
    critic = make()
    with torch.no_grad():
        critic.q_heads[0][2].bias.fill_(1.0)
    critic.follow(0.25)
    assert critic.target_heads[0][2].bias.item() == pytest.approx(0.25)
    assert not any(p.requires_grad for p in critic.target_heads.parameters())


def test_what_follows_a_truncated_end_is_what_was_expected_before_and_nothing_follows_a_terminated_one() -> None:
    learner, [one] = CriticLearner(warmed(), SETTINGS), episodes(1)
    ended, cut = (learner.judge([replace(one, terminated=end)])[one.episode_id] for end in (True, False))
    assert ended.value[-1] == 0 and cut.value[-1] == cut.value[-2] != 0
    assert cut.advantage[-1] == pytest.approx(one.reward[-1] - 0.01 * cut.value[-2], rel=1e-3)
    worse = learner.judge([replace(one, terminated=False, aux=one.aux - 5)])[one.episode_id]
    assert np.array_equal(worse.advantage, cut.advantage), "the retrospective reward takes no part in it"
    read = batch_of([replace(one, terminated=False)])
    target = learner.critic(read.read).target
    end = behind(target, read.reward + read.aux, read.terminated, 0.99)
    torch.testing.assert_close(read.reward + read.aux + 0.99 * end, target)  # in the fit such an end teaches Q nothing


def test_a_fitted_critic_tells_successes_from_failures_that_it_has_not_seen(tmp_path: Path) -> None:
    all_of = episodes(24)
    _, result = fit(make(), all_of[:18], all_of[18:], replace(SETTINGS, epochs=8), scratch=tmp_path)
    first, last = result.curve[0], result.curve[-1]
    assert last["td_error"] < first["td_error"] / 2 and last["rank_correlation"] > 0.8
    assert len(result.curve) == 8 and result.skipped_steps == 0


def test_a_fit_that_is_killed_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of = episodes()
    whole, expected = fit(make(), all_of[:8], all_of[8:], SETTINGS, scratch=tmp_path / "a" / "same")
    update, calls = CriticLearner.update, []

    def killed(self: CriticLearner, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return update(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CriticLearner, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(make(), all_of[:8], all_of[8:], SETTINGS, scratch=tmp_path / "b" / "same")
    monkeypatch.setattr(CriticLearner, "update", update)
    again, found = fit(make(), all_of[:8], all_of[8:], SETTINGS, scratch=tmp_path / "b" / "same")
    assert vars(found) == vars(expected)
    assert all(torch.equal(a, b) for a, b in zip(whole.critic.state_dict().values(), again.critic.state_dict().values(), strict=True))


def test_values_that_are_not_finite_are_refused_with_their_rows_named() -> None:
    critic, all_of = warmed(), episodes(2)
    with torch.no_grad():
        critic.value_head[2].bias.fill_(float("nan"))
    with pytest.raises(RatchetError, match=r"not finite at episode-1 t=0, episode-1 t=1, .* and \d+ more; lower fit_critic.lr"):
        CriticLearner(critic, SETTINGS).judge(all_of)


def test_each_switch_of_the_loss_changes_what_is_learned(tmp_path: Path) -> None:
    plain = episodes()
    for one in plain:
        one.weight = iql_weights(len(one.reward), one.solved, time=False, outcome=False).numpy()
    arms = [(SETTINGS, episodes()), (replace(SETTINGS, tau=0.5), episodes()), (replace(SETTINGS, aux=False), episodes()),
            (replace(SETTINGS, polyak=1.0), episodes()), (SETTINGS, plain)]  # fmt: skip
    seen = set()
    for number, (settings, all_of) in enumerate(arms):
        learner, _ = fit(make(), all_of, [], replace(settings, epochs=1), scratch=tmp_path / str(number))
        seen.add(float(learner.critic.value_head[2].weight.detach().abs().sum()))
    assert len(seen) == len(arms)


def test_low_rank_updates_leave_the_backbone_as_it_is_until_they_are_merged() -> None:
    model, plain = tiny.model(), tiny.model()
    count = add_low_rank(model, rank=2, alpha=4.0, seed=0)
    critic = Critic(model, twin=False, seed=0)
    learned = [name for name, p in critic.named_parameters() if p.requires_grad]
    assert count > 0 and all(name.endswith((".a", ".b")) for name in learned if name.startswith("backbone"))
    read = batch_of(episodes()).read
    found, expected = (hidden_of(one.backbone, read.ids, read.positions, read.layout) for one in (critic, Critic(plain, twin=False, seed=0)))
    torch.testing.assert_close(found, expected)
    learner = CriticLearner(critic, SETTINGS)
    for _ in range(3):
        learner.update(episodes(), 1e-2)
    moved = critic(read)
    merge(critic.backbone)
    torch.testing.assert_close(critic(read).q, moved.q, rtol=1e-4, atol=1e-5)
    assert {name for name, _ in critic.backbone.named_parameters()} == {name for name, _ in plain.named_parameters()}


def test_a_saved_critic_says_the_same_and_its_version_is_that_of_all_its_weights(tmp_path: Path) -> None:
    critic, read = warmed(), batch_of(episodes()).read
    first = save_critic(critic, tiny.tokenizer_folder(), tmp_path / "a", {"stage": "fit_critic", "parents": []})
    again = load_critic(tmp_path / "a")
    torch.testing.assert_close(again(read).q, critic(read).q)
    assert again.twin
    with torch.no_grad():
        critic.value_head[2].bias.add_(1)
    assert save_critic(critic, tiny.tokenizer_folder(), tmp_path / "b", {"stage": "fit_critic", "parents": []}) != first
    (tmp_path / "a" / "heads.safetensors").unlink()
    with pytest.raises(RatchetError, match="so this is no critic"):
        load_critic(tmp_path / "a")
