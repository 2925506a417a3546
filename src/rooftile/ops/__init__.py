"""The operators: one folder each, one line here."""

from rooftile.ops.adamw.api import AdamW, adamw
from rooftile.ops.array_increment.api import array_increment
from rooftile.ops.attention.api import attention
from rooftile.ops.cross_entropy.api import CrossEntropyLoss, cross_entropy
from rooftile.ops.dropout.api import Dropout, dropout
from rooftile.ops.embedding.api import Embedding, embedding
from rooftile.ops.gelu.api import GELU, gelu
from rooftile.ops.gemm.api import Linear, gemm, linear
from rooftile.ops.layernorm.api import LayerNorm, add_layernorm, layernorm
from rooftile.ops.softmax.api import Softmax, softmax
from rooftile.ops.vector_add.api import vector_add

__all__ = [
    "GELU",
    "AdamW",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Softmax",
    "adamw",
    "add_layernorm",
    "array_increment",
    "attention",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "gemm",
    "layernorm",
    "linear",
    "softmax",
    "vector_add",
]
