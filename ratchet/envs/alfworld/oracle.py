"""An oracle that knows where everything is hidden: for checks that games can be solved, never for demonstrations."""

from __future__ import annotations

from ratchet.envs.alfworld.expert import AlfworldExpert
from ratchet.envs.alfworld.games import Game
from ratchet.envs.alfworld.world import World, world_from_game
from ratchet.envs.base import Task, Turn


class Oracle(AlfworldExpert):
    """The expert, told at the start what is in every receptacle, so that it never searches."""

    def __init__(self, game: Game | World) -> None:
        self._world = world_from_game(game) if isinstance(game, Game) else game

    def reset(self, task: Task, turn: Turn) -> None:
        """Fills in the places of all objects."""
        super().reset(task, turn)
        world = self._world
        for r, name in enumerate(world.receptacle_names):
            if world.place_of[r] >= 0:
                self._contents[name] = [world.object_names[o] for o in world.inside[r]]
