"""The operators: one folder each, one line here."""

from rooftile.core.kernel import force_from_environment
from rooftile.ops.cross_entropy.api import CrossEntropyLoss, cross_entropy
from rooftile.ops.dropout.api import Dropout, dropout
from rooftile.ops.embedding.api import Embedding, embedding
from rooftile.ops.layernorm.api import LayerNorm, layernorm
from rooftile.ops.softmax.api import Softmax, softmax
from rooftile.ops.vector_add.api import vector_add

__all__ = ["CrossEntropyLoss", "Dropout", "Embedding", "LayerNorm", "Softmax", "cross_entropy", "dropout", "embedding", "layernorm", "softmax", "vector_add"]

force_from_environment()
