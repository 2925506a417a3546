"""Models built from the operators."""

from rooftile.models.config import GPT2Config
from rooftile.models.gpt2 import GPT2
from rooftile.models.heads import KERNELS, operators
from rooftile.models.operators import Operators

__all__ = ["GPT2", "KERNELS", "GPT2Config", "Operators", "operators"]
