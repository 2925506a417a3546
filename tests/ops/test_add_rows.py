"""Partial rows added up: which they are, of how many results, and that a warp does not wait for each of them."""

import re

import pytest
import torch

from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops._shared.cuda_rows import add_rows
from test_cuda_wide import machine_code


@pytest.mark.parametrize("p, n", [(1, 33), (7, 8), (65, 36), (129, 5), (257, 40), (528, 33), (9, 8200)])
@pytest.mark.parametrize("halves", [1, 2])
def test_the_sums_are_those_of_all_rows(p, n, halves):
    partial = torch.randint(-8, 9, (halves * p, n)).float()
    made = [torch.full((n,), float("nan"), dtype=d) for d in (torch.float32, torch.bfloat16)[:halves]]
    with simulator.active():
        add_rows(partial, *made)
    for i, sums in enumerate(made):
        assert torch.equal(sums, partial[i * p : (i + 1) * p].sum(0).to(sums.dtype))


@pytest.mark.skipif(bool(compiler.missing()), reason="needs NVRTC")
@pytest.mark.parametrize("kernel", ["add_rows<float, float", "add_three<float, float, float"])
@pytest.mark.parametrize("columns", [1, 4])
def test_eight_rows_are_asked_for_before_one_is_added(kernel, columns, tmp_path):
    code = machine_code("_shared/cuda/add_rows.cu", f"{kernel}, {columns}>", tmp_path)
    steps = re.findall(r"\b(LDG|FADD)\b", code)
    assert steps[:9] == ["LDG"] * 8 + ["FADD"] and steps.count("LDG") == 8, steps
