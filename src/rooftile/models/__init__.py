"""Models built from the operators."""

from rooftile.models.config import GPT2Config
from rooftile.models.gpt2 import GPT2
from rooftile.models.llama import Llama
from rooftile.models.llama_config import LLAMA_1_2B, LlamaConfig
from rooftile.models.llama_operators import LlamaOperators, llama_operators
from rooftile.models.operators import KERNELS, Operators, operators

__all__ = [
    "GPT2",
    "KERNELS",
    "LLAMA_1_2B",
    "GPT2Config",
    "Llama",
    "LlamaConfig",
    "LlamaOperators",
    "Operators",
    "llama_operators",
    "operators",
]
