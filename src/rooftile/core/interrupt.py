"""Ctrl-C while the command line is imported, PyTorch with it: for seconds there is nothing to save, and nobody who would say more than a traceback. It ends
the process at once, as a shell tells by 130; `heard` gives it back to Python, which raises KeyboardInterrupt. Imported first; programs of others are left as they are."""

import signal
import sys
from pathlib import Path


def _is_the_command() -> bool:
    """`rooftile`, or `python -m rooftile`, of which Python says only -m until the package is imported."""
    return Path(sys.argv[0]).stem == "rooftile" or (sys.argv[0] == "-m" and "rooftile" in sys.orig_argv)


def heard() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
