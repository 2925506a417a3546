import pytest
import torch

from rooftile import Linear, gemm, linear


def test_linear_is_gemm_with_the_weight_transposed():
    x, w, b = torch.randn(3, 5, 7), torch.randn(11, 7), torch.randn(11)
    assert torch.equal(linear(x, w, b), gemm(x, w.t(), b))


def test_a_sum_of_rows_is_a_row_of_sums():
    a, b = torch.randint(-4, 5, (6, 9)).float(), torch.randint(-4, 5, (9, 4)).float()
    assert torch.equal(gemm(a.sum(0, keepdim=True), b), gemm(a, b).sum(0, keepdim=True))


def test_nothing_to_sum_leaves_the_bias():
    bias = torch.tensor([1.0, -2.0])
    assert torch.equal(gemm(torch.ones(3, 0), torch.ones(0, 2), bias), bias.expand(3, 2))
    assert gemm(torch.ones(2, 3), torch.ones(3, 0)).shape == (2, 0)


def test_one_row_without_leading_axes():
    assert torch.equal(gemm(torch.ones(3), torch.ones(3, 2)), torch.full((2,), 3.0))


def test_the_weight_gradient_is_dense_and_not_a_copy():
    layer, x = Linear(8, 4, bias=False), torch.randn(2, 3, 8)
    layer(x).sum().backward()
    assert layer.weight.grad.is_contiguous() and layer.weight.grad.shape == (4, 8)


def test_linear_loads_the_state_of_torch():
    theirs, ours = torch.nn.Linear(5, 3), Linear(5, 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(7, 5)
    torch.testing.assert_close(ours(x), theirs(x))


def test_autocast_casts_every_factor():
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: gemm(torch.ones(2, 3), torch.ones(4, 5)), "K is 4 in b, but 3 in a"),
        (lambda: gemm(torch.ones(2, 3), torch.ones(3, 5), torch.ones(4)), "N is 4 in bias, but 5 in b"),
        (lambda: gemm(torch.ones(2, 3), torch.ones(3, 5).bfloat16()), "dtype is bfloat16 in b, but float32 in a"),
        (lambda: linear(torch.ones(2, 3), torch.ones(3, 5)), "K is 5 in weight, but 3 in x"),
        (lambda: gemm(torch.ones(2, 3), torch.ones(3)), "needs 2"),
    ],
)
def test_a_wrong_call_names_both_sides(call, said):
    with pytest.raises(ValueError, match=said):
        call()
