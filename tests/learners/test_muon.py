"""Muon shape by shape is torch's Muon, and takes the matrices of linear layers alone."""

from __future__ import annotations

import pytest
import torch

from ratchet.learners.muon import Muon, orthogonalized
from ratchet.learners.optimizers import make_optimizers, set_lr
from tests.models import tiny

SHAPES = ((16, 24), (24, 16), (16, 24), (8, 8), (24, 16))


def trained(optimizer: type[torch.optim.Optimizer], **options: object) -> list[torch.Tensor]:
    """Matrices after three steps on gradients that are the same for every optimiser."""
    draw = torch.Generator().manual_seed(3)
    matrices = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]
    one = optimizer(matrices, lr=0.05, weight_decay=0.1, **options)  # type: ignore[call-arg]
    for _ in range(3):
        for matrix in matrices[:-1]:
            matrix.grad = torch.randn(matrix.shape, generator=draw)
        one.step()
    return [matrix.detach() for matrix in matrices]


@pytest.mark.parametrize(("precision", "tolerance"), [(torch.float32, 4e-3), (torch.bfloat16, 4e-3)])
def test_it_steps_as_torchs_own_which_iterates_in_bfloat16(precision: torch.dtype, tolerance: float) -> None:
    expected = trained(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    for mine, theirs in zip(trained(Muon, precision=precision), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=0)


def test_the_iteration_makes_wide_tall_and_square_matrices_nearly_orthogonal() -> None:
    for shape in ((3, 8, 20), (3, 20, 8), (3, 12, 12)):
        found = orthogonalized(torch.randn(shape, generator=torch.Generator().manual_seed(1)), (3.4445, -4.775, 2.0315), 5, 1e-7)
        values = torch.linalg.svdvals(found)
        assert found.shape == shape and float(values.min()) > 0.1 and float(values.max()) < 1.3


def test_embeddings_and_head_are_adamws_whatever_they_are_called() -> None:
    model = tiny.model()
    muon, adamw = make_optimizers(model, "muon")
    matrices = {id(p) for group in muon.param_groups for p in group["params"]}
    rest = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert matrices.isdisjoint(rest) and len(matrices | rest) == len(list(model.parameters()))
    linear = [m.weight for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    assert matrices == {id(weight) for weight in linear}
    assert {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)} <= rest


def test_a_parameter_without_a_gradient_stays_and_the_rate_is_set_before_each_step() -> None:
    matrices = [torch.nn.Parameter(torch.ones(4, 6)) for _ in range(2)]
    one = Muon(matrices, lr=0.0)
    matrices[0].grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    one.step()
    assert torch.equal(matrices[0], torch.ones(4, 6)), "at rate 0 nothing moves"
    set_lr([one], 0.1)
    one.step()
    assert not torch.equal(matrices[0], torch.ones(4, 6)) and torch.equal(matrices[1], torch.ones(4, 6))
