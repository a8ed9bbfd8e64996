"""Weights packed for a rollout's few rows: the same product, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch

from ratchet.engines.fused import _Product

ROWS = torch.randn(70, 48, generator=torch.Generator().manual_seed(1))
RESIDUAL = torch.randn(70, 31, generator=torch.Generator().manual_seed(2))
WEIGHT = torch.randn(31, 48, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("packs", [True, False])
def test_it_is_the_product_with_and_without_packed_weights(packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    elif not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    product = _Product(WEIGHT)
    assert product.packs == packs
    torch.testing.assert_close(product(ROWS), ROWS @ WEIGHT.t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(product.added_to(RESIDUAL, ROWS), RESIDUAL + ROWS @ WEIGHT.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_however_many_rows_there_are(threads: int) -> None:
    product, before = _Product(WEIGHT), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, added = product(ROWS), product.added_to(RESIDUAL, ROWS)
        for count in (8, 9, 16, 31, 33, 64):
            assert torch.equal(product(ROWS[:count]), whole[:count]), count
            assert torch.equal(product.added_to(RESIDUAL[:count], ROWS[:count]), added[:count]), count
    finally:
        torch.set_num_threads(before)
