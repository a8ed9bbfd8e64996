"""ALFWorld: generated games, the user's own games, a compiled engine, the TextWorld engine and an exploring expert."""

from ratchet.envs.alfworld.compiled import CompiledGame
from ratchet.envs.alfworld.env import AlfworldEnv, open_game
from ratchet.envs.alfworld.expert import AlfworldExpert
from ratchet.envs.alfworld.games import SPLITS, Game, game_task, generate_games
from ratchet.envs.alfworld.layouts import TASK_TYPES, held_out_scenes
from ratchet.envs.alfworld.oracle import Oracle
from ratchet.envs.alfworld.pddl import export_game, game_data
from ratchet.envs.alfworld.storage import read_games, write_games
from ratchet.envs.alfworld.textworld_engine import TextworldGame
from ratchet.envs.alfworld.userdata import DATA_VARIABLE, USER_SPLITS, UserGame, data_root, user_games, user_task
from ratchet.envs.alfworld.world import World, world_from_game

__all__ = [
    "DATA_VARIABLE",
    "SPLITS",
    "TASK_TYPES",
    "USER_SPLITS",
    "AlfworldEnv",
    "AlfworldExpert",
    "CompiledGame",
    "Game",
    "Oracle",
    "TextworldGame",
    "UserGame",
    "World",
    "data_root",
    "export_game",
    "game_data",
    "game_task",
    "generate_games",
    "held_out_scenes",
    "open_game",
    "read_games",
    "user_games",
    "user_task",
    "world_from_game",
    "write_games",
]
