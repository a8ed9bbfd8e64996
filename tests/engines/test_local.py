"""The engine writes what the model says: cached turns equal one pass, whatever else is in the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ratchet.engines.local import READ_AT_ONCE, LocalEngine, sample
from ratchet.learners.actor import ActorLearner
from ratchet.learners.batches import REPLY, Sequence
from ratchet.losses.likelihood import Likelihood
from ratchet.models import attention
from ratchet.models.attention import GROWTH
from ratchet.models.fused import fusable
from ratchet.rollout.noise import episode_key, uniforms
from tests.models import tiny
from tests.models.architectures import make

END, VOCAB = 4, 60


class Played:
    """Drives an engine and keeps what each slot has read and written."""

    def __init__(self, slots: int = 4, length: int = 200, temperature: float = 1.0, model: Any = None, end: int = END) -> None:
        self.engine = LocalEngine(model or tiny.model(), slots=slots, length=length, end=end, pad=0)
        self.temperature = temperature
        self.key: dict[int, np.uint64] = {}
        self.ids: dict[int, list[int]] = {}
        self.written: dict[int, list[tuple[int, float, float]]] = {}  # index in ids, log-prob, entropy

    def begin(self, slot: int, name: str, seed: int = 1) -> None:
        self.engine.clear([slot])
        self.key[slot], self.ids[slot], self.written[slot] = episode_key(seed, name), [], []

    def turn(self, new: dict[int, list[int]], limits: int | dict[int, int] = 12) -> dict[int, list[int]]:
        slots = list(new)
        most = [limits if isinstance(limits, int) else limits[slot] for slot in slots]
        found = self.engine.reply(slots, [new[s] for s in slots], np.array([self.key[s] for s in slots]), most, self.temperature)
        for slot, one in zip(slots, found, strict=True):
            assert len(one.ids) == len(one.logprobs) == len(one.entropy) >= 1
            self.ids[slot] += new[slot]
            for triple in zip(range(len(self.ids[slot]), 10**6), one.logprobs, one.entropy, strict=False):
                self.written[slot].append(triple)
            self.ids[slot] += one.ids
        return {slot: one.ids for slot, one in zip(slots, found, strict=True)}

    def check(self, slot: int) -> None:
        """Log-probs against transformers' own attention over the whole sequence."""
        full = tiny.reference_logprobs(self.engine.model, self.ids[slot], self.temperature or 1.0)
        at, logp, _ = zip(*self.written[slot], strict=True)
        np.testing.assert_allclose(logp, full[np.array(at) - 1].numpy(), atol=1e-4)


def text(rng: np.random.Generator, low: int = 1, high: int = 30) -> list[int]:
    return rng.integers(5, VOCAB, rng.integers(low, high)).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_cached_turns_equal_one_pass_for_rows_of_any_length_and_reused_slots(temperature: float) -> None:
    played, rng = Played(slots=12, temperature=temperature), np.random.default_rng(3)
    for slot in range(12):
        played.begin(slot, f"e{slot}")
    played.turn({slot: text(rng) for slot in range(12)})
    played.turn({slot: text(rng, 1, 9) for slot in (0, 3, 11)})  # fewer than 8 rows
    played.check(3)
    played.begin(3, "another")  # freed and used again while the others go on
    played.turn({3: text(rng, 20, 40), 4: text(rng, 1, 3)})
    played.turn({slot: text(rng, 1, 40) for slot in (11, 3, 5, 0)}, {11: 1, 3: 9, 5: 2, 0: 5})
    played.turn({slot: text(rng, 1, 12) for slot in range(12)}, limits=20)
    for slot in range(12):
        played.check(slot)


def test_decoding_goes_on_right_after_finished_rows_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    played, rng = Played(slots=20), np.random.default_rng(4)
    sizes: list[int] = []
    forward = played.engine._forward
    monkeypatch.setattr(played.engine, "_forward", lambda slots, new, tokens: sizes.append(len(slots)) or forward(slots, new, tokens))
    for slot in range(20):
        played.begin(slot, f"e{slot}")
    limits = {slot: 30 if slot % 7 == 0 else 1 + slot % 3 for slot in range(20)}
    played.turn({slot: text(rng) for slot in range(20)}, limits)
    assert min(sizes) == 8 and max(sizes) == 20  # the smallest that is worth the move
    played.turn({slot: text(rng, 1, 5) for slot in range(20)}, 4)
    for slot in range(20):
        played.check(slot)


@pytest.mark.parametrize(("name", "values"), [("SCORES", (1, 10**9)), ("FEW", (1, 10**9))])
def test_rows_read_in_small_pieces_or_by_torchs_kernel_give_the_same_result(monkeypatch: pytest.MonkeyPatch, name: str, values: tuple[int, int]) -> None:
    found = []
    for value in values:
        monkeypatch.setattr(attention, name, value)
        played, rng = Played(slots=20), np.random.default_rng(4)
        for slot in range(20):
            played.begin(slot, f"e{slot}")
        for _ in range(3):
            played.turn({slot: text(rng) for slot in (19, 3, 8, 1, 5, 4, 12, 2, 7)}, 9)
        for slot in (19, 3):
            played.check(slot)
        found.append(played.ids)
    assert found[0] == found[1]


def test_rows_that_decode_lie_at_the_front_and_nothing_is_lost_when_rows_change_places() -> None:
    played, rng = Played(slots=16), np.random.default_rng(11)
    for slot in range(16):
        played.begin(slot, f"e{slot}")
    played.turn({slot: text(rng) for slot in range(16)}, 6)
    for called in ((15, 9, 12), (1, 15), (14, 13, 12, 11, 10, 9, 8, 7, 6, 5), (0,), tuple(range(16))):
        played.turn({slot: text(rng, 1, 6) for slot in called}, 6)
        assert sorted(played.engine.cache.row) == list(range(16))
        assert isinstance(played.engine.cache.groups[0].rows, slice), "decoding copies no keys"
    for slot in range(16):
        played.check(slot)


def test_a_plain_llama_is_computed_in_fewer_operations_to_the_same_result_also_after_a_step() -> None:
    model, found = tiny.model(), []
    for fused in (True, False):
        played, rng = Played(slots=9, model=model), np.random.default_rng(12)
        assert played.engine.fused is not None
        if not fused:
            played.engine.fused = None
        for slot in range(9):
            played.begin(slot, f"e{slot}")
        for _ in range(2):
            played.turn({slot: text(rng) for slot in range(9)})
        found.append(played)
    assert found[0].ids == found[1].ids
    logps = [[logp for _, logp, _ in played.written[3]] for played in found]
    np.testing.assert_allclose(logps[0], logps[1], atol=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)  # as an optimiser does, in place
    played = found[0]
    played.begin(3, "after the step")
    played.turn({3: [7, 8, 9]})
    played.check(3)


def test_what_is_no_plain_llama_is_computed_by_its_own_module() -> None:
    assert not any(fusable(make(name)) for name in ("qwen2", "qwen3", "gpt2"))


def test_a_reply_ends_with_its_end_token_or_at_its_limit() -> None:
    played, rng = Played(slots=8, temperature=3.0), np.random.default_rng(0)
    limits = {slot: 1 + 4 * slot for slot in range(8)}
    for slot in range(8):
        played.begin(slot, f"e{slot}")
    for _ in range(4):
        for slot, ids in played.turn({slot: text(rng, 1, 3) for slot in range(8)}, limits).items():
            assert END not in ids[:-1] and len(ids) <= limits[slot]
            assert ids[-1] == END or len(ids) == limits[slot]


def test_an_episode_may_fill_the_cache_to_its_last_place_and_no_further() -> None:
    played = Played(slots=8, length=40, end=-1)
    for slot in (0, 1):
        played.begin(slot, f"e{slot}")
    played.turn({0: [7] * 20, 1: [8] * 3}, 10)
    played.turn({0: [9] * 4, 1: [9] * 9}, 6)
    assert len(played.ids[0]) == 40
    played.turn({1: [9, 8]}, 10)  # the full slot now only fills the batch up
    played.check(0)
    played.check(1)
    with pytest.raises(ValueError, match="slot 0"):
        played.turn({0: [9]}, 1)


def test_a_long_observation_is_read_in_pieces_and_memory_grows_with_the_longest_episode() -> None:
    played, rng = Played(slots=9, length=700), np.random.default_rng(2)
    for slot in range(9):
        played.begin(slot, f"e{slot}")
    played.turn({slot: text(rng, 5, 30) for slot in range(9)})
    assert {value.shape[2] for value in played.engine.cache.values} == {GROWTH}
    lengths = {slot: READ_AT_ONCE + 30 * (slot - 3) for slot in range(8)} | {8: 2 * READ_AT_ONCE + 1}
    played.turn({slot: rng.integers(5, VOCAB, n).tolist() for slot, n in lengths.items()})
    played.turn({slot: text(rng, 5, 9) for slot in range(9)})
    for slot in range(9):
        played.check(slot)
    held = max(len(played.ids[slot]) for slot in range(9))
    assert {value.shape[2] for value in played.engine.cache.values} == {min(-(-held // GROWTH) * GROWTH, 701)}


def test_the_same_batch_gives_the_same_bits_whatever_idle_slots_hold() -> None:
    """A shard that is played again after a kill finds an empty engine; played in one go it finds what others left behind."""
    found = []
    for dirty in (False, True):
        played, rng = Played(slots=16, length=230), np.random.default_rng(5)
        if dirty:
            for slot in range(16):
                played.begin(slot, f"old{slot}")
            played.turn({slot: text(rng, 60, 90) for slot in range(16)}, 37)
        rng = np.random.default_rng(6)
        for slot in (8, 9, 2):
            played.begin(slot, f"e{slot}")
        for _ in range(4):
            played.turn({slot: text(rng, 2, 9) for slot in (2, 8, 9)}, 11)
        found.append((played.ids[8], played.written[8], played.ids[2], played.written[2]))
    assert found[0] == found[1]


def test_noise_belongs_to_the_episode_not_to_its_slot_or_order() -> None:
    found = []
    for slots in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 3, 2, 1, 0, 4, 6, 5]):
        played = Played(slots=9)
        for number, slot in enumerate(slots):
            played.begin(slot, f"e{number}")
        for turn in range(3):
            played.turn({slot: text(np.random.default_rng(100 * turn + number)) for number, slot in enumerate(slots)})
        found.append([played.ids[slot] for slot in slots])
    assert found[0] == found[1]
    other = Played(slots=9)
    for number in range(9):
        other.begin(number, f"e{number}", seed=2)
    other.turn({number: text(np.random.default_rng(number)) for number in range(9)})
    assert [other.ids[n] for n in range(9)] != [one[: len(other.ids[n])] for n, one in enumerate(found[0])]


def test_two_episodes_with_the_same_prompt_differ_and_greedy_ones_do_not() -> None:
    for temperature, same in ((1.0, False), (0.0, True)):
        played = Played(temperature=temperature)
        for slot in (0, 1):
            played.begin(slot, f"e{slot}")
        played.turn({0: [7, 8, 9], 1: [7, 8, 9]})
        assert (played.ids[0] == played.ids[1]) is same


def test_greedy_takes_the_largest_logit() -> None:
    played = Played(temperature=0.0)
    played.begin(0, "e")
    ids = played.turn({0: [7, 8, 9]}, 6)[0]
    with torch.no_grad():
        model = tiny.model()
        model.set_attn_implementation("eager")
        logits = model(input_ids=torch.tensor([[7, 8, 9, *ids]]), use_cache=False).logits[0]
    assert ids == logits[2 : 2 + len(ids)].argmax(-1).tolist()


def test_sampling_follows_the_distribution_that_it_reports() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, float("-inf")]]).repeat(20000, 1)
    token, logp, entropy = sample(logits, uniforms(np.arange(20000, dtype=np.uint64), 0), 0.7)
    p = torch.softmax(logits[0] / 0.7, -1)
    np.testing.assert_allclose(np.bincount(token.numpy(), minlength=5) / 20000, p, atol=0.012)
    np.testing.assert_allclose(logp.exp(), p[token], rtol=1e-5)
    np.testing.assert_allclose(entropy, np.full(20000, -(p * p.clamp(min=1e-30).log()).sum()), rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_the_learner_computes_the_samplers_log_probs_so_ratios_begin_at_one(temperature: float) -> None:
    model = tiny.model()
    played, rng = Played(slots=9, temperature=temperature, model=model), np.random.default_rng(8)
    for slot in range(9):
        played.begin(slot, f"e{slot}")
    for _ in range(3):
        played.turn({slot: text(rng) for slot in range(9)})
    batch = []
    for slot in range(9):
        n = len(played.ids[slot])
        role, old = np.zeros(n, np.int8), np.zeros(n, np.float32)
        for at, logp, _ in played.written[slot]:
            role[at], old[at] = REPLY, logp
        batch.append(Sequence(f"e{slot}", np.array(played.ids[slot]), role, np.zeros(n, np.int32), old, np.ones(1, np.float32)))
    learner = ActorLearner(model, [Likelihood()], optimizer="adamw", batch_tokens=200, max_grad_norm=1.0, temperature=temperature)
    found = learner.logprobs(batch)
    for one in batch:
        mine = one.role == REPLY
        np.testing.assert_allclose(np.exp(found[one.episode_id] - one.old_logprobs)[mine], 1.0, atol=1e-4)
        assert not found[one.episode_id][~mine].any()
