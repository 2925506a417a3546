"""cuBLASLt's products: by any of the algorithms that its heuristic offers, of which PyTorch takes the first, and with gelu, or gelu's gradient, in
their epilogue, which torch.mm and torch.addmm cannot ask for.

    none            out = left right + bias + add. out has their dtype, or float32 where there is no bias
    gelu            aux = left right + bias, out = gelu(aux), the tanh form; aux is kept for the gradient
    gelu_backward   out = (left right) gelu'(aux)

The library is the one that PyTorch has loaded, called through ctypes. It sees columns where we see rows: out = left right of three
row-major matrices is its outᵀ = rightᵀ leftᵀ, so its A is right and its B is left; a factor that is a transposed view is read as it lies. A product
of one shape is planned once: descriptors, the algorithms offered, and which of them is preferred: see `preferred`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooftile.core import replay
from rooftile.cuda.launch import relaxed

OFFERED = 8  # algorithms asked for
PREFERRED = -1  # instead of an algorithm's rank: the one that `preferred` names, else the first
WORKSPACE = 64 * 2**20  # bytes an algorithm may ask for; most ask for none
LONG = 16384  # summands from which on a weight's gradient is a long sum
OLDEST = (8, 0)

_TYPES = {torch.float16: 2, torch.bfloat16: 14, torch.float32: 0}  # cudaDataType; float32 of a result alone
_FLOAT, _COMPUTE_FLOAT = 0, 68  # CUDA_R_32F, of the scale; CUBLAS_COMPUTE_32F
_DEFAULT, _BIAS, _GELU_AUX, _GELU_AUX_BIAS, _DGELU = 1, 4, 160, 164, 192  # cublasLtEpilogue_t
EPILOGUES = {"none": (_DEFAULT, _BIAS), "gelu": (_GELU_AUX, _GELU_AUX_BIAS), "gelu_backward": (_DGELU, None)}  # without and with a bias
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _AUX_POINTER, _AUX_LD = 3, 4, 7, 8, 11, 12  # cublasLtMatmulDescAttributes_t
_MAX_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t: bytes; of A, B, C and D
_TILE, _SPLITS = 1, 2  # cublasLtMatmulAlgoConfigAttributes_t: cublasLtMatmulTile_t, and parts of the sum that are added up afterwards
_WIDEST = 256  # bytes: no algorithm wants more, and it is what the heuristic takes for granted


class Answer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_P, _I, _L, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _I, _I),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatmulDescSetAttribute": (_P, _I, _P, _N),
    "cublasLtMatrixLayoutCreate": (_P, _I, ctypes.c_uint64, ctypes.c_uint64, _L),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, _I, _P, _N),
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, _I, _P, _P),
    "cublasLtMatmulAlgoConfigGetAttribute": (_P, _I, _P, _N, _P),
    "cublasLtMatmul": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _N, _P),
}


def off_gpu(x: Tensor) -> str | None:
    """Why cuBLASLt cannot work on this tensor's device, or None."""
    if not x.is_cuda:
        return f"cuBLASLt needs a CUDA device, the tensor is on {x.device}"
    return missing() or _too_old(x.device)


def missing() -> str | None:
    """Why there is no cuBLASLt here, as a sentence, or None."""
    found = _find()
    return found if isinstance(found, str) else None


def product(out: Tensor, left: Tensor, right: Tensor, epilogue: str = "none", aux: Tensor | None = None, bias: Tensor | None = None, *,
            add: Tensor | None = None, algorithm: int = PREFERRED) -> None:  # fmt: skip
    """out [M, N] = left [M, K] right [K, N] through the epilogue, on torch's current stream of their device; can be captured in a CUDA graph.

    All of one dtype, float16 or bfloat16, but for a float32 out; rows of neighbours that begin at whole 16 bytes, or of a factor columns
    (weight.t()). aux [M, N], bias [N]. add: another like out, or out itself, to add to what it holds.
    algorithm: PREFERRED, or which of those that the heuristic offers; one beyond them is the first, as their number is the library's to decide.
    """
    device = out.get_device()
    if out.is_cuda and device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            product(out, left, right, epilogue, aux, bias, add=add, algorithm=algorithm)
        return
    where = _WIDEST
    for t in (out, left, right, aux, bias, add):
        if t is not None:
            where |= t.data_ptr()
    described = [None if t is None else (t.shape, t.stride(), t.dtype) for t in (out, left, right, aux, bias, add)]
    key = (device, *described, epilogue, where & -where)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= 1024:  # lengths that never repeat must not fill the memory
            _plans.clear()
        code = _check(out, left, right, epilogue, aux, bias, add)
        plan = _plans[key] = Plan(out, left, right, aux, bias, code, add, where & -where)
    plan.launch(out, left, right, aux, bias, add, algorithm)


_plans: dict[tuple[Any, ...], Plan] = {}

# Tiles by cublasLtMatmulTile_t, columns x rows of ours
_96x128, _128x128, _128x160, _168x128, _176x128, _192x96 = 28, 20, 29, 197, 201, 458
_SHORT: tuple[tuple[float, tuple[tuple[float, tuple[int, ...]], ...]], ...] = (  # columns up to, and of these summands up to
    (1024, ((float("inf"), (_128x128,)),)),
    (2560, ((1023, (_128x128,)), (3072, (_128x160,)))),
    (12288, ((3072, (_128x160,)),)),
    (float("inf"), ((1023, (_176x128, _168x128)), (3072, (_168x128, _176x128)))),
)
_WAVE = range(100, 133)  # tiles that keep an H200's 132 multiprocessors busy, once


@functools.lru_cache(4096)
def preferred(device: torch.device, m: int, n: int, k: int, epilogue: str = "none") -> tuple[int, ...]:
    """Tiles to prefer to the heuristic's first algorithm for [m, k] by [k, n], the best first; none where it is as good as any, or nothing is known.

    Asked on an H200 of cuBLASLt 13.1, all that it offers beside PyTorch's, in bursts and at the board's power, for the products of GPT-2's training step and of a Llama's of
    1.2e9 weights (M = 32768 and 16384). The first has large tiles, 256 x 128, and is as good as any for long sums. Of short ones much of the time
    is the epilogue's, and smaller tiles are faster by up to a fifth; up to 1024 columns they are for long sums too. A weight's
    gradient is few tiles of a long sum: a tile of which one wave is full was faster than parts of the sum added up. By tile, as ranks change with version
    and shape.
    """
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device) != (9, 0):
        return ()
    if epilogue != "none":
        return ((_96x128,) if epilogue == "gelu" else (_128x128,)) if k <= 2560 else ()
    if m * n >= 2**24:
        by_summands = next(rows for columns, rows in _SHORT if n <= columns)
        return next((tiles for summands, tiles in by_summands if k <= summands), ())
    if k < LONG:
        return ()
    return tuple(tile for tile, width, height in ((_192x96, 192, 96), (_128x128, 128, 128)) if -(-n // width) * -(-m // height) in _WAVE)


def rows_or_columns(t: Tensor) -> bool:
    """Whether a factor can be read as it lies: neighbours in a row or in a column, the next one at whole 16 bytes, without overlap; and is not empty."""
    t = _stored(t)
    return (
        t.numel() > 0 and t.stride(1) == 1 and _leading(t) >= t.shape[1] and _leading(t) * t.itemsize % 16 == 0 and t.data_ptr() % 16 == 0
    )


def cannot(out: Tensor, left: Tensor, right: Tensor, bias: Tensor | None = None, add: Tensor | None = None) -> str | None:
    """None, or why `product` could not make out = left right + bias + add as these lie."""
    if (why := off_gpu(out)) is not None:
        return why
    if not left.numel() or not right.numel():
        return f"cuBLASLt: there is nothing to multiply, left is {list(left.shape)}, right is {list(right.shape)}"
    try:
        _check(out, left, right, "none", None, bias, add)
    except ValueError as error:
        return str(error)
    return None


def _check(out: Tensor, left: Tensor, right: Tensor, epilogue: str, aux: Tensor | None, bias: Tensor | None, add: Tensor | None) -> int:
    """ValueError for what cannot be planned; the library's number of the epilogue."""
    code = EPILOGUES.get(epilogue, (None, None))[bias is not None]
    if code is None:
        raise ValueError(
            f"cuBLASLt: there is no epilogue {epilogue!r} with{'out' if bias is None else ''} a bias, there is {', '.join(EPILOGUES)}"
        )
    if (aux is None) != (epilogue == "none"):
        raise ValueError(
            f"cuBLASLt: epilogue {epilogue!r} takes {'no' if aux is not None else 'an'} aux, {'one' if aux is not None else 'none'} was given"
        )
    plain = code == _DEFAULT
    if add is not None and epilogue != "none":
        raise ValueError(f"cuBLASLt: what is added to takes no epilogue but a bias, and {epilogue!r} was asked for")
    (m, k), n = left.shape, right.shape[1]
    wanted = {"out": (m, n), "left": (m, k), "right": (k, n), "aux": (m, n), "bias": (n,), "add": (m, n)}
    for name, t in {"out": out, "left": left, "right": right, "aux": aux, "bias": bias, "add": add}.items():
        if t is None:
            continue
        if tuple(t.shape) != wanted[name]:
            raise ValueError(f"cuBLASLt: {name} is {list(t.shape)}, it must be {list(wanted[name])}")
        wide = name in ("out", "add") and plain and t.dtype == torch.float32
        if name == "add" and t.dtype != out.dtype:
            raise ValueError(f"cuBLASLt: add is {t.dtype}, out is {out.dtype}; what is added to has out's dtype")
        if left.dtype not in (torch.float16, torch.bfloat16) or not (t.dtype == left.dtype or wide) or t.device != left.device:
            raise ValueError(
                f"cuBLASLt: {name} is {t.dtype} on {t.device}, left is {left.dtype} on {left.device}; all are float16 or bfloat16, a plain out may be float32"
            )
        _check_rows(name, _stored(t) if name in ("left", "right") else t)
    return code


def _check_rows(name: str, t: Tensor) -> None:
    if t.stride(-1) != 1 or (t.dim() > 1 and _leading(t) < t.shape[1]):
        raise ValueError(f"cuBLASLt: {name} is {list(t.shape)} with strides {list(t.stride())}, it must be rows of neighbours")
    apart = t.itemsize * _leading(t) if t.dim() > 1 else 16
    if apart % 16 or t.data_ptr() % 16:
        begins = f"begins {t.data_ptr() % 16} bytes past a multiple of 16" if t.data_ptr() % 16 else f"has rows {apart} bytes apart"
        raise ValueError(f"cuBLASLt: {name} {begins}, it must be whole 16 bytes")


def _stored(t: Tensor) -> Tensor:
    """A factor as it lies in memory, by rows: itself, or of a transposed view what it is a view of."""
    return t.t() if t.stride(1) != 1 and t.stride(0) == 1 else t


def _leading(t: Tensor) -> int:
    """Elements from row to row; the stride of a single row says nothing, and need not be legal."""
    return t.stride(0) if t.shape[0] > 1 else t.shape[1]


# ---- a product of one shape ----------------------------------------------------------------------------------------------


class Plan:
    """Descriptors of one product, and the algorithms that the heuristic offers for it, its own favourite first, and ours. The addresses of aux and bias
    stand in the descriptor, so they are set and launched under a lock; the library reads it before cublasLtMatmul returns."""

    def __init__(
        self, out: Tensor, left: Tensor, right: Tensor, aux: Tensor | None, bias: Tensor | None, epilogue: int, add: Tensor | None, alignment: int
    ):  # fmt: skip
        self.library, self.lock, self.alignment = _library(), threading.Lock(), alignment
        self.beta = _ZERO if add is None else _ONE
        a, b = _stored(right), _stored(left)
        (m, k), n = left.shape, right.shape[1]
        name = next(name for name, codes in EPILOGUES.items() if epilogue in codes)
        tiles = preferred(out.device, m, n, k, name)
        with relaxed():
            self.handle = _handle(out.get_device())
            self.description = self._made("MatmulDesc", _COMPUTE_FLOAT, _FLOAT)
            self._set(_TRANSA, ctypes.c_int32(a is not right))
            self._set(_TRANSB, ctypes.c_int32(b is not left))
            self._set(_EPILOGUE, ctypes.c_int32(epilogue))
            if aux is not None:
                self._set(_AUX_LD, ctypes.c_int64(_leading(aux)))
            self.address = ctypes.c_void_p()
            self._point(*_addresses(aux, bias))  # the heuristic reads from them how they are aligned
            matrices = (a, b, out) if add is None else (a, b, out, add)
            made = [self._made("MatrixLayout", _TYPES[t.dtype], t.shape[1], t.shape[0], _leading(t)) for t in matrices]
            self.layouts = *made[:2], made[-1], made[2]  # of out, unless there is another, is what is added to
            what = f"{list(left.shape)} by {list(right.shape)} in {left.dtype}"
            self.answers = self._asked(alignment, WORKSPACE, what)
            self.offered = len(self.answers)
            with contextlib.suppress(RuntimeError):  # there may be none without
                self.answers += self._asked(alignment, 0, what)
            self.best = self._best(tiles)

    def launch(
        self, out: Tensor, left: Tensor, right: Tensor, aux: Tensor | None, bias: Tensor | None, add: Tensor | None, algorithm: int
    ) -> None:
        answer = self.answers[self.best if algorithm == PREFERRED else algorithm if algorithm < self.offered else 0]
        # from PyTorch's allocator, and held until the product is under way: then it is nobody else's before this stream has passed
        work = out.new_empty(answer.workspace, dtype=torch.uint8) if answer.workspace else None
        tensors = (out, left, right, aux, bias, add, work)
        self.go(answer, _stream(out), *_addresses(*tensors))
        if (recorder := replay.recorder()) is not None:
            recorder.note(functools.partial(self.go, answer), (replay.STREAM, *tensors), aligned=self.alignment)

    def go(
        self,
        answer: Answer,
        stream: int,
        out: int,
        left: int,
        right: int,
        aux: int | None,
        bias: int | None,
        add: int | None,
        work: int | None,
    ) -> None:
        """By addresses, which begin at multiples of the plan's alignment."""
        a, b, c, d = self.layouts
        with self.lock:
            self._point(aux, bias)
            status = self.library.cublasLtMatmul(self.handle, self.description, _ONE, right, a, left, b, self.beta, out if add is None else add, c,
                                                 out, d, ctypes.addressof(answer), work, answer.workspace, stream)  # fmt: skip
        _succeed(status, "cublasLtMatmul")

    def _point(self, aux: int | None, bias: int | None) -> None:
        for which, address in ((_AUX_POINTER, aux), (_BIAS_POINTER, bias)):
            if address is not None:
                self.address.value = address
                self._set(which, self.address)

    def _set(self, attribute: int, value: Any) -> None:
        status = self.library.cublasLtMatmulDescSetAttribute(self.description, attribute, ctypes.byref(value), ctypes.sizeof(value))
        if status:
            _succeed(status, f"cublasLtMatmulDescSetAttribute of attribute {attribute}")

    def _made(self, what: str, *arguments: int) -> Any:
        """A descriptor, destroyed with the plan."""
        made = ctypes.c_void_p()
        _succeed(getattr(self.library, f"cublasLt{what}Create")(ctypes.byref(made), *arguments), f"cublasLt{what}Create")
        weakref.finalize(self, getattr(self.library, f"cublasLt{what}Destroy"), made).atexit = False
        return made

    def tile(self, answer: Answer) -> int:
        """cublasLtMatmulTile_t of an algorithm, or 0 where it parts the sum."""
        tile, splits = (ctypes.c_int32() for _ in range(2))
        for which, value in ((_TILE, tile), (_SPLITS, splits)):
            status = self.library.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.addressof(answer), which, ctypes.byref(value), ctypes.sizeof(value), None
            )
            _succeed(status, f"cublasLtMatmulAlgoConfigGetAttribute of attribute {which}")
        return tile.value if splits.value <= 1 else 0

    def _best(self, tiles: tuple[int, ...]) -> int:
        """The first of these tiles that is there, or else the heuristic's first; of one tile the one with the least workspace. With room for it the
        heuristic likes to part long sums, and to count tiles as they are taken: a number that is cleared before each product."""
        offered = [self.tile(a) for a in self.answers]
        wanted = next((t for t in tiles if t in offered), offered[0])
        return min((i for i, t in enumerate(offered) if t == wanted), key=lambda i: self.answers[i].workspace) if wanted else 0

    def _asked(self, alignment: int, workspace: int, what: str) -> list[Any]:
        preference = self._made("MatmulPreference")
        values = {_MAX_WORKSPACE: ctypes.c_uint64(workspace), **{which: ctypes.c_uint32(alignment) for which in _ALIGNMENTS}}
        for which, value in values.items():
            status = self.library.cublasLtMatmulPreferenceSetAttribute(preference, which, ctypes.byref(value), ctypes.sizeof(value))
            _succeed(status, f"cublasLtMatmulPreferenceSetAttribute of attribute {which}")
        answers, count, (a, b, c, d) = (Answer * OFFERED)(), ctypes.c_int(), self.layouts
        status = self.library.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.description, a, b, c, d, preference, OFFERED, answers, ctypes.byref(count)
        )
        _succeed(status, f"cublasLtMatmulAlgoGetHeuristic for {what}")
        good = [answers[i] for i in range(count.value) if answers[i].status == 0]
        if not good:
            raise RuntimeError(f"cuBLASLt: none of {count.value} algorithms for {what} can be used")
        return good


_one, _zero = ctypes.c_float(1), ctypes.c_float(0)
_ONE, _ZERO = ctypes.addressof(_one), ctypes.addressof(_zero)


# ---- the library ---------------------------------------------------------------------------------------------------------


def _library() -> Any:
    found = _find()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


@functools.cache
def _find() -> Any:
    """The library with its functions' signatures, or the sentence that says why there is none."""
    if torch.version.cuda is None:
        return "cuBLASLt comes with the CUDA build of PyTorch, this one is built without CUDA"
    name = f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}"
    tried = [name, *_packaged(name), name]
    for i, path in enumerate(tried):
        try:
            # first the one that is loaded: two of them in one process would be two libraries
            library = ctypes.CDLL(path, os.RTLD_NOW | (os.RTLD_NOLOAD if i == 0 else 0))
        except OSError:
            continue
        for function, arguments in _SIGNATURES.items():
            getattr(library, function).argtypes = arguments
        library.cublasLtGetStatusName.argtypes, library.cublasLtGetStatusName.restype = (_I,), ctypes.c_char_p
        return library
    return f"{name} is neither loaded, nor in {len(tried) - 2} folders of pip packages, nor where the loader looks: install the CUDA build of PyTorch"


def _packaged(name: str) -> list[str]:
    """Where pip's packages have it: nvidia/cu13/lib, nvidia/cublas/lib, torch/lib."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [p for folder in folders for p in sorted(folder.glob(f"*/lib/{name}"))]
    return [str(p) for p in (*found, Path(torch.__file__).parent / "lib" / name) if p.is_file()]


@functools.cache
def _handle(device: int) -> Any:
    """One for each device, made while it is current."""
    handle = ctypes.c_void_p()
    _succeed(_library().cublasLtCreate(ctypes.byref(handle)), f"cublasLtCreate on cuda:{device}")
    return handle


def _addresses(*tensors: Tensor | None) -> list[Any]:
    return [None if t is None else t.data_ptr() for t in tensors]


def _stream(x: Tensor) -> int:
    return torch._C._cuda_getCurrentRawStream(x.get_device())


@functools.lru_cache
def _too_old(device: torch.device) -> str | None:
    if not torch.cuda.is_available():  # a device that is only imagined
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return None if (major, minor) >= OLDEST else f"cuBLASLt's epilogues are asked for from sm_80 on, this device is sm_{major}{minor}"


def _succeed(status: int, what: str) -> None:
    if status:
        name = _library().cublasLtGetStatusName(status)
        raise RuntimeError(f"{what}: cuBLASLt says {name.decode() if name else 'nothing'} (status {status})")
