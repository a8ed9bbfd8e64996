"""The critic of a round (Q-Evolve, methods §5): fitted on a fixed buffer, its advantages are the process reward of offline updates."""
