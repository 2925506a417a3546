"""CUDA C++ to machine code with NVRTC, through NVIDIA's cuda.core: no nvcc, no host compiler, no GPU. What was compiled once is kept on disk.

An entry of the cache is one file: a line of JSON (symbol, what the code uses, checksum of the rest), then the cubin. Its name is a
digest over the source, every header of ours it includes, the flags, the instance and the version of NVRTC, so an entry is never out of date.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import io
import json
import os
import re
import threading
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftile.core.record import cache_folder
from rooftile.cuda.source import INCLUDE, Source

FORMAT = 2  # of a cache entry
OLDEST = 80
STANDARD = "c++17"

_ONE_AT_A_TIME = threading.Lock()


class CompileError(ValueError):
    """A .cu does not compile. The first line says where and why, the compiler's own words follow."""


class Unavailable(RuntimeError):
    """This machine cannot compile CUDA C++; the sentence says what to install."""


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    symbol: str  # the mangled name of the instance
    registers: int  # a thread
    spill_bytes: int  # a thread, what it parks in memory for want of registers
    shared_bytes: int  # a block, static
    loss: str = ""  # what the assembler could not do as asked: wgmma it runs one after the other, setmaxnreg it ignores
    cached: bool = False  # it was read from the disk


def compiled(source: Source, instance: str, arch: str) -> Compiled:
    """`instance` ("add", "softmax<__half, 256>") of `source` for `arch` ("sm_90a"): from the cache, else compiled and put there."""
    function = source.function(instance)
    toolchain = _toolchain()
    key = _key(source, function.instance, arch, toolchain)
    path = folder() / f"{source.path.stem}-{key}.cubin"
    found = _read(path)
    if found is not None:
        return found
    made = _compile(source, function.instance, arch, toolchain)
    if _key(source, function.instance, arch, toolchain) == key:  # else a header was edited meanwhile, and who knows what NVRTC has read
        _write(path, made)
    return made


def folder() -> Path:
    return cache_folder() / "cuda"


def architecture(major: int, minor: int) -> str:
    """The target of a device. From Hopper on it is the architecture's own (sm_90a), which wgmma, TMA and setmaxnreg want."""
    if major * 10 + minor < OLDEST:
        raise Unavailable(f"CUDA C++ kernels need sm_{OLDEST} or later, this device is sm_{major}{minor}")
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def known_architecture(name: str) -> str:
    """`name` where NVRTC compiles for it and we support it, else a sentence with those that are."""
    _toolchain()
    from cuda.bindings import nvrtc

    status, numbers = nvrtc.nvrtcGetSupportedArchs()
    if int(status):
        raise RuntimeError(f"NVRTC does not say which architectures it compiles for: status {int(status)}, {status}")
    names = [f"sm_{n}{a}" for n in numbers if n >= OLDEST for a in (["", "a"] if n >= 90 else [""])]
    if name not in names:
        raise ValueError(f"--arch {name!r} is none that CUDA C++ is compiled for here; there are {', '.join(names)}")
    return name


# ---- the compiler --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Toolchain:
    version: str  # of NVRTC and of the headers
    headers: str  # the folder with cuda_fp16.h


def missing() -> str | None:
    """What this machine lacks to compile CUDA C++, as a sentence, or None."""
    try:
        _toolchain()
    except Unavailable as error:
        return str(error)
    return None


def release() -> str:
    """Of NVRTC, as in 13.0."""
    return _toolchain().version.partition(",")[0]


def _toolchain() -> _Toolchain:
    found = _find_toolchain()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@functools.cache
def _find_toolchain() -> _Toolchain | str:
    """The CUDA build of PyTorch brings NVRTC and the headers, rooftile itself cuda-core; a CPU build brings neither of the former."""
    whole = "pip install 'rooftile[nvrtc]', or the CUDA build of PyTorch"  # one after the other they are three sentences
    for module, package, remedy in (("cuda.core", "cuda-core", "pip install cuda-core"), ("cuda.bindings", "cuda-bindings", whole)):
        if not _installed(module):
            return f"CUDA C++ needs {package}, which is not installed: {remedy}"
    from cuda import pathfinder
    from cuda.bindings import nvrtc

    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the bindings' own exception where the library cannot be found is one
        return f"NVRTC cannot be loaded ({_first_line(error)}): {whole}"
    if int(status) != 0:
        return f"NVRTC does not answer: {status}"
    try:
        headers = pathfinder.find_nvidia_header_directory("cudart")
    except RuntimeError as error:
        return f"CUDA's headers cannot be found ({_first_line(error)}): pip install nvidia-cuda-runtime"
    if headers is None or not (Path(headers) / "cuda_fp16.h").is_file():
        return f"CUDA's headers are not installed: pip install 'nvidia-cuda-runtime=={major}.{minor}.*'"
    with open(Path(headers) / "cuda.h", encoding="utf-8") as file:  # the headers may be another release's than NVRTC
        release = re.search(r"#define CUDA_VERSION (\d+)", file.read(1 << 16))
    return _Toolchain(f"{major}.{minor}, headers {release[1] if release else 'of no release'}", headers)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False


def _compile(source: Source, instance: str, arch: str, toolchain: _Toolchain) -> Compiled:
    with _ONE_AT_A_TIME:  # of threads that import it together some find it half made
        from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    options = ProgramOptions(
        arch=arch,
        name=str(source.path),  # errors, and the line table that profilers read, name the real file
        include_path=[str(source.path.parent), str(INCLUDE), toolchain.headers],
        **_options(),
    )
    try:
        program = Program(source.text, "c++", options)
        code = program.compile("cubin", name_expressions=[instance], logs=log)
    except Exception as error:
        if type(error).__name__ != "NVRTCError":
            raise
        raise CompileError(_explain(source, instance, arch, str(error))) from None
    symbol = code.symbol_mapping[instance]
    name = symbol.decode() if isinstance(symbol, bytes) else str(symbol)
    said = log.getvalue().replace("\r", "")
    return Compiled(bytes(code.code), name, *_used(said, name), loss=_loss(said, name))


def _options() -> dict[str, Any]:
    """Flags that are the same for every kernel. A function that says nothing of where it runs is the device's: there is no host here, and
    g++ in the simulator asks for no annotation either. The assembler's -v says what each function uses; beside a driver NVRTC keeps a
    cache of its own, and what comes from there comes without a word."""
    return {"std": STANDARD, "device_as_default_execution_space": True, "lineinfo": True, "ptxas_options": "-v", "no_cache": True}


def _used(log: str, symbol: str) -> tuple[int, int, int]:
    """(registers, bytes spilled, bytes of static shared memory) out of what the assembler says of `symbol`."""
    said = re.search(
        rf"Function properties for {re.escape(symbol)}\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers([^\n]*)",
        log,
    )
    if said is None:
        raise CompileError(f"the assembler does not say what {symbol} uses; it said: {log.strip()[-500:] or 'nothing'}")
    shared = re.search(r"(\d+) bytes smem", said[4])
    return int(said[3]), max(int(said[1]), int(said[2])), int(shared[1]) if shared else 0


def _loss(log: str, symbol: str) -> str:
    """The first loss that speaks of `symbol` or of no function: a file's other kernels have their own."""
    for said in re.findall(r"Potential Performance Loss: (.*)", log):
        named = re.search(r"function '(\w+)'", said)
        if named is None or named[1] == symbol:
            return str(said).strip()
    return ""


def _explain(source: Source, instance: str, arch: str, log: str) -> str:
    log = (log.partition("compilation log:")[2] or log).strip("\0 \n")
    what = f"{instance} does not compile for {arch}"
    errors = re.findall(r"^(.*?)\((\d+)\): (?:catastrophic )?error: (.*)$", log, re.M)
    if not errors:
        return f"{source.path}: {what}: {_first_line(log)}\n{log}"
    path, line, why = errors[0]
    if path == "__nv_name_map":  # the instance itself is what NVRTC cannot make sense of
        path, line = str(source.path), str(source.function(instance).line)
    return f"{path}:{line}: {what}: {why}{f' (and {len(errors) - 1} more)' if len(errors) > 1 else ''}\n{log}"


def _first_line(text: object) -> str:
    return (str(text).splitlines() or [""])[0]


# ---- the cache -----------------------------------------------------------------------------------------------------------


def _key(source: Source, instance: str, arch: str, toolchain: _Toolchain) -> str:
    sha = hashlib.sha256(json.dumps([FORMAT, toolchain.version, arch, instance, _options()]).encode())
    for path in source.files:
        text = source.text.encode() if path == source.path else path.read_bytes()  # what is compiled, whatever the file has become
        sha.update(f"\n{path.name} {len(text)}\n".encode() + text)
    return sha.hexdigest()[:24]


def _read(path: Path) -> Compiled | None:
    """An entry, or None where there is none or it is not whole: half of a write that another tool or a full disk left."""
    try:
        head, _, cubin = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        _without_cache(path.parent, error)
        return None
    try:
        known = json.loads(head)
        if known.pop("sha256") != hashlib.sha256(cubin).hexdigest():
            return None
        return Compiled(cubin=cubin, cached=True, **known)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, made: Compiled) -> None:
    """Whole or not at all: a file of its own, then a rename; of sixteen writers the last one stands."""
    known = {f.name: getattr(made, f.name) for f in dataclasses.fields(made) if f.name not in ("cubin", "cached")}
    head = json.dumps({**known, "sha256": hashlib.sha256(made.cubin).hexdigest()})
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(head.encode() + b"\n" + made.cubin)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        _without_cache(path.parent, error)


@functools.cache
def _say_once(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _without_cache(place: Path, error: OSError) -> None:
    _say_once(
        f"compiled CUDA C++ cannot be kept in {place} ({error.strerror}): every process compiles again; set ROOFTILE_CACHE to a folder that can be written"
    )
