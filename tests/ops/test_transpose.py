"""What the grid cannot say of transpose: bits are kept, twice is nothing, views come out dense."""

import pytest
import torch

from rooftile.ops import transpose

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_every_bit_is_kept(device):
    x = torch.arange(-(2**15), 2**15, device=device).to(torch.int16).view(torch.float16).view(512, 128)  # NaNs and subnormals too
    assert torch.equal(transpose(x).view(torch.int16), x.view(torch.int16).t())
    assert torch.equal(transpose(transpose(x)).view(torch.int16), x.view(torch.int16))


@pytest.mark.parametrize("device", DEVICES)
def test_views_come_out_dense(device):
    x = torch.randn(4, 6, 10, 8, device=device)
    for view in (x, x.mT, x[:, 1:5, ::2], x.permute(1, 0, 3, 2), x[:, :1].expand(4, 3, 10, 8)):
        y = transpose(view)
        assert y.is_contiguous() and torch.equal(y, view.mT)


def test_a_row_has_nothing_to_turn():
    with pytest.raises(ValueError, match=r"x has 1 axes \[3\], needs 3"):
        transpose(torch.zeros(3))
