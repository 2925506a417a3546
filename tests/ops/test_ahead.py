"""A row's statistics are asked for before the row before it is reduced, in the machine code too: sunk to that row's end, as ptxas would have them, they are waited for."""

import re

import pytest

from test_cuda_wide import machine_code

BF16 = "__nv_bfloat16"
KERNELS = [  # rows of a block whose threads hold the weight: nothing else is loaded in the loop
    ("_shared/cuda/sum_norm_v3_pipeline.cu", f"backward<Plain, {BF16}, {BF16}, {BF16}, true, true, true, false, 256, 2, 256, 3, 2, true>"),
    (
        "_shared/cuda/sum_norm_v3_pipeline.cu",
        f"backward<Dropped, {BF16}, {BF16}, {BF16}, true, true, true, false, 256, 2, 256, 3, 2, true>",
    ),
    (
        "_shared/cuda/sum_norm_v3_pipeline.cu",
        f"backward<Dropped, {BF16}, {BF16}, {BF16}, true, true, true, false, 128, 2, 128, 3, 4, true>",
    ),
    ("layernorm/cuda/v6_pipeline.cu", f"layernorm_backward<{BF16}, {BF16}, true, true, 512, 2, 512, 3, true>"),
    ("layernorm/cuda/v6_pipeline.cu", f"layernorm_backward<{BF16}, {BF16}, true, true, 256, 2, 256, 3, false>"),
]


@pytest.mark.parametrize("source, instance", KERNELS)
def test_a_rows_statistics_are_asked_for_before_the_barrier(source, instance, tmp_path):
    before, after = machine_code(source, instance, tmp_path).split("BAR.SYNC", 1)
    assert len(re.findall(r"\bLDG\.E (?=R)", before)) >= 2, re.findall(r"\bLDG[\w.]*", before)
    assert not re.findall(r"\bLDG\b", after), re.findall(r"\bLDG[\w.]*", after)
