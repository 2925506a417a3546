"""Rows dealt out in short runs, beside the file of the other rungs and not in it: what was measured of those still speaks of them.

Floor: x read once; E rows written. 4 blocks of 256 threads with 4 times 16 bytes each are 64 KB under way a multiprocessor, where 4.2 TB/s over 700 ns ask for 22.
"""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv, power_of_2, processors, rows
from rooftile.ops.segment_sum.cuda_kernels import wide
from rooftile.ops.segment_sum.reference import check_offsets

RUNS = Source.beside(__file__, "v6_runs.cu")
LEAST, JOIN = 16, 512  # rows of a group of lanes; threads of a block of `join`, 8 of them a run
STRIPS = 4  # multiprocessors at most that share the columns of one segment's partial sums
# rows of a group at a time; so many runs at most; and of the last, how many for each multiprocessor are cut in four
CHUNKS = tuple(
    {"rows": r, "runs": n, "cut": c}
    for r, n, c in ((4, 2048, 2), (8, 2048, 2), (4, 4096, 2), (4, 1024, 2), (8, 1024, 2), (8, 2048, 0), (4, 1024, 0), (8, 2048, 4))
)


def in_runs(x, offsets, *, config):
    check_offsets(offsets, x.shape[0])
    x, m, n, stride = rows(x)
    offsets, e = offsets.contiguous(), offsets.numel() - 1
    out = x.new_empty((e, n))
    if not out.numel():
        return out
    width, lanes, strips = wide(x, n, stride)
    groups = BLOCK // lanes
    # the longer runs are, the fewer sums of a segment in many of them are left to `join`
    chunk = power_of_2(max(LEAST, cdiv(m, groups * config["runs"])))
    runs = max(1, cdiv(m, groups * chunk))  # one at least: `join` looks at offsets as soon as the launch before it is its own operator's
    long = max(0, runs - config["cut"] * processors(x)) if chunk >= 4 * LEAST else runs
    runs = long + cdiv(max(0, m - long * groups * chunk), groups * chunk // 4)
    partial, opened = x.new_empty((2 * runs, n), dtype=torch.float32), offsets.new_empty((runs, 2), dtype=torch.int64)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    launch(RUNS, f"runs<{types}, {width}, {lanes}, {config['rows']}>", runs * strips, BLOCK, out, partial, opened, x, offsets, m, e, n, stride, strips,
           chunk.bit_length() - 1, long)  # fmt: skip
    four = 1 if n % 4 else 4
    grid = max(cdiv(runs, JOIN // 8), cdiv(e, JOIN)), min(STRIPS, cdiv(n, 8 * four))
    launch(RUNS, f"join<{types}, {four}>", grid, JOIN, out, partial, opened, offsets, m, e, n, runs)
    return out


def pick(call):
    """As an H200 has them: of rows of up to 256 bytes half as many runs and none cut, next to nothing; of longer ones eight rows of a group at a time, a
    twenty-fifth, and the last cut, a hundredth."""
    x = call["x"]
    return CHUNKS[6] if x.shape[1] * x.itemsize <= 256 else CHUNKS[1]


FORWARD = (
    Kernel("cuda.v6_runs", in_runs, "short runs of rows, what crosses within one joined in shared memory", lambda call: off_gpu(call["x"]), CHUNKS,
           pick, sources=(RUNS,), limits=Limits(spill_bytes_elsewhere=4)),
)  # fmt: skip
