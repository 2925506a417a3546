"""For which GPU a launch is, where a config or an instruction hangs on it."""

from torch import Tensor
from triton.runtime import driver

from rooftile.ops._shared.launch import DRY


def architecture(x: Tensor) -> int:
    """90 for sm_90; of a GPU that is not there, the one compiled for; 0 of a CPU."""
    return driver.active.get_current_target().arch if x.is_cuda or DRY else 0
