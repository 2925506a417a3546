"""Models built from the operators."""

from .gpt2 import GPT2, GPT2Config
from .operators import KERNELS, Operators, operators

__all__ = ["GPT2", "KERNELS", "GPT2Config", "Operators", "operators"]
