"""The headers' device functions, in the simulator and on a GPU, beside what PyTorch computes in float64."""

from pathlib import Path

import pytest
import torch

from rooftile.cuda import simulator
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops._shared import activation_reference, philox

FUNCTIONS = Source(Path(__file__).resolve().parent / "cuda" / "functions.cu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ACTIVATIONS = {"Silu": "silu", "Relu": "relu", "Gelu": "gelu", "GeluTanh": "gelu_tanh"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_and_its_slope(name, device):
    """Within float32's roundoff of the larger of the value and the number it was made of: the tails have a test of their own."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 90.0, -90.0])]).to(device)
    value, y, d = (torch.empty_like(x) for _ in range(3))
    with simulator.active("all"):
        launch(FUNCTIONS, f"curve<{name}>", -(-x.numel() // 256), 256, value, y, d, x, x.numel())
    wide = x.double()
    truth, slope = activation_reference.activate(wide, ACTIVATIONS[name]), activation_reference.slope(wide, ACTIVATIONS[name])
    assert torch.equal(value, y)
    assert float(((y - truth).abs() / (truth.abs() + x.abs() / 8).clamp_min(1e-30)).max()) < 1e-6
    # 1 - s has float32's roundoff of s and a unit of the reciprocal, and gelu's tanh form multiplies it by up to 20 before it vanishes
    assert float((d - slope).abs().max()) < 5e-6


@pytest.mark.parametrize("device", DEVICES)
def test_philox(device):
    counter = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**62 + 5, -1], device=device)
    for seed in (0, -1, 2**40 + 3):
        out, key = torch.empty(4 * len(counter), dtype=torch.int32, device=device), torch.tensor(seed, device=device)
        with simulator.active("all"):
            launch(FUNCTIONS, "words", 1, 32, out, counter, key, len(counter))
        wanted = torch.stack(philox.philox(counter, key), -1).reshape(-1)
        assert torch.equal(out.long() & 0xFFFFFFFF, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_the_inverse_of_a_scale_is_rounded_as_a_division_is(device):
    """Of every float32 that a scale can be, on a GPU; of some in the simulator."""
    step = 1 if device == "cuda" else 499_979
    for first in range(0x00800000, 0x7C800000, 1 << 26):
        scale = torch.arange(first, min(first + (1 << 26), 0x7C800000), step, dtype=torch.int32, device=device).view(torch.float32)
        out = torch.empty_like(scale)
        with simulator.active("checks"):
            launch(FUNCTIONS, "inverses", -(-scale.numel() // 256), 256, out, scale, scale.numel())
        assert torch.equal(out, torch.ones_like(scale) / scale)
