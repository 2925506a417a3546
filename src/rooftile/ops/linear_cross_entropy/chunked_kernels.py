"""The head's product and its loss over chunks of rows. Floor: 2 M K V operations forward, 4 M K V more for both gradients.

The logits of a chunk are made, turned into their loss, overwritten by their gradient and multiplied on, in one buffer. Products are the
vendor's (_shared/products.py), the loss and its gradient are cross_entropy's own kernels, whichever it chooses for the chunk.

    bytes     of an element of the logits: written by the product, read by the loss, written by the gradient (which reads it again for
              "none"), read by two products: 10 in 16 bits, against 6 K operations; of an element of the weight's gradient 8 a chunk, as it
              is added up in float32, and 2 where all rows are one chunk
    ahead     a mean's or sum's gradient is made in the forward pass, with the loss, for dloss / count = 1 and scaled in the backward pass:
              M K + V K multiplications. Scaled late, a mean over many rows does not sink below what float16 can say.
    none      there dloss has a number for each row, and the weight's gradient, summed over rows, cannot be scaled afterwards. To scale before
              the sum would keep the whole gradient of the logits, 2 M V bytes; to make the logits again is 2 M K V operations, a third
              more than ahead, and no memory.
"""

import torch

import rooftile.ops.cross_entropy.api  # noqa: F401  fills OPS
from rooftile.core.kernel import OPS, Kernel
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.products import product
from rooftile.ops.cross_entropy.reference import check_target

FULL = 2048  # rows a product needs: the accumulator's 8 bytes at 4.2 TB/s take as long as 2 operations a row at 750 TFLOP/s do for 714
TILE = 128  # rows of a tile of the vendor's products


def all_at_once(x, weight, chunk):
    """Up to 2 K rows of bfloat16 logits weigh no more than the float32 sums of the weight's gradient, which more chunks than one would take: one writes that
    gradient as it is handed on. float16 cannot say it before it is scaled, and a float32 weight's is float32 anyway."""
    m, k = x.shape
    return x.dtype == weight.dtype == torch.bfloat16 and m <= (2 * k if chunk is None else chunk)


def chunk_rows(m, k, v, full=FULL):
    """Rows whose logits take the memory of x, M K / V, but not fewer than `full`; chunks of one size, in whole tiles."""
    most = max(full, m * k // max(1, v))
    even = cdiv(m, max(1, cdiv(m, most)))
    return max(1, min(m, cdiv(even, TILE) * TILE))


def _with_gradients(x, weight, chunk):
    """Rows of a chunk: K at least, as a 16-bit gradient of the weight, 2 V K bytes, comes to lie beside the sums when no logits are left."""
    (m, k), v = x.shape, weight.shape[0]
    return chunk or chunk_rows(m, k, v, max(FULL, k))


def _chunks(x, weight, target, bias, ignore_index, chunk):
    """Chunk by chunk: its rows, and its logits in a buffer that the next chunk takes over."""
    m, v = x.shape[0], weight.shape[0]
    check_target(target, v, ignore_index)
    size = min(m, chunk)
    whole = cdiv(v, 8) * 8  # rows begin at whole 16 bytes, for wide loads and the tensor cores, where V = 50257 would not
    buffer = x.new_empty(size, whole)
    buffer[:, v:].zero_()  # a CPU's bfloat16 products (AMX) read it too, and multiply it by zeros: a NaN that lay there would come through
    buffer = buffer[:, :v]
    for begin in range(0, m, max(1, size)):
        rows = slice(begin, min(m, begin + size))
        logits = buffer[: rows.stop - begin]
        yield rows, product(x[rows], weight.t(), bias, out=logits)


def _reduced(row, target, ignore_index, reduction):
    count = (target != ignore_index).sum().float() if reduction == "mean" else row.new_ones(())
    return row if reduction == "none" else row.sum() / count, count


class _Gradients:
    """Of x a chunk at a time, of weight and bias added up over the chunks: the bias's in float32, the weight's in `sums`; None: of x alone."""

    def __init__(self, x, weight, bias, sums):
        (m, k), v = x.shape, weight.shape[0]
        make = x.new_empty if m else x.new_zeros
        self.x, self.weight, self.dx = x, weight, make(m, k)
        self.dweight = None if sums is None else make(v, k, dtype=sums)
        self.dbias = None if bias is None or sums is None else make(v, dtype=torch.float32)

    def add(self, rows, g):
        product(g, self.weight, out=self.dx[rows])
        if self.dweight is not None:
            # 16 bits in, float32 out where there are several: no rounding between chunks; the first finds nothing to add to
            product(g.t(), self.x[rows], out=self.dweight, add=self.dweight if rows.start else None)
        if self.dbias is not None:
            torch.add(self.dbias if rows.start else 0, g.sum(0, dtype=torch.float32), out=self.dbias)


def _low(x, *parameters):
    """Weight and bias in x's dtype, without autograd's eyes on them."""
    return [None if p is None else p.detach().to(x.dtype) for p in parameters]


def forward(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, chunk):
    settings = (ignore_index, label_smoothing, z_loss, softcap)
    weight, bias = _low(x, weight, bias)
    row = x.new_empty(x.shape[0], dtype=torch.float32)
    for rows, logits in _chunks(x, weight, target, bias, ignore_index, chunk or chunk_rows(*x.shape, weight.shape[0])):
        row[rows] = OPS["cross_entropy"].launch(logits, target[rows], *settings, "none")[0]
    return _reduced(row, target, ignore_index, reduction)


def _ahead(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, rows_at_once, sums):
    weight, bias = _low(x, weight, bias)
    row = x.new_empty(x.shape[0], dtype=torch.float32)
    made = _Gradients(x, weight, bias, sums)
    for rows, logits in _chunks(x, weight, target, bias, ignore_index, rows_at_once):
        row[rows] = OPS["cross_entropy_ahead"].launch(logits, target[rows], ignore_index, label_smoothing, z_loss, softcap)
        made.add(rows, logits)
    return *_reduced(row, target, ignore_index, reduction), made


def ahead(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, chunk, sums):
    rows_at_once = _with_gradients(x, weight, chunk) if sums == "float32" else x.shape[0]
    loss, count, made = _ahead(
        x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, rows_at_once, getattr(torch, sums)
    )
    return loss, count, made.dx, made.dweight, loss.new_empty(0) if bias is None else made.dbias


def frozen(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, chunk):
    """Two products of three, and no sums: chunks are the forward's."""
    rows_at_once = chunk or chunk_rows(*x.shape, weight.shape[0])
    loss, count, made = _ahead(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, rows_at_once, None)
    return loss, count, made.dx


def _scaled(t, like, dloss, count):
    # Nothing but padding: no gradient, as PyTorch has it. With an axis, or a number beside 16 bits would be rounded to them first.
    return torch.mul(t, torch.where(count > 0, dloss / count, 0).view(1), out=t.new_empty(t.shape, dtype=like.dtype))


def ahead_backward(dloss, weight, bias, count, gx, gweight, gbias):
    dbias = gx.new_empty(0) if bias is None else _scaled(gbias, bias, dloss, count)
    return _scaled(gx, gx, dloss, count), _scaled(gweight, weight, dloss, count), dbias


def frozen_backward(dloss, count, gx):
    return _scaled(gx, gx, dloss, count)


def backward(dloss, x, weight, target, bias, count, ignore_index, label_smoothing, z_loss, softcap, chunk):
    settings = (ignore_index, label_smoothing, z_loss, softcap)
    low, low_bias = _low(x, weight, bias)
    whole = all_at_once(x, weight, chunk)
    made = _Gradients(x, low, low_bias, x.dtype if whole else torch.float32)
    for rows, logits in _chunks(x, low, target, low_bias, ignore_index, x.shape[0] if whole else _with_gradients(x, low, chunk)):
        _, _, *saved = OPS["cross_entropy"].launch(logits, target[rows], *settings, "none")
        OPS["cross_entropy_overwrite"].launch(dloss[rows] if dloss.dim() else dloss, logits, target[rows], count, *saved, *settings)
        made.add(rows, logits)
    dbias = x.new_empty(0) if bias is None else made.dbias.to(bias.dtype)
    return made.dx, made.dweight.to(weight.dtype), dbias


def _refuse(name):
    def refuse(call):
        where = call[name].device
        if where.type == "meta":
            return f"its products are PyTorch's, which computes nothing on {where}"
        return None

    return refuse


def _kernel(run, idea, name):
    return (Kernel("chunked", run, idea, _refuse(name)),)


FORWARD = _kernel(forward, "chunks of rows in one buffer: the logits are never whole", "x")
BACKWARD = _kernel(backward, "each chunk's logits made again and overwritten by their gradient", "x")
AHEAD = _kernel(ahead, "each chunk's logits overwritten by their gradient while they are there", "x")
FROZEN = _kernel(frozen, "each chunk's logits overwritten by their gradient and multiplied on once, to x's", "x")
FROZEN_BACKWARD = _kernel(frozen_backward, "what the forward made, scaled by one number", "gx")
AHEAD_BACKWARD = _kernel(ahead_backward, "what the forward made, scaled by one number", "gx")
