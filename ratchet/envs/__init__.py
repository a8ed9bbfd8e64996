"""Benchmarks behind one interface; ratchet/envs/benchmarks.py lists them. Nothing here imports torch: workers start fast."""
