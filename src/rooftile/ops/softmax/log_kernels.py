"""Logarithm of softmax. Floor: 2 tensors through memory forward, 3 backward; 5 operations an element and one exponential.

The kernels of triton_kernels.py with LOG set: rows in registers, and rows of any length that are read twice, backward dout alone.
"""

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops.softmax.triton_kernels import (
    MAX_ROW,
    any_length,
    softmax,
    softmax_backward,
    softmax_backward_online,
    softmax_online,
    upto,
)


def log_softmax(x):
    return softmax(x, log=True)


def log_softmax_online(x):
    return softmax_online(x, log=True)


def log_softmax_backward(dout, out):
    return softmax_backward(dout, out, scale=None, log=True)


def log_softmax_backward_online(dout, out):
    return softmax_backward_online(dout, out, scale=None, log=True)


LIMITS = Limits(spill_bytes=16)  # ptxas parks two to four registers of short or misaligned rows, with room for many more

FORWARD = (
    Kernel("triton", log_softmax, "the row in registers: one read", upto(MAX_ROW), limits=LIMITS),
    Kernel(
        "triton.online",
        log_softmax_online,
        "a running maximum and sum: any length, two reads",
        any_length,
        limits=LIMITS,
    ),
)
BACKWARD = (
    Kernel("triton", log_softmax_backward, "both rows in registers: one read of each", upto(MAX_ROW // 4), limits=LIMITS),
    Kernel("triton.online", log_softmax_backward_online, "any length, dout twice", any_length, limits=LIMITS),
)
