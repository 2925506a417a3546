"""Activations and their slopes for Triton kernels. One exponential and one reciprocal each; with loads, stores and conversions 15 to 35
instructions an element: beside the 6 or 10 bytes a gated bf16 element moves, in whose time an H200 issues 42 or 70, they do not show."""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _normal(x):
    """(Phi(-|x|), exp(-x^2/2)) of the normal distribution. Phi(-|x|) is the exponential times a polynomial in t = 1/(1 + c |x|), fitted to
    erfcx with a relative error of 1.2e-7: half the instructions of erf, and the left tail keeps its digits, which 1 + erf(x) cancels."""
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.30405593 * tl.abs(x))
    p = 0.036265437 * t - 0.15280125
    p = p * t + 0.18785577
    p = p * t - 0.03928613
    p = p * t + 0.12158278
    p = p * t + 0.103017375
    p = p * t + 0.122103326
    p = p * t + 0.121262655
    return p * t * bell, bell


@triton.jit
def activate(x, ACT: tl.constexpr):
    if ACT == "silu":
        y = x * _sigmoid(x)
    elif ACT == "relu":
        y = tl.where(x <= 0, 0.0, x)  # a NaN stays one
    elif ACT == "gelu_tanh":  # 0.5 (1 + tanh z) = sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3)
        y = x * _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        tl.static_assert(ACT == "gelu")
        tail, _ = _normal(x)
        y = tl.maximum(x, 0.0) - tl.abs(x) * tail  # x Phi(x), whatever x's sign
    return y


@triton.jit
def activate_with_slope(x, ACT: tl.constexpr):
    if ACT == "silu":
        s = _sigmoid(x)
        y = x * s
        d = s * (1.0 + x * (1.0 - s))
    elif ACT == "relu":
        y = tl.where(x <= 0, 0.0, x)
        d = tl.where(x <= 0, 0.0, 1.0)
    elif ACT == "gelu_tanh":
        s = _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        y = x * s
        d = s + y * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    else:
        tl.static_assert(ACT == "gelu")
        tail, bell = _normal(x)
        phi = tl.where(x < 0, tail, 1.0 - tail)
        y = x * phi
        d = phi + x * 0.3989422804014327 * bell
    return y, d
