"""Quantisation in CUDA C++: a block of elements at a time through shared memory, then in registers, 16 bytes an access.

Bytes of 16-bit elements: 3 an element, 5 with one scale for everything, 3 on the way back. The conversion to 8-bit floats is an instruction for
two elements from sm_89 on, before that a dozen an element. In the time of 3 bytes at 4.2 TB/s an H200 issues 20 instructions of a lane; an
element takes 6 to 8.
"""

import functools

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import misaligned
from rooftile.ops._shared.cuda_rows import too_long, uneven, wider_than
from rooftile.ops._shared.launch import cdiv, power_of_2, processors
from rooftile.ops.quantize.reference import extents, scale_shape
from rooftile.ops.quantize.triton_kernels import matrix

V1, V2, V3 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector", "v3_packed"))
NARROW = {"int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
FIRST = 1024  # threads of a block of the first pass, with 4 vectors each


def _outputs(x, m, n, to, block_m, block_n):
    return x.new_empty((m, n), dtype=NARROW[to]), x.new_empty(scale_shape(m, n, block_m, block_n), dtype=torch.float32)


def naive(x, to, block_m, block_n, power):
    if block_m == 0:
        x = x.contiguous()
        values, scale = _outputs(x, *x.shape, to, 0, 0)
        _naive_whole(x, values, scale, scale.new_empty(0, dtype=torch.int32), power)
        return values, scale
    x, m, n, stride = matrix(x)
    values, scale = _outputs(x, m, n, to, block_m, block_n)
    high, wide = extents(x, block_m, block_n)
    across = cdiv(n, wide) if block_n else 1
    launch(V1, f"blocks<{CTYPE[x.dtype]}, {CTYPE[values.dtype]}>", cdiv(m, high) * across, 256, values, scale, x, m, n, stride, high, wide,
           across, power)  # fmt: skip
    return values, scale


def naive_affine(x):
    x, (values, scale, zero) = x.contiguous(), _affine_outputs(x)
    _naive_whole(x, values, scale, zero, False)
    return values, scale, zero


def _affine_outputs(x):
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty((), dtype=torch.float32), x.new_empty((), dtype=torch.int32)


def _naive_whole(x, values, scale, zero, power):
    total = x.numel()
    parts = max(1, min(cdiv(total, 256), 8 * processors(x)))
    ends = x.new_empty((2, parts), dtype=torch.float32)
    affine = "true" if zero.numel() else "false"
    launch(V1, f"extremes<{CTYPE[x.dtype]}>", parts, 256, ends, x, total)
    launch(V1, f"decide<{CTYPE[values.dtype]}, {affine}>", 1, 256, scale, zero, ends, parts, power)
    launch(V1, f"whole<{CTYPE[x.dtype]}, {CTYPE[values.dtype]}, {affine}>", cdiv(total, 256), 256, values, x, scale, zero, total)


def vector(x, to, block_m, block_n, power, *, config):
    if block_m == 0:
        x = x.contiguous()
        values, scale = _outputs(x, *x.shape, to, 0, 0)
        _vector_whole(x, values, scale, scale.new_empty(0, dtype=torch.int32), power, config)
        return values, scale
    x, m, n, stride = matrix(x)
    values, scale = _outputs(x, m, n, to, block_m, block_n)
    deal = dealt(n * x.itemsize // 16, block_m, block_n * x.itemsize // 16, config)
    lanes, _, threads = deal
    across = cdiv(n, block_n) if block_n else 1
    instance = f"blocks<{CTYPE[x.dtype]}, {CTYPE[values.dtype]}, {block_m}, {block_n}, {', '.join(map(str, deal))}>"
    launch(V2, instance, cdiv(cdiv(m, block_m) * across, threads // lanes), threads, values, scale, x, m, n, stride, across, power)
    return values, scale


def dealt(row, block_m, side, config):
    """(lanes, vectors a lane, threads) for blocks of elements of `side` vectors a row, or of a whole row of `row`."""
    vectors = block_m * (side or row)
    if not side:
        lanes = min(1024, max(8, power_of_2(cdiv(vectors, config["vecs"]))))
    elif block_m == 1:
        lanes = max(1, vectors // config["vecs"])
    else:
        lanes = min(1024, vectors // config["vecs"])
    return lanes, max(1, cdiv(vectors, lanes)), lanes if lanes > 32 else config["threads"]


@functools.lru_cache
def _l2(device):
    return torch.cuda.get_device_properties(device).L2_cache_size


def _ends(x, affine, config):
    """The ends that each block of the first pass meets, and how many blocks. The L2 is asked to hold on to the end of x, `keep` eighths of its size,
    where the second pass begins. Simulated: of 256 KB."""
    total, width = x.numel(), 16 // x.itemsize
    parts = max(1, min(cdiv(total, FIRST * 4 * width), config["per"] * processors(x)))
    ends = x.new_empty((2, parts), dtype=torch.float32)
    keep = max(0, total - (_l2(x.device) if x.is_cuda else 1 << 18) * config["keep"] // 8 // x.itemsize)
    launch(V2, f"extremes<{CTYPE[x.dtype]}, {affine}, 4, {FIRST}>", parts, FIRST, ends, x, total, keep)
    return ends, parts


def _blocks(x, config):
    return max(1, cdiv(x.numel(), config["vecs"] * config["threads"] * (16 // x.itemsize)))


def _vector_whole(x, values, scale, zero, power, config):
    affine, threads = "true" if zero.numel() else "false", config["threads"]
    ends, parts = _ends(x, affine, config)
    launch(V2, f"whole<{CTYPE[x.dtype]}, {CTYPE[values.dtype]}, {affine}, {config['vecs']}, {threads}>", _blocks(x, config), threads,
           values, scale, zero, x, ends, parts, x.numel(), power)  # fmt: skip


def vector_affine(x, *, config):
    x, (values, scale, zero) = x.contiguous(), _affine_outputs(x)
    _vector_whole(x, values, scale, zero, False, config)
    return values, scale, zero


def packed_affine(x, *, config):
    x, (values, scale, zero) = x.contiguous(), _affine_outputs(x)
    ends, parts = _ends(x, "true", config)
    instance = f"whole<{CTYPE[x.dtype]}, {config['vecs']}, {config['threads']}>"
    launch(V3, instance, _blocks(x, config), config["threads"], values, scale, zero, x, ends, parts, x.numel())
    return values, scale, zero


def _back(values, scale, zero, block_m, block_n, to):
    """What both ways back begin with: rows, the result, the types of an instance, a scale's rows and columns."""
    x, m, n, stride = matrix(values)
    out = values.new_empty((m, n), dtype=getattr(torch, to))
    scale = scale.contiguous()
    types = f"{CTYPE[x.dtype]}, {CTYPE[out.dtype]}, {'false' if zero is None else 'true'}"
    return x, m, n, stride, out, scale, scale if zero is None else zero, types, extents(x, block_m, block_n)


def naive_dequantize(values, scale, zero, block_m, block_n, to):
    x, m, n, stride, out, scale, shift, types, (high, wide) = _back(values, scale, zero, block_m, block_n, to)
    shift = shift if zero is not None else x.new_empty(0, dtype=torch.int32)
    launch(V1, f"dequantize<{types}>", cdiv(m * n, 256), 256, out, x, scale, shift, m, n, stride, high, wide)
    return out


def vector_dequantize(values, scale, zero, block_m, block_n, to, *, config):
    x, m, n, stride, out, scale, shift, types, (high, wide) = _back(values, scale, zero, block_m, block_n, to)
    shift = shift if zero is not None else x.new_empty(0, dtype=torch.int32)
    if stride == n and (block_m == 0 or (block_n == 128 and block_m == 1 and n % 128 == 0)):  # all of it is one row
        m, n, stride, high, wide = 1, m * n, m * n, 1, 128 if block_m else max(1, m * n)
    tiles = max(1, cdiv(n, config["threads"] * config["vecs"] * (16 // out.itemsize)))
    launch(V2, f"dequantize<{types}, {config['vecs']}, {config['threads']}>", m * tiles, config["threads"], out, x, scale, shift, n, tiles, stride,
           high, wide, max(1, cdiv(n, wide)))  # fmt: skip
    return out


def _any(call):
    return off_gpu(call["x"] if "x" in call else call["values"])


def _even(call):
    """16-byte accesses: of a matrix whose scale is one, only where it begins; else of every row."""
    if call.get("block_m", 0) == 0:
        return _any(call) or misaligned(16, {"x": call["x"]})
    if (call["block_m"], call["block_n"]) == (1, 0):
        return _any(call) or uneven({"x": call["x"]}) or wider_than(call["x"], 8)
    return _any(call) or too_long(call["x"]) or uneven({"x": call["x"]}) or too_many(call["x"], call["block_m"])


def too_many(x, block_m):
    count = cdiv(x.shape[0], block_m) * cdiv(x.shape[1], 128)
    return None if count < 2**31 else f"x has {count} blocks of elements, it counts up to {2**31 - 1}"


def _even_back(call):
    values, width = call["values"], 16 // getattr(torch, call["to"]).itemsize
    if values.is_contiguous() and call["block_m"] == 0:
        return _any(call) or misaligned(width, {"values": values})
    apart = values.stride(0) if values.stride(-1) == 1 else values.shape[1]
    if values.shape[1] % width or apart % width:
        return f"rows of values are {values.shape[1]} bytes and {apart} apart, no multiples of the {width} it reads at a time"
    return _any(call) or misaligned(width, {"values": values.reshape(-1)[:1] if values.stride(-1) != 1 else values})


def pick(call):
    """32 bytes a thread in flight: of 1024 to 2048 threads 32 to 64 KB a multiprocessor, where 4.2 TB/s at 700 ns ask for 22, and of more a row
    waits longer for its last element. A square of 128 x 128 has 256 threads of 4 vectors, so that several of 32 KB take turns at the barrier."""
    if call.get("block_m", 0) == 128:
        return {"vecs": 4, "threads": 256, "per": 2, "keep": 6}
    if call.get("block_m", 0) == 1 and call.get("block_n", 0) == 0 and call["x"].shape[-1] * call["x"].itemsize <= 1 << 16:
        return {"vecs": 2, "threads": 256, "per": 2, "keep": 6}
    return {"vecs": 2, "threads": 512, "per": 4, "keep": 8}


CONFIGS = tuple(
    {"vecs": v, "threads": t, "per": p, "keep": k}
    for v, t, p, k in ((4, 256, 2, 6), (8, 256, 2, 6), (2, 256, 2, 6), (4, 128, 2, 6), (4, 512, 2, 4), (2, 512, 4, 8), (4, 256, 2, 0), (8, 128, 2, 7), (4, 256, 4, 6))
)  # fmt: skip
PACKED = tuple({"vecs": v, "threads": t, "per": 2, "keep": k} for v, t, k in ((4, 512, 4), (4, 256, 6), (4, 128, 6), (2, 256, 6)))
BACK = tuple({"vecs": v, "threads": t} for v, t in ((4, 256), (2, 256), (8, 128), (4, 128), (2, 512)))

FORWARD = (
    Kernel("cuda.v2_vector", vector, "16 bytes an access, a block of elements in registers", _even, CONFIGS, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "256 threads a block of elements, read twice", _any, sources=(V1,)),
)
AFFINE = (
    Kernel(
        "cuda.v3_packed",
        packed_affine,
        "the unit that converts rounds and saturates, bytes are packed",
        _even,
        PACKED,
        sources=(V3, V2),
    ),
    Kernel("cuda.v2_vector", vector_affine, "16 bytes an access, from the end the second time", _even, CONFIGS, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", naive_affine, "the ends, the scale, the bytes: three launches", _any, sources=(V1,)),
)
DEQUANTIZE = (
    Kernel("cuda.v2_vector", vector_dequantize, "16 bytes a store, several in flight", _even_back, BACK, sources=(V2,)),
    Kernel("cuda.v1_naive", naive_dequantize, "a thread an element", _any, sources=(V1,)),
)
