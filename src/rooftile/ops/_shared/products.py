"""One product by the vendor, for operators that have products in them."""

import torch

from rooftile.cuda import cublaslt
from rooftile.ops._shared.reference import wide


def product(left, right, bias=None, *, dtype=None, out=None, add=False):
    """left right + bias, made in `out` or a new tensor of `dtype`; or added to what `out` holds. float32 of 16-bit factors is not rounded on the way.

    PyTorch takes the first algorithm of cuBLASLt's heuristic; where another is known to be faster, it is asked for here.
    """
    if _better(left, right, bias, dtype if out is None else out.dtype) and (out is None or cublaslt.rows_or_columns(out)):
        made = left.new_empty(left.shape[0], right.shape[1], dtype=dtype) if out is None else out
        cublaslt.product(made, left, right, bias=bias, add=add)
        return made
    if bias is not None:
        return torch.addmm(bias, left, right) if out is None else torch.addmm(bias, left, right, out=out)
    low = left.dtype == (dtype or left.dtype if out is None else out.dtype)
    if out is None:
        if low or left.is_cuda:
            return torch.mm(left, right) if low else torch.mm(left, right, out_dtype=dtype)
        return torch.mm(wide(left), wide(right))
    if low or left.is_cuda:
        more = {} if low else {"out_dtype": out.dtype}
        return torch.addmm(out, left, right, beta=int(add), out=out, **more) if add or more else torch.mm(left, right, out=out)
    return torch.addmm(out, wide(left), wide(right), beta=int(add), out=out)


def _better(left, right, bias, dtype):
    """Whether cuBLASLt has an algorithm that we prefer for these, and can read them as they lie."""
    (m, k), n = left.shape, right.shape[1]
    if not cublaslt.preferred(left.device, m, n, k) or left.dtype == torch.float32 or n % 8 or cublaslt.off_gpu(left) is not None:
        return False
    if bias is not None and (dtype not in (None, left.dtype) or not bias.is_contiguous() or bias.data_ptr() % 16):
        return False
    return cublaslt.rows_or_columns(left) and cublaslt.rows_or_columns(right)
