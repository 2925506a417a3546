"""Rows of a table. Floor: forward the rows asked for read once and all written; backward dout read once and dweight written once.

Backward without atomics: the tokens are sorted (stable, by torch), so that a row of the weight owns one segment of tokens, and a
program adds up segments in their order. Long segments are cut at the multiples of CHUNK: a first kernel adds every whole chunk that
belongs to one token, on as many programs as there are chunks, and the second adds head, chunks and tail. Rows nobody asked for get
their zeros from the same store, so dweight is written once.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2, resident, rows
from rooftile.ops._shared.policy import evict_last
from rooftile.ops.embedding.reference import check_indices

TILE = 4096
CHUNK = 32  # 32768 tokens in one segment are 1024 chunks: 64 steps of 16 for the program that adds them
SEARCH = 1024  # segment borders a program looks for


@triton.jit
def _forward(gIndices, gW, gOut, M, V, N, stride_w, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr):
    i_m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    i_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    i_v = tl.load(gIndices + i_m, mask=i_m < M, other=0)
    inside = (i_v >= 0) & (i_v < V)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rW = tl.load(gW + i_v[:, None] * stride_w + i_n[None, :], mask=mask & inside[:, None], other=float("nan"), eviction_policy=POLICY)
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rW, mask=mask)


@triton.jit
def _keys(gIndices, gKeys, M, V, base, BLOCK: tl.constexpr):
    """Indices as the narrowest integers that hold them, from `base` up; one outside the weight becomes V, the last segment, whose
    gradient goes nowhere. A radix sort passes over its keys once a byte, and the 8 of an int64 are mostly zeros."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i_v = tl.load(gIndices + i, mask=i < M, other=0)
    i_v = tl.where((i_v >= 0) & (i_v < V), i_v, V)
    tl.store(gKeys + i, (i_v + base).to(gKeys.dtype.element_ty), mask=i < M)


@triton.jit
def _rows_of(gDout, gOrder, i_j, valid, i_n, in_n, stride_dout):
    """The gradients of the tokens at sorted places i_j, zero where not valid."""
    i_m = tl.load(gOrder + i_j, mask=valid, other=0)
    return tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=valid[:, None] & in_n[None, :], other=0.0).to(tl.float32)


@triton.jit
def _prepare(gDout, gSorted, gOrder, gBorders, gPartial, M, V, N, stride_dout, padding, base, searches, steps,
             CHUNK: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """The first programs find where each row's segment begins; the others add the chunks that are one token throughout."""
    i_p = tl.program_id(0)
    if i_p < searches:
        i_v = i_p * BLOCK_V + tl.arange(0, BLOCK_V)
        low = tl.zeros([BLOCK_V], tl.int32)
        high = tl.full([BLOCK_V], 0, tl.int32) + M
        for _ in range(steps):
            open_ = low < high
            middle = (low + high) // 2
            before = tl.load(gSorted + middle, mask=open_, other=0).to(tl.int32) - base < i_v
            low = tl.where(open_ & before, middle + 1, low)
            high = tl.where(open_ & (before == 0), middle, high)
        tl.store(gBorders + i_v, low, mask=i_v <= V)
    else:
        strips = tl.cdiv(N, BLOCK_N)
        chunk = (i_p - searches) // strips
        i_n = (i_p - searches) % strips * BLOCK_N + tl.arange(0, BLOCK_N)
        in_n = i_n < N
        first = tl.load(gSorted + chunk * CHUNK).to(tl.int32) - base
        last = tl.load(gSorted + chunk * CHUNK + CHUNK - 1).to(tl.int32) - base
        if (first == last) & (first != padding) & (first != V):
            i_j = chunk * CHUNK + tl.arange(0, CHUNK)
            rSum = tl.sum(_rows_of(gDout, gOrder, i_j, i_j >= 0, i_n, in_n, stride_dout), 0)
            tl.store(gPartial + chunk.to(tl.int64) * N + i_n, rSum, mask=in_n)


@triton.jit
def _cut(start, end, CHUNK: tl.constexpr):
    """A segment's whole chunks [first, last), and how many of its tokens lie before them."""
    first, last = tl.cdiv(start, CHUNK), end // CHUNK
    last = tl.maximum(first, last)
    head = tl.where(last > first, first * CHUNK, end) - start
    return first, last, head


@triton.jit
def _segments(gDout, gOrder, gBorders, gPartial, gDw, V, N, stride_dout, padding,
              CHUNK: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """dweight for ROWS rows: DEPTH tokens of each at a time, STEPS times; then, for rows that have more, the whole tile on one row."""
    STEPS: tl.constexpr = 4 if DEPTH == 1 else 2  # 16 rows share a program where tokens are rare: few have more than 4
    i_v0 = tl.program_id(0) * ROWS
    i_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = i_n < N
    i_r = tl.arange(0, ROWS * DEPTH)
    i_v = i_v0 + i_r // DEPTH
    start = tl.load(gBorders + i_v, mask=i_v < V, other=0)
    end = tl.load(gBorders + i_v + 1, mask=i_v < V, other=0)
    end = tl.where(i_v == padding, start, end)
    first, last, head = _cut(start, end, CHUNK)
    rSum = tl.zeros([ROWS * DEPTH, BLOCK_N], tl.float32)
    for i in tl.static_range(STEPS):
        i_k = i * DEPTH + i_r % DEPTH
        i_j = start + i_k + tl.where(i_k < head, 0, (last - first) * CHUNK)
        rSum += _rows_of(gDout, gOrder, i_j, i_j < end, i_n, in_n, stride_dout)
    rSum = tl.sum(tl.reshape(rSum, [ROWS, DEPTH, BLOCK_N]), 1)
    for r in range(ROWS):
        v = tl.minimum(i_v0 + r, V - 1)
        begin = tl.load(gBorders + v)
        stop = tl.where(v == padding, begin, tl.load(gBorders + v + 1))
        chunk, chunks, before = _cut(begin, stop, CHUNK)
        single = stop - begin - (chunks - chunk) * CHUNK
        if (single > STEPS * DEPTH) | (chunks > chunk):
            rMore = tl.zeros([ROWS * DEPTH, BLOCK_N], tl.float32)
            for k in range(STEPS * DEPTH, single, ROWS * DEPTH):
                i_more = begin + k + i_r + tl.where(k + i_r < before, 0, (chunks - chunk) * CHUNK)
                rMore += _rows_of(gDout, gOrder, i_more, i_more < stop, i_n, in_n, stride_dout)
            for c in range(chunk, chunks, ROWS * DEPTH):
                i_c = c + i_r
                in_c = (i_c < chunks)[:, None] & in_n[None, :]
                rMore += tl.load(gPartial + i_c.to(tl.int64)[:, None] * N + i_n[None, :], mask=in_c, other=0.0)
            rSum += tl.where((tl.arange(0, ROWS) == r)[:, None], tl.sum(rMore, 0)[None, :], 0.0)
    i_w = i_v0 + tl.arange(0, ROWS)
    mask = (i_w < V)[:, None] & in_n[None, :]
    tl.store(gDw + i_w.to(tl.int64)[:, None] * N + i_n[None, :], rSum.to(gDw.dtype.element_ty), mask=mask)


def embedding(indices, weight, padding_idx):
    check_indices(indices, weight.shape[0])
    weight, v, n, stride = rows(weight)
    out = weight.new_empty((*indices.shape, n))
    indices = indices.contiguous()
    m, block = indices.numel(), min(power_of_2(n), 512 // weight.itemsize)  # of 768 columns no lane is idle, as of 1024 a quarter are
    per = min(TILE // block, 32)
    launch(_forward, (cdiv(m, per), cdiv(n, block)), indices, weight, out, m, v, n, stride, ROWS=per, BLOCK_N=block,
           POLICY=evict_last(out), num_warps=4)  # fmt: skip
    return out


def embedding_backward(dout, indices, weight, padding_idx):
    v, n = weight.shape
    dweight = weight.new_empty((v, n))
    dout, _, _, stride = rows(dout)
    indices = indices.contiguous()
    m = indices.numel()
    narrow = v < 2**16  # and v itself, for those outside
    base = -(2**15) if narrow else 0
    keys = indices.new_empty(m, dtype=torch.int16 if narrow else torch.int32)
    launch(_keys, (cdiv(m, SEARCH),), indices, keys, m, v, base, BLOCK=SEARCH, num_warps=4)
    ordered, order = keys.sort(stable=True)
    block = min(512 // dout.itemsize, max(16, power_of_2(n)))  # 512 bytes of a row; 1024 spill in float32
    searches, strips = cdiv(v + 1, SEARCH), cdiv(n, block)
    borders = dout.new_empty(v + 1, dtype=torch.int32)
    partial = dout.new_empty((m // CHUNK, n), dtype=torch.float32)
    launch(_prepare, (searches + m // CHUNK * strips,), dout, ordered, order, borders, partial, m, v, n, stride, padding_idx,
           base, searches, m.bit_length(), CHUNK=CHUNK, BLOCK_V=SEARCH, BLOCK_N=block, num_warps=4)  # fmt: skip
    # 16 rows a program where the weight has many, one where it has few: 8 programs a multiprocessor at least
    per = min(16, max(1, power_of_2(v * strips // resident(dout, 8) + 1) // 2))
    launch(_segments, (cdiv(v, per), strips), dout, order, borders, partial, dweight, v, n, stride, padding_idx,
           CHUNK=CHUNK, ROWS=per, DEPTH=16 // per, BLOCK_N=block, num_warps=4)  # fmt: skip
    return dweight


FORWARD = (Kernel("triton", embedding, "several rows a program, 16 bytes a lane", lambda call: off_gpu(call["weight"])),)
BACKWARD = (
    Kernel("triton", embedding_backward, "sorted tokens, segments added in order, long ones in chunks", lambda call: off_gpu(call["dout"])),
)
