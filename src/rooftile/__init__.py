"""Rooftile: the transformer's GPU kernels, from the naive version to the hardware's limit, and the workbench that proves it."""

from rooftile.ops import *  # noqa: F403
from rooftile.ops import __all__ as _operators
from rooftile.patching import patch

__all__ = [*_operators, "patch"]
__version__ = "0.1.0"
