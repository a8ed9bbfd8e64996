"""One update in this process of a group (environment variables say which); run by test_processes.py."""

import sys

import torch
from safetensors.torch import save_file

from tests.learners.test_actor import TERMS, make, near
from tests.models import tiny

torch.set_num_threads(1)


def main(file: str, episodes: int) -> None:
    batch = near(tiny.sequences(episodes))
    learner = make(TERMS, batch_tokens=60, max_grad_norm=0.5)
    metrics = [learner.update(batch, 1e-3).metrics for _ in range(2)]
    found = {name: value.contiguous() for name, value in tiny.weights(learner.model).items()}
    found |= {f"metric {step} {name}": torch.tensor(value) for step, one in enumerate(metrics) for name, value in one.items()}
    found["processes"] = torch.tensor(learner.accelerator.num_processes)
    save_file(found, f"{file}-{learner.accelerator.process_index}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
