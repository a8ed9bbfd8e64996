"""Noise that depends on what is sampled and not on when: uniforms keyed by (seed, episode_id, position).

Counter-based: the number at a position is a hash of the key and the position, so any batch, order, shard or number of
workers gives the same draws. The values are part of every recorded result and are fixed by a test.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


def episode_key(seed: int, episode_id: str, purpose: str = "sample") -> np.uint64:
    """The key of an episode's noise: blake2b of seed and id. Another `purpose` (at most 16 bytes) is independent noise."""
    text = f"{seed}:{episode_id}".encode()
    digest = hashlib.blake2b(text, digest_size=8, person=purpose.encode()).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mix(bits: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014, variant 13 of Stafford): every input bit moves every output bit."""
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))


def uniforms(key: npt.ArrayLike, position: npt.ArrayLike) -> np.ndarray:
    """float64 in [0, 1), 53 bits each, of the shape that `key` (uint64) and `position` (integers ≥ 0) broadcast to.

    The key is mixed before the position is added: keys that differ by little give unrelated sequences.
    """
    keys, positions = np.broadcast_arrays(np.asarray(key, dtype=np.uint64), np.asarray(position).astype(np.uint64))
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        start = _mix(keys + GOLDEN)
        bits = _mix(start + (positions + np.uint64(1)) * GOLDEN)
    return (bits >> np.uint64(11)) * 2.0**-53
