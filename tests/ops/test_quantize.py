"""What the grid cannot say of quantize: shapes, the error of a round trip, bits that PyTorch agrees with, what is said of wrong calls."""

import pytest
import torch

from rooftile.ops import dequantize, quantize, quantize_affine

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EIGHT = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
HALF_STEP = {torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3}  # relative, of a normal number


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", EIGHT)
@pytest.mark.parametrize("block", ["tensor", "token", "1x128", "128x128"])
def test_there_and_back(to, block, device):
    x = torch.randn(200, 300, device=device)
    values, scale = quantize(x, to, block=block)
    assert values.dtype == to and values.shape == x.shape
    assert scale.shape == {"tensor": (), "token": (200,), "1x128": (200, 3), "128x128": (2, 3)}[block]
    back = dequantize(values, scale, to=torch.float32)
    step = scale.max() / 2 if to == torch.int8 else x.abs() * HALF_STEP[to] + scale.max() * 2**-9
    assert bool(((back - x).abs() <= step * 1.001).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block, shape", [("token", (2, 3)), ("1x128", (2, 3, 2)), ("tensor", ())])
def test_leading_axes(block, shape, device):
    x = torch.randn(2, 3, 130, device=device, dtype=torch.bfloat16)
    values, scale = quantize(x.transpose(0, 1), block=block)
    assert values.shape == (3, 2, 130) and scale.shape == ((shape[1], shape[0], *shape[2:]) if shape else ())
    assert torch.equal(values.float(), quantize(x.transpose(0, 1).contiguous(), block=block)[0].float())
    assert dequantize(values, scale).shape == values.shape


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (2, 0, 3)])
def test_numbers_alone_and_none_at_all_go_there_and_back(shape, device):
    x = torch.ones(shape, device=device)
    for block in ("tensor", "token", "1x128", *(["128x128"] if len(shape) == 2 else [])):
        assert torch.equal(dequantize(*quantize(x, block=block), to=torch.float32), x), block


def test_e4m3_rows_are_the_usual_formula():
    x = torch.randn(50, 333, dtype=torch.bfloat16)
    values, scale = quantize(x, block="token")
    torch.testing.assert_close(scale, x.float().abs().amax(-1) / 448)
    usual = (x.float() / scale[:, None]).to(torch.float8_e4m3fn).float()
    assert (values.float() != usual).float().mean() < 1e-3  # a quotient and a product with the inverse part at ties


def test_int8_reaches_both_ends():
    values, scale = quantize(torch.tensor([-3.0, 0.0, 1.5, 3.0]), torch.int8)
    assert values.tolist() == [-127, 0, 64, 127] and scale == torch.tensor(3.0) * torch.tensor(1 / 127)
    values, scale, zero = quantize_affine(torch.tensor([0.0, 1.0, 2.0]))  # 1 lies at 127.5 steps, less a rounding
    assert values.tolist() == [-128, -1, 127] and int(zero) == -128
    torch.testing.assert_close(dequantize(values, scale, zero, to=torch.float32), torch.tensor([0.0, 1.0, 2.0]), atol=0.004, rtol=0)


def test_powers_of_two_are_the_next_ones():
    x = torch.randn(9, 256)
    (_, free), (_, power) = quantize(x, block="1x128"), quantize(x, block="1x128", power_of_2=True)
    assert torch.equal(power, torch.exp2(torch.log2(free).ceil()))
    exact = quantize(torch.full((1, 4), 448.0), power_of_2=True)[1]
    assert exact == 1  # a power of two stays what it is


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_no_number_does_not_spread(device):
    x = torch.tensor([[1.0, float("nan"), -2.0, 0.0], [float("inf"), 1.0, -float("inf"), 0.0]], device=device)
    values, scale = quantize(x, block="token")
    assert values.float().isnan().tolist() == [[False, True, False, False], [False] * 4]
    assert values[1].float().tolist() == [448, 0, -448, 0] and bool(scale.isfinite().all())
    assert quantize(x[0], torch.int8)[0].tolist() == [64, 0, -127, 0]


def test_a_block_of_zeros_and_the_smallest_numbers():
    values, scale = quantize(torch.zeros(3, 5), block="token")
    assert not values.float().any() and torch.equal(dequantize(values, scale, to=torch.float32), torch.zeros(3, 5))
    tiny = torch.full((1, 4), 1e-40)
    assert bool(quantize(tiny, block="token")[0].float().isfinite().all())


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: quantize(torch.zeros(2, 2), torch.float16), "to is torch.float16, it takes torch.int8, torch.float8_e4m3fn, torch.float8_e5m2"),
        (lambda: quantize(torch.zeros(2, 2), "int8"), "quantize: to is 'int8', it takes torch.int8, torch.float8_e4m3fn"),
        (lambda: dequantize(torch.zeros(2, 2, dtype=torch.int8), torch.zeros(()), to="float32"), "dequantize: to is 'float32', it takes torch.float32"),
        (lambda: quantize(torch.zeros(2, 2), block="row"), "block is 'row', it takes tensor, token, 1x128, 128x128"),
        (lambda: quantize(torch.zeros(2, 2), block=[128, 128]), "block is .128, 128., it takes tensor, token, 1x128, 128x128"),
        (lambda: quantize(torch.zeros(2, 2, 2), block="128x128"), r"x has 3 axes \[2, 2, 2\]"),
        (lambda: quantize(torch.zeros(2, 2, dtype=torch.int32)), "x is int32, takes float32, bfloat16, float16"),
        (lambda: dequantize(torch.zeros(2, 2, dtype=torch.int8), torch.zeros(3)), r"scale is \[3\], for values \[2, 2\] it is \[\] or \[2\] or \[2, 1\] or \[1, 1\]"),
        (lambda: dequantize(torch.zeros(2, 2, dtype=torch.int8), 0.5), "dequantize: scale must be a tensor, got float"),
        (lambda: dequantize(torch.zeros(2, 2), torch.zeros(())), "values is float32, takes float8_e4m3fn, float8_e5m2, int8"),
        (lambda: dequantize(torch.zeros(2, 2, dtype=torch.int8), torch.zeros(()), to=torch.int8), "to is torch.int8, it takes torch.float32, torch.bfloat16, torch.float16"),
    ],
)  # fmt: skip
def test_a_wrong_call_names_both_sides(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("block", ["tensor", "token", "1x128", "128x128"])
def test_one_graph_for_any_number_of_rows(block):
    """Sizes are symbols then, which have no hash."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return dequantize(*quantize(x, block=block), to=torch.float32)

    program = torch.export.export(Module(), (torch.randn(200, 300),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for rows in (150, 500):
        x = torch.randn(rows, 300)
        assert torch.equal(program.module()(x), Module()(x))
