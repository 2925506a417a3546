"""Rooftile: the transformer's GPU kernels, from the naive version to the hardware's limit, and the workbench that proves it."""

from rooftile.core import interrupt as _interrupt  # noqa: F401  before what takes seconds

try:
    from rooftile.ops import *  # noqa: F403
except ModuleNotFoundError as error:
    if error.name != "triton":
        raise
    raise ImportError("rooftile's kernels are written in Triton, which is not installed: pip install triton, published for Linux") from None
from rooftile.ops import __all__ as _operators
from rooftile.patching import patch

__all__ = [*_operators, "patch"]
__version__ = "0.1.0"
