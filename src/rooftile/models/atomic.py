"""Files that are either the old one or the new one, never a part of it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_file", "atomic_folder", "sync_folder"]

TEMPORARY = ".rooftile-tmp-"  # what a killed writer may leave behind begins with this


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut; file systems without folder handles are left alone."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well, and vanishes when it raises.

    The bytes are on the disk (fsync) before the name points to them, so a kill at any instant leaves the old file.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f"{TEMPORARY}{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes it private; a result is as readable as any other file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike) -> Iterator[Path]:
    """Yield a folder to fill. A new `folder` appears in one rename; in an existing one each file is replaced by a rename."""
    if not os.fspath(folder):
        raise ValueError("the folder to write is '', which names none: the current one is '.'")
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{folder.name}-", dir=folder.parent))
    try:
        yield made
        made.chmod(0o777 & ~_umask())
        if not folder.exists():
            made.rename(folder)
        else:  # it may hold files of others (a tokenizer, a licence): those stay
            for file in sorted(made.iterdir(), key=lambda f: f.name == "config.json"):
                os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    sync_folder(folder.parent)


def _umask() -> int:
    """The process's file mask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
