"""log_softmax, and softmax of scores under a scale and masks, in CUDA C++: the kernels of the softmax ladder's rungs, told what is done to an
element and what is written (cuda/include/rooftile/softmax.cuh)."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import alone, any_row, even, upto, wider_than
from rooftile.ops._shared.cuda_shares import ALL, VISIT, VISIT_BACKWARD, visits
from rooftile.ops._shared.few_rows import for_many
from rooftile.ops._shared.launch import cdiv, dense_like, power_of_2, row, rows
from rooftile.ops.softmax.cuda_kernels import (
    AHEAD,
    ONLINE,
    PIPELINE,
    V3,
    V5,
    V6,
    V8,
    V9,
    by_asking,
    by_block,
    by_block_backward,
    by_reading_once,
    by_rows_backward,
    by_visits,
    by_visits_backward,
    parked,
    pick_ahead,
    pick_exchange,
    pick_online,
    pick_pipeline,
)
from rooftile.ops.softmax.masked_kernels import mask_bytes

V10 = Source.beside(__file__, "v10_once.cu")
ROWS = 2**31 - 1  # of scores: their head and their token are found by divisions of 32 bits


def log_block_row(x):
    return by_block(x, f"log_softmax<{CTYPE[x.dtype]}>")


def log_online(x, *, config):
    return by_reading_once(x, f"log_softmax<{CTYPE[x.dtype]}", config)


def log_exchange(x, *, config):
    return by_visits(x, "log_softmax", config)


def log_ahead(x, *, config):
    return by_asking(x, "log_softmax", config)


def log_exchange_backward(dout, out, *, config):
    return by_visits_backward(dout, out, "LogSoftmaxGradient", config)


def log_block_row_backward(dout, out):
    return by_block_backward(dout, out, "LogSoftmaxGradient, false")


def log_pipeline_backward(dout, out, *, config):
    return by_rows_backward(dout, out, "LogSoftmaxGradient, false", config)


def _said(flag):
    return "true" if flag else "false"


def _scores(x, mask, causal):
    """The start of an instance, the mask, and what places a row under it."""
    _, h, t, _ = x.shape
    mask_tensor, strides = mask_bytes(mask, x) if mask is not None else (x.new_empty(0, dtype=torch.uint8), (0, 0, 0))
    return f"masked_softmax<{CTYPE[x.dtype]}, {_said(mask is not None)}, {_said(causal)}", mask_tensor, (h, t, *strides)


def masked_block_row(x, mask, scale, causal):
    instance, mask_tensor, place = _scores(x, mask, causal)
    return by_block(x, f"{instance}>", mask_tensor, *place, scale)


def masked_online(x, mask, scale, causal, *, config):
    instance, mask_tensor, place = _scores(x, mask, causal)
    return by_reading_once(x, instance, config, (mask_tensor,), (*place, scale))


def masked_once(x, mask, scale, causal, *, config):
    """A part of a warp a row where that leaves it `vecs` vectors a thread, else a block."""
    instance, mask_tensor, place = _scores(x, mask, causal)
    out = dense_like(x)
    x, m, n, stride = rows(x)
    vectors = n * x.itemsize // 16
    lanes = min(1024, max(8, power_of_2(cdiv(vectors, config["vecs"]))))
    block = config["threads"] if lanes <= 32 else lanes
    instance = f"{instance}, {lanes}, {cdiv(vectors, lanes)}, {block}>"
    launch(V10, instance, cdiv(m, block // lanes), block, out, x, mask_tensor, m, n, stride, *place, scale)
    return out


def masked_block_row_backward(dout, out, scale, causal):
    return by_block_backward(dout, out, f"SoftmaxGradient, {_said(causal)}", out.shape[2], scale)


def masked_pipeline_backward(dout, out, scale, causal, *, config):
    return by_rows_backward(dout, out, f"SoftmaxGradient, {_said(causal)}", config, out.shape[2], scale)


def _counted(call):
    x = row(call)
    m = x.numel() // x.shape[-1] if x.shape[-1] else 0
    return None if m <= ROWS else f"there are {m} rows, more than the {ROWS} that it counts"


def _in_registers(call):
    return _masked(call) or wider_than(call["x"], 4)


def _masked(call):
    """Every row of the mask begins at a multiple of as many bytes as 16 bytes of x have elements, and hidden elements may wait as -inf."""
    x, mask = call["x"], call["mask"]
    if why := even({n: t for n, t in call.items() if n != "mask"}) or _counted(call):
        return why
    if not call["scale"] > 0:
        return f"scale is {call['scale']}: hidden elements wait as -inf, which a scale above 0 leaves as it is"
    if mask is None or (mask.stride(-1) != 1 and mask.shape[-1] != 1):  # which is copied
        return None
    width = 16 // x.itemsize
    past = 0 if mask.device.type == "meta" else mask.data_ptr() % width
    if past:
        return f"mask begins {past} bytes past a multiple of {width}, and it reads {width} bytes of it at a time"
    for axis in range(mask.dim() - 1):
        if mask.shape[axis] > 1 and mask.stride(axis) % width:
            return f"rows of mask are {mask.stride(axis)} bytes apart, no multiple of the {width} it reads at a time"
    return None


LOG_FORWARD = for_many(
    Kernel(
        "cuda.v9_ahead",
        log_ahead,
        "the row in shared memory by the copy engine, a block more a multiprocessor",
        visits(16 * 512),
        AHEAD,
        pick_ahead,
        sources=(V9,),
        limits=ALL,
        declines=alone,
        architectures=(90,),
    ),
    Kernel(
        "cuda.v8_exchange",
        log_exchange,
        "blocks of a cluster wait for numbers alone, the row waits",
        visits(8 * 512),
        VISIT,
        pick_exchange,
        sources=(V8,),
        declines=parked,
    ),
    Kernel("cuda.v5_online", log_online, "one read: running maximum and sum, the row parked", even, ONLINE, pick_online, sources=(V5,)),
    Kernel("cuda.v3_block_row", log_block_row, "a block a row", any_row, sources=(V3,)),
)
LOG_BACKWARD = (
    Kernel("cuda.v8_exchange", log_exchange_backward, "blocks of a cluster wait for numbers alone", visits(4 * 1024), VISIT_BACKWARD, pick_exchange,
           sources=(V8,), declines=alone),
    Kernel("cuda.v6_pipeline", log_pipeline_backward, "row after row a block, the next ones in flight", upto(4), PIPELINE, pick_pipeline,
           sources=(V6,)),
    Kernel("cuda.v3_block_row", log_block_row_backward, "a block a row, two reads", any_row, sources=(V3,)),
)  # fmt: skip
ONCE = tuple({"vecs": v, "threads": t} for v, t in ((2, 128), (4, 64), (4, 128), (4, 256), (8, 128), (1, 128)))
MASKED_FORWARD = (
    Kernel("cuda.v10_once", masked_once, "the row as float32 in registers: each exponential once", _in_registers, ONCE, sources=(V10,)),
    Kernel("cuda.v5_online", masked_online, "one read of what it may look at, the row parked", _masked, ONLINE, pick_online, sources=(V5,)),
    Kernel("cuda.v3_block_row", masked_block_row, "a block a row", lambda call: any_row(call) or _counted(call), sources=(V3,)),
)


def _pick_causal(call):
    """A third more blocks than there is room for: rows are of any length, and whoever is done first takes the next."""
    config = pick_pipeline(call)
    return {**config, "per": config["per"] * 4 // 3} if call["causal"] else config


def _whole(call):
    """Why Triton is sooner, or None."""
    return None if call["causal"] else "rows are read from end to end, which Triton's programs do sooner"


MASKED_BACKWARD = (
    Kernel("cuda.v6_pipeline", masked_pipeline_backward, "row after row a block, the next ones in flight",
           lambda call: upto(4)(call) or _counted(call), PIPELINE, _pick_causal, sources=(V6,), declines=_whole),
    Kernel("cuda.v3_block_row", masked_block_row_backward, "a block a row, two reads", lambda call: any_row(call) or _counted(call),
           sources=(V3,)),
)  # fmt: skip
