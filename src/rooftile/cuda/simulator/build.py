"""g++ makes a library of a kernel, and one of the runtime; both are kept on disk under a digest of all that they are made from."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rooftile.core.record import cache_folder
from rooftile.cuda.simulator.rewrite import rewritten
from rooftile.cuda.source import Function, Source

HERE = Path(__file__).parent
# Small functions are inlined: a __half that goes by value straight from memory into a call is a read that g++ announces nowhere.
# Lines are wanted of what goes wrong and no variables: following those takes g++ longer. -fno-tree-sra: a float4 is loaded as
# 16 bytes and not as four floats. trace-pc: a loop without memory accesses gives way too. auto-var-init: a fiber's new stack is zeros, and a
# sum that begins with what nobody has set came out right. -fwrapv: an index of 32 bits goes round, and is not made one of 64.
TRACED = [
    "-x", "c++", "-std=c++17", "-fPIC", "-O1", "-fno-semantic-interposition", "-finline-small-functions", "-g1", "-gdwarf-4", "-fno-tree-sra",
    "-fno-var-tracking", "-fno-var-tracking-assignments",
    "-fno-strict-aliasing", "-fwrapv", "-fno-exceptions", "-fno-gnu-unique",
    "-ffp-contract=off", "-fno-math-errno", "-fno-finite-loops", "-fsanitize=thread", "--param", "tsan-distinguish-volatile=1",
    "--param", "tsan-instrument-func-entry-exit=0", "-fsanitize-coverage=trace-pc", "-fsanitize=bounds", "-fstack-clash-protection", "-ftrivial-auto-var-init=pattern", "-w",
]  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A kernel's library, loaded. `kinds` says what each parameter is: p and the pointee's kind, or a kind; f i u b h c and a size."""

    library: ctypes.CDLL
    path: Path
    entry: int
    code: tuple[int, int]
    kinds: tuple[str, ...]


_lock = threading.RLock()
_built: dict[tuple[object, ...], Built] = {}


def compiler() -> str:
    name = os.environ.get("CXX") or "g++"
    found = _which(name, os.environ.get("PATH"))
    if found is None:
        raise ValueError(f"the simulator compiles with g++, and there is no {name} on the PATH: install g++ 12 or later")
    return found


_which = functools.cache(lambda name, path: shutil.which(name, path=path))  # asked at every launch


@functools.cache
def _version(gxx: str) -> str:
    said = [subprocess.run([gxx, word], capture_output=True, text=True, check=False).stdout for word in ("--version", "-dumpmachine")]
    return "".join(said)


def folder() -> Path:
    path = cache_folder() / "simulator"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the cache folder {path} cannot be made ({error.strerror}): point ROOFTILE_CACHE at one that can be written"
        ) from error
    return path


@functools.lru_cache
def _rewritten(state: tuple[object, ...], source: Source) -> dict[str, str]:
    """Once for all of a file's instances, while none of its files changes."""
    return rewritten(source)


def kernel(source: Source, function: Function, symbols: tuple[str, ...] = ()) -> Built:
    state = _state(source)
    key = (state, function.instance, symbols, compiler(), str(cache_folder()))
    with _lock:
        if key not in _built:
            texts = _rewritten(state, source)
            path = _path(source, texts, function, symbols)
            runtime()
            try:
                _built[key] = _load(path)
            except OSError:  # not there, or cut short
                _build_kernels(source, {path: function}, symbols, texts)
                _built[key] = _load(path)
        return _built[key]


def ahead(source: Source, instances: Iterable[str]) -> None:
    """What will be launched of one file, where it is not there yet, by one run of g++: half the time of a run for each. What does not compile is left
    to its launch, which says why."""
    with _lock, contextlib.suppress(ValueError):
        texts = _rewritten(_state(source), source)
        wanted = {_path(source, texts, function, ()): function for function in map(source.function, instances)}
        absent = {path: function for path, function in wanted.items() if not path.exists()}
        if absent:
            _build_kernels(source, absent, (), texts)


def _state(source: Source) -> tuple[object, ...]:
    return tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in source.files)


def _path(source: Source, texts: dict[str, str], function: Function, symbols: tuple[str, ...]) -> Path:
    digest = _digest("".join(f"{n}\n{t}\n" for n, t in texts.items()), function.instance, *symbols)
    return folder() / f"{re.sub(r'[^A-Za-z0-9]+', '_', source.path.stem)}-{digest}.so"


def _tag(path: Path) -> str:
    """What a kernel's functions are called by in a library that may hold several."""
    return path.stem.rpartition("-")[2]


@functools.cache
def runtime() -> ctypes.CDLL:
    """Loaded for all to see: kernels' libraries find their callbacks in it."""
    digest = _digest("".join(p.read_text() for p in sorted((HERE / "runtime").iterdir()) if p.is_file()))
    path = folder() / f"runtime-{digest}.so"
    with contextlib.suppress(OSError):
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    with _alone():
        try:
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:  # nobody has built it while we waited
            _publish([compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", "-fno-exceptions", str(HERE / "runtime" / "runtime.cpp")], path)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _digest(*parts: str) -> str:
    device = "".join(p.read_text() for p in sorted((HERE / "device").iterdir()) if p.is_file())
    return hashlib.sha256("\0".join([*parts, *TRACED, device, _version(compiler())]).encode()).hexdigest()[:20]


def _build_kernels(source: Source, kernels: dict[Path, Function], symbols: tuple[str, ...], texts: dict[str, str]) -> None:
    """One library, which then lies at the path of each."""
    with tempfile.TemporaryDirectory(prefix="rooftile-") as scratch:
        for name, text in texts.items():
            Path(scratch, name).write_text(text, encoding="utf-8")
        first = next(iter(texts))
        unit = [f'#include "{first}"', *(f"ROOFTILE_ENTRY({_tag(path)}, ({function.instance}))" for path, function in kernels.items())]
        unit += [f"ROOFTILE_SYMBOL({i}, {name})" for i, name in enumerate(symbols)]
        Path(scratch, "unit.cpp").write_text("\n".join([*unit, ""]), encoding="utf-8")
        standard = any(re.search(r"^[ \t]*#[ \t]*include[ \t]*<(?!cuda)", t, re.M) for t in texts.values())
        traced = [*TRACED, *(["-DROOFTILE_STANDARD_HEADERS"] if standard else [])]
        words = ["-I", scratch, "-I", str(_precompiled(traced)), "-I", str(HERE / "device"), "-include", "before.h", f"{scratch}/unit.cpp"]
        made = Path(scratch, "unit.o")
        _run([compiler(), *traced, *words, "-I", f"{scratch}/absent", "-c", "-o", str(made)], scratch, source)
        path, *others = kernels
        _publish([compiler(), "-shared", "-nostdlib", str(made), "-lgcc"], path)  # libc and libm come with the runtime
        for other in others:
            with contextlib.suppress(OSError):  # it has come meanwhile; or, where there are no links, it is built when it is launched
                os.link(path, other)


def _precompiled(traced: list[str]) -> Path:
    """A folder with what every kernel begins with, as g++ has read it once for all: it takes a .gch that it comes across before the header."""
    path = folder() / f"before-{_digest(*traced)}"
    made = path / "before.h.gch"
    if not made.exists():
        with _alone():
            if not made.exists():
                header = ["c++-header" if word == "c++" else word for word in traced]
                _publish([compiler(), *header, str(HERE / "device" / "before.h")], made)
    return path


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Of processes that begin together one builds what all of them need, for seconds, and the others wait. A folder that cannot be locked, as on some
    networks, costs those seconds twice and nothing else: what is built comes by rename."""
    held = os.open(folder(), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)  # which lets go


def _publish(command: list[str], path: Path) -> None:
    """To a name of its own, then renamed: whoever reads sees a whole file or none."""
    try:
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
    except OSError as error:
        raise ValueError(
            f"the cache folder {path.parent} cannot be written ({error.strerror}): point ROOFTILE_CACHE at one that can"
        ) from error
    try:
        _run([*command, "-o", name], "", None)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _run(command: list[str], scratch: str, source: Source | None) -> None:
    absent: list[str] = []
    while True:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env={**os.environ, "LC_ALL": "C"})
        if done.returncode == 0:
            return
        lines = [line.replace(scratch + "/", "") if scratch else line for line in done.stderr.splitlines()]
        first = next((line for line in lines if re.search(r":\d+(:\d+)?: (fatal )?error: ", line)), lines[0] if lines else "no message")
        if source is None:
            raise ValueError(f"{command[0]} cannot build the simulator's part, for {folder()}: {first}")  # a full disk, or no g++
        # Headers that are not here are mostly the host code's, and that has been left out: they count as empty.
        match = re.search(r": fatal error: ([\w./+-]+): No such file or directory$", first)
        if match is None or match[1] in absent:
            break
        absent.append(match[1])
        header = Path(scratch, "absent", match[1])
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    match = re.match(r"(.*?):(\d+)(?::\d+)?: (?:fatal )?error: (.*)", first)
    said = f"{match[1]}:{match[2]}: {match[3]}" if match else first
    why = f" (not here, and so taken to be empty: {', '.join(absent)})" if absent else ""
    raise ValueError(f"{source.path.name} does not compile: {said}{why}")


def _load(path: Path) -> Built:
    library = ctypes.CDLL(str(path))
    entry = ctypes.cast(library[f"rooftile_entry_{_tag(path)}"], ctypes.c_void_p).value
    assert entry is not None
    describe = library[f"rooftile_parameters_{_tag(path)}"]
    describe.restype = ctypes.c_char_p
    kinds = tuple(describe().decode().split())
    return Built(library, path, entry, _extent(entry), kinds)


def _extent(entry: int) -> tuple[int, int]:
    """Where the library lies in memory: from its header to the end of the last segment that its program headers ask for."""
    found = _Found()
    if not _dladdr(entry, ctypes.byref(found)):
        raise OSError(f"the loader knows no library that holds the address {entry:#x}")
    head = ctypes.string_at(found.base, 64)
    table, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
    segments = [struct.unpack("<IIQQQQQQ", ctypes.string_at(found.base + table + i * size, 56)) for i in range(count)]
    last = max(address + memory for kind, _, _, address, _, _, memory, _ in segments if kind == 1)
    return found.base, -(-(found.base + last) // mmap.PAGESIZE) * mmap.PAGESIZE


class _Found(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_size_t), ("symbol", ctypes.c_char_p), ("address", ctypes.c_size_t)]


_dladdr = ctypes.CDLL(None).dladdr
_dladdr.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
