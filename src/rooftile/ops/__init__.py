"""The operators: one folder each, one line here."""

from rooftile.ops.adamw.api import AdamW, adamw
from rooftile.ops.attention.api import attention
from rooftile.ops.gelu.api import GELU, gelu
from rooftile.ops.gemm.api import Linear, gemm, linear
from rooftile.ops.softmax.api import Softmax, softmax
from rooftile.ops.vector_add.api import vector_add

__all__ = ["GELU", "AdamW", "Linear", "Softmax", "adamw", "attention", "gelu", "gemm", "linear", "softmax", "vector_add"]
