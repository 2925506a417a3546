"""RMSNorm in CUDA C++: from sums halved in shared memory to rows that arrive while the one before them is written."""

import functools

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import launch
from rooftile.ops._shared.cuda_norms import (
    CLUSTER_BACKWARD,
    ELSEWHERE,
    GRADIENTS,
    any_row,
    at,
    cluster,
    clusters,
    exchange,
    forward_rungs,
    pick_cluster_backward,
    pick_gradients,
    pick_shared,
    pick_short_sums,
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
from rooftile.ops._shared.cuda_rows import alone
from rooftile.ops._shared.cuda_shares import ALL, SHARE, Hold
from rooftile.ops._shared.launch import cdiv, rows
from rooftile.ops._shared.norms import RMS, gradients, outputs

SOURCES = sources(__file__)
V1, V6, V7, V8 = SOURCES[0], *SOURCES[5:8]


def _forward(source, shape):
    def run(x, weight, eps, offset, *, config=None, save=True):
        out, _, _, rstd = outputs(x, None, RMS, save)
        x, m, n, stride = rows(x)
        w = at(weight, x)
        s = shape(x, m, n, config, weight)
        instance = f"rmsnorm<{types(x, w)}, {said(weight is not None)}{s.instance}>"
        s = s.placed(x, m, source, instance)
        launch(source, instance, s.grid, s.block, out, *statistics(x, rstd), x, w, *s.rows, n, stride, eps, offset, shared=s.shared)
        return out, rstd

    return run


def naive_backward(dout, x, weight, rstd, offset):
    _, dx, dweight, _ = gradients(dout, x, weight, None, RMS)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    rstd, w = rstd.contiguous(), at(weight, x)
    instance = f"rmsnorm_backward<{types(x, w)}, {said(weight is not None)}>"
    launch(V1, instance, m, 256, dx, dout, x, w, rstd, n, stride_dout, stride_x, offset)
    if weight is not None:
        launch(V1, f"columns<{types(x, weight)}>", cdiv(n, 256), 256, dweight, dout, x, rstd, m, n, stride_dout, stride_x)
    return dx, dweight


def _backward(source, shape):
    def run(dout, x, weight, rstd, offset, *, config):
        _, dx, dweight, _ = gradients(dout, x, weight, None, RMS)
        dout, m, n, stride_dout = rows(dout)
        x, _, _, stride_x = rows(x)
        rstd, w, there = rstd.contiguous(), at(weight, x), weight is not None
        s = shape(x, m, n, config, weight)
        instance = f"rmsnorm_backward<{types(x, w)}, {said(there)}{s.instance}>"
        s = s.placed(x, m, source, instance)
        partial = x.new_empty((s.partials * there, n), dtype=torch.float32)
        launch(source, instance, s.grid, s.block, dx, partial, dout, x, w, rstd, m, n, stride_dout, stride_x, offset, shared=s.shared)
        if there:
            add_rows(partial, dweight)
        return dx, dweight

    return run


def _sums(x):
    """A sum a column: 8 registers a vector of 16-bit elements."""
    return Hold(2, 4) if x.itemsize == 2 else Hold(4, 8)


def _shared_sums(x, m, n, config, *parameters):
    return exchange(x, m, n, config, *parameters, tensors=2, hold=_sums(x))


def two_rows(x, m, n, config, *parameters):
    """1024 threads have 64 registers, for the sums and the weight of one vector; of more, 512 threads have 128."""
    return pipeline(x, m, n, config, *parameters, tensors=2, most=4, widest=1024 if n * x.itemsize <= 1 << 14 else 512)


def pick_backward(call):
    """Rows of 16 KB go to 1024 threads with a vector each, not to half as many with two: a sum a column leaves them the registers."""
    alone_with_one = 1 << 13 < call["x"].shape[-1] * call["x"].itemsize <= 1 << 14
    return {**pick_gradients(call), **({"vecs": 1} if alone_with_one else {})}


FORWARD = forward_rungs(_forward, SOURCES, any_row, serial(65537), Limits(), pick_short_sums)
CLUSTERED = functools.partial(cluster, tensors=2)
BACKWARD = (
    Kernel("cuda.v8_exchange", _backward(V8, _shared_sums), "numbers travel while the row before is written, the weight stays",
           shared(2, _sums, 2, "weight"), SHARE,
           pick_shared({"cluster": 2, "vecs": 2, "stages": 6, "per": 1}), sources=(V8, ADD_ROWS), declines=alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", _backward(V7, CLUSTERED), "a cluster of blocks a row", clusters(2), CLUSTER_BACKWARD, pick_cluster_backward,
           sources=(V7, ADD_ROWS), declines=alone),
    Kernel("cuda.v6_pipeline", _backward(V6, two_rows), "row after row, the weight and its gradient in registers", upto(2), GRADIENTS,
           pick_backward, sources=(V6, ADD_ROWS), limits=ELSEWHERE, declines=turns),
    Kernel("cuda.v1_naive", naive_backward, "a block a row, then a thread a column", any_row, sources=(V1,)),
)  # fmt: skip
