"""One product, the vendor's or where ours is faster our own, for operators that have products in them."""

import torch

from rooftile.cuda import cublaslt
from rooftile.ops._shared import hopper_products
from rooftile.ops._shared.reference import wide

WIDE, SHORT = (
    2**14,
    1024,
)  # columns from which, and summands up to which, tiles that leave beside the next ones' products are faster: the head of a GPT-2


def product(left, right, bias=None, *, dtype=None, out=None, add=None):
    """left right + bias, made in `out` or a new tensor of `dtype`; or left right + `add`, which is `out` itself, or a tensor of left's dtype. float32
    of 16-bit factors is not rounded on the way.

    PyTorch takes the first algorithm of cuBLASLt's heuristic; where another is known to be faster, it is asked for here. And PyTorch copies first what
    is added to, unless that is `out`: so that is asked for here as well.
    """
    (m, k), n, kind = left.shape, right.shape[1], (dtype or left.dtype) if out is None else out.dtype
    if n >= WIDE and k <= SHORT and add is None and kind == left.dtype and _on_hopper(left, right, bias, out):
        return hopper_products.product(left, right, bias, out)
    ours = (add is not None and add is not out) or cublaslt.preferred(left.device, m, n, k)
    if ours and _read_as_they_lie(left, right, bias, kind) and all(t is None or cublaslt.rows_or_columns(t) for t in (out, add)):
        made = left.new_empty(m, n, dtype=kind) if out is None else out
        cublaslt.product(made, left, right, bias=bias, add=add)
        return made
    if bias is not None:
        return torch.addmm(bias, left, right) if out is None else torch.addmm(bias, left, right, out=out)
    low = left.dtype == kind
    if out is None:
        if add is not None:
            return torch.addmm(add, left, right)
        if low or left.is_cuda:
            return torch.mm(left, right) if low else torch.mm(left, right, out_dtype=dtype)
        return torch.mm(wide(left), wide(right))
    beta = int(add is not None)
    if low or left.is_cuda:
        more = {} if low else {"out_dtype": out.dtype}
        return torch.addmm(out, left, right, beta=beta, out=out, **more) if beta or more else torch.mm(left, right, out=out)
    return torch.addmm(out, wide(left), wide(right), beta=beta, out=out)


def _on_hopper(left, right, bias, out):
    """Whether our own product takes these, and has tiles enough to go round."""
    if not left.is_cuda or torch.cuda.get_device_capability(left.device) != (9, 0):
        return False
    few = hopper_products.too_few(left, left.shape[0], right.shape[1])
    return few is None and hopper_products.cannot(left, right, bias, out) is None


def _read_as_they_lie(left, right, bias, kind):
    """Whether cuBLASLt can."""
    if left.dtype == torch.float32 or right.shape[1] % 8 or cublaslt.off_gpu(left) is not None:
        return False
    if bias is not None and (kind != left.dtype or not bias.is_contiguous() or bias.data_ptr() % 16):
        return False
    return cublaslt.rows_or_columns(left) and cublaslt.rows_or_columns(right)
