"""LayerNorm in CUDA C++: from sums halved in shared memory to rows that arrive while the one before them is written."""

import functools

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import launch
from rooftile.ops._shared.cuda_norms import (
    CLUSTER_BACKWARD,
    ELSEWHERE,
    GRADIENTS,
    Shape,
    any_row,
    at,
    cluster,
    clusters,
    forward_rungs,
    one_column,
    pick_cluster_backward,
    pick_gradients,
    pick_shared,
    pick_short_moments,
    pipeline,
    said,
    serial,
    shared,
    sources,
    statistics,
    turns,
    types,
    upto,
)
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.cuda_rows import alone, deal
from rooftile.ops._shared.cuda_shares import ALL, SHARE, Hold, share, stays
from rooftile.ops._shared.launch import cdiv, row, rows
from rooftile.ops._shared.norms import LAYER, gradients, outputs

SOURCES = sources(__file__)
V1, V6, V7, V8 = SOURCES[0], *SOURCES[5:8]


def _forward(source, shape):
    def run(x, weight, bias, eps, *, config=None, save=True):
        out, _, mean, rstd = outputs(x, None, LAYER, save)
        x, m, n, stride = rows(x)
        w, b = at(weight, x), at(bias, x)
        s = shape(x, m, n, config, weight, bias)
        instance = f"layernorm<{types(x, w, b)}, {said(weight is not None, bias is not None)}{s.instance}>"
        s = s.placed(x, m, source, instance)
        launch(source, instance, s.grid, s.block, out, *statistics(x, mean, rstd), x, w, b, *s.rows, n, stride, eps, shared=s.shared)
        return out, mean, rstd

    return run


def naive_backward(dout, x, weight, bias, mean, rstd):
    _, dx, dweight, dbias = gradients(dout, x, weight, bias, LAYER)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    w, b = at(weight, x), at(bias, x)
    there = weight is not None, bias is not None
    instance = f"layernorm_backward<{types(x, w)}, {said(there[0])}>"
    launch(V1, instance, m, 256, dx, dout, x, w, mean, rstd, n, stride_dout, stride_x)
    if any(there):
        to_w, to_b = dx if weight is None else dweight, dx if bias is None else dbias
        instance = f"columns<{types(x, w, b)}, {said(*there)}>"
        launch(V1, instance, cdiv(n, 256), 256, to_w, to_b, dout, x, mean, rstd, m, n, stride_dout, stride_x)
    return dx, dweight, dbias


def _backward(source, shape):
    def run(dout, x, weight, bias, mean, rstd, *, config):
        _, dx, dweight, dbias = gradients(dout, x, weight, bias, LAYER)
        dout, m, n, stride_dout = rows(dout)
        x, _, _, stride_x = rows(x)
        mean, rstd, w = mean.contiguous(), rstd.contiguous(), at(weight, x)
        there = weight is not None, bias is not None
        s = shape(x, m, n, config, weight)
        instance = f"layernorm_backward<{types(x, w)}, {said(*there)}{s.instance}>"
        s = s.placed(x, m, source, instance)
        partial = x.new_empty((2 * s.partials * any(there), n), dtype=torch.float32)
        launch(source, instance, s.grid, s.block, dx, partial, dout, x, w, mean, rstd, m, n, stride_dout, stride_x, shared=s.shared)
        if any(there):
            add_rows(partial, dweight, dbias)
        return dx, dweight, dbias

    return run


def _turns(call):
    """Two sums a column: rows of 4 vectors a lane leave a multiprocessor one block of 8 rows, and Triton's programs do sooner."""
    x = row(call)
    size = x.shape[-1] * x.itemsize
    return turns(call) or (
        f"rows of {size} bytes and two sums a column leave a multiprocessor 256 threads" if 1536 < size <= 2048 else None
    )


def _wider_than_one(call):
    return any_row(call) or one_column(call)


def _sums(x):
    """Two sums a column: 16 registers a vector of 16-bit elements."""
    return Hold(1, 4) if x.itemsize == 2 else Hold(2, 4)


def _shared_sums(x, m, n, config, weight):
    """Of a thread's four vectors of a 16-bit weight one is in registers: what it leaves is room for a third row of two blocks a multiprocessor."""
    beside = stays(x, weight)
    s, less = (share(x, config, _sums(x), 2, b) for b in (beside, beside * 3 // 4))
    if s.vecs == 4 and x.itemsize == 2 and beside == 16 and (s.cluster, s.vecs, s.threads) == (less.cluster, less.vecs, less.threads):
        s = less
    return Shape(f", {s.instance}", 0, s.threads, (m,), s.shared, shares=s)


def _pick_shared_sums(call):
    picked = pick_shared({"cluster": 8, "vecs": 4, "stages": 3, "per": 3})(call)
    return picked | {"stages": 3} if picked["per"] == 2 else picked


WIDEST = 512  # 1024 threads of 64 registers would spill


def _two_rows(x, m, n, config, *parameters):
    """Whether a row has just as many columns as its threads: then no vector is asked whether it is there."""
    dealt = {"tensors": 2, "most": 4, "widest": WIDEST}
    s, d = pipeline(x, m, n, config, *parameters, **dealt), deal(x, config, **dealt)
    return s._replace(instance=f"{s.instance}, {said(n * x.itemsize == 16 * d.lanes * d.vecs)}")


CLUSTERED = functools.partial(cluster, tensors=2, widest=WIDEST)

FORWARD = forward_rungs(_forward, SOURCES, serial(4096), serial(4096), ELSEWHERE, pick_short_moments)
BACKWARD = (
    Kernel("cuda.v8_exchange", _backward(V8, _shared_sums), "numbers travel while the row before is written, the weight stays",
           shared(2, _sums, 2, "weight"), ({"cluster": 8, "vecs": 4, "stages": 3, "per": 2}, *SHARE),
           _pick_shared_sums, sources=(V8, ADD_ROWS), declines=alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", _backward(V7, CLUSTERED), "a cluster of blocks a row", clusters(2), CLUSTER_BACKWARD, pick_cluster_backward,
           sources=(V7, ADD_ROWS), limits=ELSEWHERE, declines=alone),
    Kernel("cuda.v6_pipeline", _backward(V6, _two_rows), "row after row, the weight and the parameters' gradients in registers", upto(2), GRADIENTS,
           pick_gradients, sources=(V6, ADD_ROWS), declines=_turns),
    Kernel("cuda.v1_naive", naive_backward, "a block a row, then a thread a column", _wider_than_one, sources=(V1,)),
)  # fmt: skip
