"""What the grid cannot say of embedding: frequent tokens, padding, a drop-in module, messages."""

import pytest
import torch

from rooftile.ops import Embedding, embedding


def test_one_token_for_all_sums_every_gradient():
    w = torch.randn(5, 3, requires_grad=True)
    embedding(torch.full((4, 1000), 2), w).sum().backward()
    assert torch.equal(w.grad, torch.zeros(5, 3).index_fill(0, torch.tensor(2), 4000.0))


def test_float32_sums_behind_a_narrow_table():
    """4096 times 1 in bfloat16 would stop at 256."""
    w = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    embedding(torch.zeros(4096, dtype=torch.int64), w).sum().backward()
    assert w.grad[0, 0] == 4096


@pytest.mark.parametrize("padding", [None, 1, -1])
def test_module_is_a_drop_in(padding):
    theirs, ours = torch.nn.Embedding(4, 3, padding_idx=padding), Embedding(4, 3, padding_idx=padding)
    ours.load_state_dict(theirs.state_dict())
    i = torch.tensor([[0, 1, 1], [3, 3, 3]])
    assert torch.equal(ours(i), theirs(i))
    ours(i).sum().backward()
    theirs(i).sum().backward()
    assert torch.equal(ours.weight.grad, theirs.weight.grad)


def test_messages_have_both_numbers():
    w = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="an index is 4, but the weight has 4 rows"):
        embedding(torch.tensor([0, 4]), w)
    with pytest.raises(ValueError, match="an index is -1, but the weight has 4 rows"):
        embedding(torch.tensor([0, -1]), w)
    with pytest.raises(ValueError, match="padding_idx is 9, but the weight has 4 rows"):
        embedding(torch.tensor([0]), w, 9)
    with pytest.raises(ValueError, match="int32"):
        embedding(torch.tensor([0], dtype=torch.int32), w)
    with pytest.raises(ValueError, match=r"max_norm=1\.0 is not supported"):
        Embedding(4, 2, max_norm=1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("v", [255, 32768, 32769, 65535, 65536, 70001])
def test_narrow_keys_keep_every_row_apart(v):
    """Keys are sorted in 16 bits where they fit; an index outside must not come back as another row."""
    indices = torch.randint(0, v, (4096,), device="cuda")
    indices[:4] = torch.tensor([0, v - 1, v // 2, v - 1], device="cuda")
    weight, dout = torch.zeros(v, 8, device="cuda", requires_grad=True), torch.randn(4096, 8, device="cuda")
    want = torch.zeros(v, 8, device="cuda", dtype=torch.float64).index_add_(0, indices, dout.double())
    outside = torch.tensor([-1, v, v + 1, v + 65536, -65536 + v // 2], device="cuda")
    out = embedding(torch.cat([indices, outside]), weight)
    out.backward(torch.cat([dout, torch.ones(5, 8, device="cuda")]))
    torch.testing.assert_close(weight.grad.double(), want, rtol=1e-5, atol=1e-5)
