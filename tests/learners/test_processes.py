"""Two processes take the step of one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.learners import processes

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes_take_the_step_of_one(tmp_path: Path) -> None:
    episodes = 7  # three micro-batches: one process has to fill up
    processes.main(str(tmp_path / "alone"), episodes)
    port = str(free_port())
    running = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "tests.learners.processes", str(tmp_path / "pair"), str(episodes)]
        running.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        for one in running:
            text, _ = one.communicate(timeout=60)
            assert one.returncode == 0, text
    finally:
        for one in running:
            one.kill()
    alone = load_file(tmp_path / "alone-0")
    for rank in range(2):
        found = load_file(tmp_path / f"pair-{rank}")
        assert found.pop("processes") == 2
        for name, value in found.items():
            torch.testing.assert_close(value, alone[name], rtol=2e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
