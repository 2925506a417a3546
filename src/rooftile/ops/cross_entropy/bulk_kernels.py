"""Long rows with a soft cap, by the copy engine: what leads to the next copies is one thread's work, and eight vectors a thread share the rest."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.source import Source
from rooftile.ops.cross_entropy.cuda_kernels import TOTAL, _even, _forward, _persistent

V8 = Source.beside(__file__, "v8_bulk.cu")
SHORT = 1 << 15  # bytes of a row


def bulk(*call, config):
    return _forward(V8, _persistent(config), *call)


def _plain(call):
    """Bound by bytes in v3 as well; with smoothing, or in float32, no vector goes the quick way."""
    x, cap = call["logits"], call["softcap"]
    if not cap or call["label_smoothing"] or x.itemsize != 2:
        return "no soft cap of 16-bit logits without smoothing: of others the sums cost less than their bytes, or as much as in v3_online"
    size = x.shape[1] * x.itemsize
    return f"a row of {size} bytes is shorter than the {SHORT} of a stage" if size < SHORT else None


BULK = tuple(
    {"threads": t, "vecs": v, "stages": s, "per": p} for t, v, s, p in ((256, 8, 2, 3), (512, 4, 3, 2), (256, 4, 3, 4), (128, 8, 2, 6))
)
FORWARD = (
    Kernel(
        "cuda.v8_bulk",
        bulk,
        "whole stages of a row by the copy engine",
        _even,
        BULK,
        architectures=(90,),
        sources=(V8, TOTAL),
        declines=_plain,
    ),
)
