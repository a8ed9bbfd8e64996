"""What the benchmarks against peers share: one world, one model, our side, their sides, and the arithmetic of the figures."""
