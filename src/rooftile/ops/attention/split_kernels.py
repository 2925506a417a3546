"""A few queries over many keys, split along the keys: attention_decode's kernels where each sequence has all of its keys. Floor: keys and values pass
once, 2 B S G D x 2 bytes. A tile of queries a program would be B H programs, each of 64 rows and more for the few there are, and heads that share keys
would each read them."""

import torch

import rooftile.ops.attention_decode.api  # noqa: F401  fills OPS
from rooftile.core.kernel import OPS, Kernel, Limits
from rooftile.core.replay import lookup
from rooftile.ops._shared.constants import lasting
from rooftile.ops._shared.launch import off_gpu
from rooftile.ops.attention.refusals import wider_values

QUERIES, NARROWEST, WIDEST = 16, 16, 256  # the most that a sequence has; of D the least and the most


def _alone(number):
    return (number,)


def _lengths(q, k):
    """int32 [B], all of them S."""
    return lookup(lasting, _alone, (k.shape[1],), q.device).view(torch.int32)[:1].expand(q.shape[0])


def attention(q, k, v, causal, scale):
    return OPS["attention_decode"].launch(q, k, v, _lengths(q, k), None, None, scale, 0, 0.0)


def attention_options(q, k, v, sinks, bias, constant_bias, mask, seed, scale, left, right, softcap, p, deterministic=False):
    return OPS["attention_decode"].launch(q, k, v, _lengths(q, k), None, sinks, scale, left + 1, softcap)


def _refuse(call):
    q, (t, d) = call["q"], call["q"].shape[1::2]
    if q.dtype == torch.float32:
        return "its products are of 16-bit numbers, the tensor is float32"
    if t > QUERIES or not NARROWEST <= d <= WIDEST:
        return f"T={t} and D={d}: it is written for {QUERIES} queries at most and D of {NARROWEST} to {WIDEST}"
    if q.shape[2] == 0:
        return "there are no heads"
    for name in "kv":
        if call[name].stride(-1) != 1:
            return f"the last axis of {name} has stride {call[name].stride(-1)}; a copy would cost more than the attention"
    return wider_values(call) or off_gpu(q)


def _refuse_plain(call):
    t = call["q"].shape[1]
    if t > 1 and not call["causal"]:
        return f"{t} queries that all see every key: here each sees one more than the one before it"
    return _refuse(call)


def _refuse_options(call):
    given = next((n for n in ("bias", "constant_bias", "mask", "seed") if call[n] is not None), None)
    if given is not None:
        return f"a {given} was given: of the options it knows windows, sinks and soft caps"
    t, right = call["q"].shape[1], call["right"]
    if t > 1 and right != 0:
        return f"{t} queries and right={right}: here each sees one key more than the one before it"
    return _refuse(call)


IDEA = "keys split over the multiprocessors, added up in order; 16 queries at most"
# 17 to 32 rows by four warps and tiles of 128 keys: eight registers of them spill, and an H200 takes a twelfth less with them than by eight warps without
SPILLS = Limits(spill_bytes=32, spill_bytes_elsewhere=64)
KERNELS = (Kernel("triton.split", attention, IDEA, _refuse_plain, limits=SPILLS),)
OPTIONS = (Kernel("triton.split", attention_options, IDEA, _refuse_options, limits=SPILLS),)
