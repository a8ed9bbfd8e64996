"""The proving ground: a small text world for claims that need exact values. A test instrument, not a benchmark.

A letter carrier's errands in a house of a few rooms. `rules` says what an action does, `generate` makes houses and orders,
`env` is the environment, `players` are its scripted policies, `exact` solves a task by dynamic programming, `benchmark` brings it
into the pipeline.
"""

from ratchet.envs.proving_ground.benchmark import ProvingGround
from ratchet.envs.proving_ground.env import ProvingGroundEnv
from ratchet.envs.proving_ground.exact import Quality, Solution, solve
from ratchet.envs.proving_ground.generate import KINDS, world_of
from ratchet.envs.proving_ground.players import Clerk, Skilled, Verbose
from ratchet.envs.proving_ground.rules import DO_NOTHING, IDLE, State, World

__all__ = [
    "DO_NOTHING",
    "IDLE",
    "KINDS",
    "Clerk",
    "ProvingGround",
    "ProvingGroundEnv",
    "Quality",
    "Skilled",
    "Solution",
    "State",
    "Verbose",
    "World",
    "solve",
    "world_of",
]
