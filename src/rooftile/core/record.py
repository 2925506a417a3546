"""One measured fact, and the digest that says whether it still speaks of today's kernel."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import json
import math
import os
import platform
import re
import subprocess
import tempfile
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


class Status(StrEnum):
    PASSED = "passed"  # correct, and timed where `us` is set
    FAILED = "failed"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True)
class Environment:
    gpu: str
    driver: str
    cuda: str
    torch: str
    triton: str
    python: str
    commit: str
    clocks: str = ""  # SM clock after the run, MHz

    @staticmethod
    @functools.lru_cache
    def here() -> Environment:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        driver, clocks = ([*_command("nvidia-smi", "--query-gpu=driver_version,clocks.sm", "--format=csv,noheader").split(", "), "", ""])[
            :2
        ]
        return Environment(gpu, driver, torch.version.cuda or "", torch.__version__, _version("triton"), platform.python_version(),
                           os.environ.get("ROOFTILE_COMMIT") or _commit(), clocks.splitlines()[0] if clocks else "")  # fmt: skip


@dataclass(frozen=True)
class Record:
    op: str
    kernel: str  # triton, cublas, reference, ... or peer.torch, peer.compile, ...
    case: str
    status: str
    config: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    us: tuple[float, float, float] | None = None  # 20th, 50th and 80th percentile
    gbps: float | None = None
    tflops: float | None = None
    of_ceiling: float | None = None  # the floor's time over the measured time
    method: str = ""  # how it was timed
    message: str = ""
    digest: str = ""  # of the kernel's sources; empty for peers, whose versions stand in the environment
    run: str = ""  # what was interleaved in one process carries one id
    extra: dict[str, Any] = field(default_factory=dict)  # tokens_per_s, peak_bytes, host_us, ...
    environment: dict[str, str] = field(default_factory=dict)

    def fact(self, name: str) -> Any:
        """One of `extra`, which this kind of record has."""
        if name not in self.extra:
            there = ", ".join(sorted(self.extra)) or "nothing"
            raise ValueError(
                f"the record of {self.op} {self.kernel} {self.case}, run {self.run or '?'}, does not say {name!r}; it says {there}"
            )
        return self.extra[name]

    def json(self) -> str:
        return json.dumps(_plain(asdict(self)), sort_keys=True)

    @staticmethod
    def parse(line: str) -> Record:
        try:
            raw = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is no JSON, at character {error.pos + 1} of {len(line)}: {error.msg}") from error
        if not isinstance(raw, dict):
            raise ValueError(f"it is a JSON {type(raw).__name__}, not an object")
        if lacks := [f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING and f.name not in raw]:
            raise ValueError(f"it has no {', '.join(lacks)}")
        for name, kind in _KINDS.items():
            if name in raw and not isinstance(raw[name], kind):
                raise ValueError(f"{name} is {raw[name]!r}, not a {kind.__name__}")
        if (us := raw.get("us")) is not None:
            if not (isinstance(us, list) and len(us) == 3 and all(_is_number(t) and t > 0 for t in us)):
                raise ValueError(f"us is {us!r}, not 3 numbers above 0")
            raw["us"] = tuple(us)
        for name in ("gbps", "tflops", "of_ceiling"):
            if raw.get(name) is not None and not _is_number(raw[name]):
                raise ValueError(f"{name} is {raw[name]!r}, not a number")
        if raw["status"] not in list(Status):
            raise ValueError(f"status is {raw['status']!r}, it is one of {', '.join(Status)}")
        ran = raw.get("extra", {}).get("ran", [])
        if not (isinstance(ran, list) and all(isinstance(n, str) for n in ran)):
            raise ValueError(f"extra has ran {ran!r}, not a list of operators")
        return Record(**{f.name: raw[f.name] for f in fields(Record) if f.name in raw})


# what a reader calls methods of without looking
_KINDS: dict[str, type] = {**dict.fromkeys(("op", "kernel", "case", "status", "method", "message", "digest", "run"), str),
                           **dict.fromkeys(("config", "errors", "extra", "environment"), dict)}  # fmt: skip


def _is_number(value: Any) -> bool:
    """A finite one: Python reads NaN and Infinity, which are no JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity; six digits are more than any clock has."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def append(path: Path, records: Iterable[Record]) -> None:
    """Append-only; one write a call, so that a reader never sees half a line of ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ("\n" if _torn(path) else "") + "".join(r.json() + "\n" for r in records)
    with open(path, "a", encoding="utf-8") as f:
        f.write(text)


def _torn(path: Path) -> bool:
    """Whether the last line has no end: a disk that was full, a machine that died. What follows it shall not be lost with it."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with open(path, "rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read(1) != b"\n"


def unwritable(folder: Path) -> str:
    """Why nothing can be kept in `folder`, which is made where it is not there; or "". Asked before what takes long."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\n")  # permission bits do not tell the truth on every file system, and a full disk takes a name: writing does
        return ""
    except OSError as error:
        return error.strerror or str(error)


def read(path: Path) -> Iterator[Record]:
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} holds no records: {error}") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield Record.parse(line)
                except (ValueError, TypeError, KeyError) as error:
                    raise ValueError(f"{path}:{number} is not a record: {error}") from error


def cache_folder() -> Path:
    if said := os.environ.get("ROOFTILE_CACHE"):
        return Path(said)
    try:
        return Path.home() / ".cache" / "rooftile"
    except RuntimeError:  # a container may run under a number that nobody has given a home
        return _of_this_process()


@functools.cache
def _of_this_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="rooftile-"))


# ---- digest --------------------------------------------------------------------------------------------------------------


@functools.cache
def digest(module: str, within: tuple[str, ...] = ("rooftile.ops.",), shut: frozenset[str] = frozenset()) -> str:
    """Of a module's source and of every module it imports from `within`, without comments, docstrings and blank lines. Of an operator's `api` there counts what
    declares the operator and what is imported by name: the rest is a door that who measured did not go through. shut: as for `reachable`."""
    sha, reached = hashlib.sha256(), sorted(reachable(module, within, shut))
    for name in reached:
        door = name.endswith(".api") and name != module
        text = _needed(name, frozenset(n for m in reached if m != name for n in _names(m, name))) if door else _essence_of(name)
        sha.update(f"{name}\n{text}\n".encode())
    return sha.hexdigest()[:16]


def digest_of(run: Callable[..., Any], files: Iterable[Path] = ()) -> str:
    """Of a kernel: its launcher's module and, where it is CUDA C++, the files it is compiled from."""
    while isinstance(run, functools.partial):
        run = run.func
    return with_files(digest(run.__module__), files)


def with_files(python: str, files: Iterable[Path]) -> str:
    """A digest of Python and of C++ files beside it."""
    code = [_c_essence(path) for path in files]
    return hashlib.sha256("\n".join([python, *code]).encode()).hexdigest()[:16] if code else python


@functools.cache
def _c_essence(path: Path) -> str:
    text = without_c_comments(path.read_text(encoding="utf-8"))
    return "\n".join([path.name, *(line.rstrip() for line in text.splitlines() if line.strip())])


@functools.cache
def _essence_of(module: str) -> str:
    return essence(Path(_origin(module)).read_text(encoding="utf-8"))


@functools.cache
def _needed(module: str, names: frozenset[str]) -> str:
    """The essence of a module without the functions and classes that neither these names nor any other of its statements come to."""
    source = Path(_origin(module)).read_text(encoding="utf-8")
    body = ast.parse(source).body
    named = {n.name: n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))}
    kept = [n for n in body if n not in named.values() or n.name in names]  # type: ignore[attr-defined]
    for node in kept:  # which grows meanwhile
        kept += [named[i.id] for i in ast.walk(node) if isinstance(i, ast.Name) and i.id in named and named[i.id] not in kept]
    lines = source.splitlines()
    begins = {n: min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", ()))]) for n in kept}
    return essence("\n".join("\n".join(lines[begins[n] - 1 : n.end_lineno]) for n in sorted(kept, key=begins.__getitem__)))


def essence(source: str) -> str:
    """Source without comments, docstrings, blank lines and trailing space. Works on text, not on a syntax tree, because
    unparsing differs between Python versions and a record travels between machines."""
    lines = source.splitlines()
    drop: list[tuple[int, int, int, int]] = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            doc = node.body[0]
            drop.append(
                (
                    doc.lineno,
                    _column(lines, doc.lineno, doc.col_offset),
                    doc.end_lineno or 0,
                    _column(lines, doc.end_lineno or 1, doc.end_col_offset or 0),
                )
            )
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            drop.append((*token.start, *token.end))
    for row, col, end_row, end_col in sorted(drop, reverse=True):
        lines[row - 1 : end_row] = [lines[row - 1][:col] + lines[end_row - 1][end_col:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


_C_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_c_comments(source: str) -> str:
    """C or C++ source with its comments gone and every line where it was."""

    def strip(match: re.Match[str]) -> str:
        token = match[0]
        return token if token[0] in "\"'" else "\n" * token.count("\n") or " "

    return _C_TOKEN.sub(strip, source)


def _column(lines: list[str], row: int, utf8: int) -> int:
    """ast counts bytes, strings count characters."""
    return len(lines[row - 1].encode()[:utf8].decode())


@functools.cache
def reachable(module: str, within: tuple[str, ...], shut: frozenset[str] = frozenset()) -> frozenset[str]:
    """A module and those that it imports from `within`, and those that these import; of `shut` only whose names are imported: who imports a module alone
    wants what it declares to be there, and may never come to it."""
    todo, seen = [module], set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name.endswith(".spec") or _origin(name) is None:  # a declaration compiles into nothing
            continue
        seen.add(name)
        todo += [other for other in _imports(name, shut) if other.startswith(within)]
    return frozenset(seen)


def _imports(module: str, shut: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """What may be a module among the names that a module imports."""
    entered = [(source, names) for source, names in _imported(module) if names or source not in shut]
    return tuple(name for source, names in entered for name in (source, *(f"{source}.{n}" for n in names)))


def _names(module: str, source: str) -> tuple[str, ...]:
    """What a module imports by name from another."""
    return tuple(n for found, names in _imported(module) if found == source for n in names)


@functools.cache
def _imported(module: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(module, names from it) of each import of a module."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(Path(_origin(module)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, tuple(a.name for a in node.names)))
        elif isinstance(node, ast.Import):
            found += [(a.name, ()) for a in node.names]
    return tuple(found)


@functools.cache
def _origin(module: str) -> Any:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError):
        return None
    return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _commit() -> str:
    """Of the repository that these sources are kept in, wherever one stands; nothing where they are installed."""
    git = ("git", "-C", str(Path(__file__).parent))
    return _command(*git, "rev-parse", "--short", "HEAD") if _command(*git, "ls-files", Path(__file__).name) else ""


def _command(*words: str) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
