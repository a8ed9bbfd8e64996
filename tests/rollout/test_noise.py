"""Noise is uniform, depends on (seed, episode, position) alone, and never changes between versions of Ratchet."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.rollout.noise import GOLDEN, episode_key, uniforms

COUNTED = np.arange(2000, dtype=np.uint64)
KEY = 15180284595713016066
DRAWS = [0.4813054286190118, 0.5579894913640678, 0.5814850405260461, 0.4720996075523207]
ZERO = 0.6524484863740322


def test_the_values_are_these_for_ever() -> None:
    key = episode_key(1, "5e2b7d2c-0000-5000-8000-000000000001")
    assert int(key) == KEY
    assert uniforms(key, np.arange(4)).tolist() == DRAWS
    assert float(uniforms(0, 0)) == ZERO


def test_a_draw_does_not_depend_on_the_batch() -> None:
    keys = np.array([episode_key(3, str(number)) for number in range(7)], dtype=np.uint64)
    grid = uniforms(keys[:, None], np.arange(50)[None, :])
    assert grid.shape == (7, 50) and grid.dtype == np.float64
    assert grid[4, 31] == uniforms(keys[4], 31) == uniforms(keys[4:5], np.array([31]))[0]


def test_seed_episode_purpose_and_position_all_matter() -> None:
    draws = {float(uniforms(episode_key(seed, name, purpose), t)) for seed in (1, 2) for name in ("a", "b")
             for purpose in ("sample", "replay") for t in (0, 1)}
    assert len(draws) == 16


@pytest.mark.parametrize("keys", [COUNTED, COUNTED * GOLDEN, np.uint64(1) << np.arange(64, dtype=np.uint64)],
                         ids=["counted keys", "keys a golden step apart", "one bit"])
def test_draws_are_uniform_and_neighbours_are_independent(keys: np.ndarray) -> None:
    grid = uniforms(keys[:, None], np.arange(500)[None, :])
    assert grid.min() >= 0.0 and grid.max() < 1.0
    counts = np.histogram(grid, bins=100, range=(0, 1))[0]
    expected = grid.size / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 40 < chi_square < 180  # 99 degrees of freedom: mean 99, six deviations are 84
    limit = 5 / np.sqrt(grid.size)
    for other in (grid[:, 1:], grid[1:, :], grid[1:, 1:]):
        here = grid[: other.shape[0], : other.shape[1]]
        assert abs(np.corrcoef(here.ravel(), other.ravel())[0, 1]) < limit * 1.1


def test_no_sequence_is_a_shifted_other_one() -> None:
    grid = uniforms((COUNTED[:300] * GOLDEN)[:, None], np.arange(100)[None, :])
    assert np.unique(grid).size == grid.size
