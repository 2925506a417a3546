"""Partial rows added up: which they are, of how many results, and that a warp does not wait for each of them."""

import re

import pytest
import torch

from rooftile.cuda import simulator
from rooftile.ops._shared.cuda_partials import add_rows
from test_cuda_wide import machine_code


@pytest.mark.parametrize("p, n", [(1, 33), (7, 8), (65, 36), (129, 5), (257, 40), (528, 33), (9, 8200), (5, 40000)])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_sums_are_those_of_all_rows(p, n, parts):
    partial = torch.randint(-8, 9, (parts * p, n)).float()
    made = [torch.full((n,), float("nan"), dtype=d) for d in (torch.float32, torch.bfloat16, torch.float16)[:parts]]
    with simulator.active():
        add_rows(partial, *made)
    for i, sums in enumerate(made):
        assert torch.equal(sums, partial[i * p : (i + 1) * p].sum(0).to(sums.dtype)), i


@pytest.mark.parametrize("empty", [0, 1])
def test_of_two_an_empty_one_is_left_out(empty):
    partial = torch.randint(-8, 9, (14, 40)).float()
    made = [torch.full((0 if i == empty else 40,), float("nan")) for i in (0, 1)]
    with simulator.active():
        add_rows(partial, *made)
    there = 1 - empty
    assert torch.equal(made[there], partial[7 * there : 7 * there + 7].sum(0))


def test_of_no_columns_there_is_nothing_to_add():
    add_rows(torch.empty(7, 0), torch.empty(0))


@pytest.mark.parametrize("columns, across", [(1, 8), (4, 8), (4, 16), (4, 32)])
def test_eight_rows_are_asked_for_before_one_is_added(columns, across, tmp_path):
    code = machine_code("_shared/cuda/add_rows.cu", f"add_rows<float, float, float, {columns}, {across}>", tmp_path)
    steps = re.findall(r"\b(LDG|FADD)\b", code)
    assert steps[:9] == ["LDG"] * 8 + ["FADD"] and steps.count("LDG") == 8, steps
