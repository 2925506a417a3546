"""Triton's CPU interpreter, made a judge. Import before any kernel is defined, in a process of its own (TRITON_INTERPRET=1).

What it lacks as shipped, and gets here:
  * bf16 and fp8 are held as raw integers and multiplied as such: here they are ml_dtypes arrays with true rounding
  * out-of-bounds lanes read and write whatever lies there: here every active lane must fall inside a tensor's storage
  * two programs storing to one address go unnoticed: here it is an error, and so is reading what another stored, or storing where another has read,
    without an atomic that says so
  * lanes that a mask leaves out and nothing is said for read zeros: on a GPU it is whatever the register held, here NaN or the largest integer
  * libdevice is missing: here it is numpy
It patches private names of Triton 3.6 to 3.9 and says so loudly when one is gone. Not modelled: warps, layouts, asynchronous copies,
shared memory, the order of reductions, fused multiply-add.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import ismodule
from typing import Any

import ml_dtypes
import numpy as np
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("set TRITON_INTERPRET=1 before importing rooftile: the interpreter wants a process of its own")

import triton.language as tl
from triton._C.libtriton import ir
from triton.language.extra import libdevice
from triton.language.semantic import TritonSemantic as Semantic
from triton.runtime import interpreter as base

from rooftile.workbench import check

Handle, Builder = base.TensorHandle, base.InterpreterBuilder
_LOW = {
    tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
    tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
    tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
}
_LOW_NUMPY = set(_LOW.values())
_RAW = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


class OutOfBounds(RuntimeError):
    pass


class Race(RuntimeError):
    pass


# ---- dtypes --------------------------------------------------------------------------------------------------------------

_stock_numpy_dtype = base._get_np_dtype
_numpy_dtypes: dict[str, Any] = {}  # by the name of the element's type


def _numpy_dtype(t: Any) -> Any:
    element = t.element_ty if isinstance(t, tl.block_type) else t
    if element.name not in _numpy_dtypes:
        low = not isinstance(element, tl.pointer_type) and element in _LOW
        _numpy_dtypes[element.name] = _LOW[element] if low else _stock_numpy_dtype(element)
    return _numpy_dtypes[element.name]


def _raw(a: Any) -> Any:
    return a.view(_RAW[a.dtype.itemsize]) if a.dtype in _LOW_NUMPY else a


def _wide(a: Any) -> Any:
    return a.astype(np.float32) if a.dtype in _LOW_NUMPY or a.dtype == np.float16 else a


def _cast(self: Any, source: Any, target: Any, *_: Any) -> Any:
    to, a = _numpy_dtype(target), source.data
    if a.dtype in _LOW_NUMPY and to.kind in "iu":
        a = a.astype(np.float32)
    if to in _LOW_NUMPY and to.itemsize == 1:  # the hardware's cast to fp8 saturates
        a = a.astype(np.float32)
        largest = float(ml_dtypes.finfo(to).max)
        a = np.where(np.isnan(a), a, np.clip(a, -largest, largest))
    with np.errstate(all="ignore"):
        return Handle(a.astype(to), target.scalar)


def _tf32(x: Any) -> Any:
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, *_: Any) -> Any:
    x, y = np.ascontiguousarray(_wide(a.data)), np.ascontiguousarray(_wide(b.data))
    if a.data.dtype == np.float32 and str(precision).split(".")[-1].lower() == "tf32":
        x, y = _tf32(x), _tf32(y)
    if x.dtype.kind != "f":
        x, y = x.astype(np.int32), y.astype(np.int32)
    return Handle((np.matmul(x, y) + acc.data).astype(acc.data.dtype), acc.dtype.scalar)


def _unary(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, a: Any) -> Any:
        x = a.data
        with np.errstate(all="ignore"):
            return Handle(f(x.astype(np.float32)).astype(x.dtype) if x.dtype in _LOW_NUMPY else f(x).astype(x.dtype), a.dtype.scalar)

    return run


# ---- memory --------------------------------------------------------------------------------------------------------------

_allowed: list[tuple[Any, Any]] = []  # byte ranges of the storages of this launch
_writer: dict[int, Any] = {}  # address -> the program that stored there
_stock_atomic = Builder.create_atomic_rmw
_stored: dict[int, int] = {}  # address -> how often that program had released before
_releases: dict[Any, int] = {}  # program -> how often it has released
_seen: dict[Any, dict[Any, int]] = {}  # program, or address of an atomic -> of other programs, how many releases happened before
_reads: dict[Any, list[tuple[Any, ...]]] = {}  # storage -> program, how often it had released, where it read: first, last, all


def _checked(what: str, pointers: Any, mask: Any, size: int, program: Any) -> Any:
    # a mask with a scalar in it is held as int32, which numpy would take for places
    p = np.asarray(pointers)[np.broadcast_to(np.asarray(mask, bool), np.shape(pointers))].astype(np.uint64)
    if p.size == 0 or not _allowed:
        return p
    first, last = p.min(), p.max() + np.uint64(size)
    inside = np.full(p.shape, any(low <= first and last <= high for low, high in _allowed))  # most of the time within one tensor
    for low, high in () if inside.all() else _allowed:
        inside |= (p >= low) & (p + np.uint64(size) <= high)
    if not inside.all():
        address = int(p[~inside][0])
        low, high = min(_allowed, key=lambda r: min(abs(address - int(r[0])), abs(address - int(r[1]))))
        raise OutOfBounds(f"{what}: {int((~inside).sum())} of {p.size} active lanes out of bounds in program {program}; the first is "
                          f"{address - int(low):+d} bytes from the start of a tensor of {int(high - low)} bytes")  # fmt: skip
    if np.any(p % np.uint64(size)):
        raise OutOfBounds(f"{what}: misaligned address in program {program}")
    return p


def _size(pointer: Any) -> int:
    return max(1, pointer.get_element_ty().primitive_bitwidth // 8)


def _spread(a: Any, shape: Any) -> Any:
    return np.ascontiguousarray(a if a.shape == shape else np.broadcast_to(a, shape))


def _load(self: Any, pointer: Any, mask: Any, other: Any, *_: Any, **__: Any) -> Any:
    element = pointer.get_element_ty()
    dtype = _numpy_dtype(element)
    p = np.ascontiguousarray(pointer.data)
    m = _spread(mask.data, p.shape)
    read = _checked("load", p, m, _size(pointer), self.grid_idx)
    for address in read.ravel().tolist() if _writer else ():
        writer = _writer.get(address, self.grid_idx)
        if writer != self.grid_idx and not _knows(self.grid_idx, writer, _stored[address]):
            raise Race(f"program {self.grid_idx} reads what program {_writer[address]} wrote in the same launch")
    for storage, first, last in _met(read):
        _reads.setdefault(storage, []).append((self.grid_idx, _releases.get(self.grid_idx, 0), first, last, read))
    rest = _raw(np.full(p.shape, _anything(dtype), dtype) if other is None else _spread(other.data, p.shape).astype(dtype))
    made = base._interpreter.load(p, m, rest, rest.dtype)
    return Handle(np.asarray(made).view(dtype) if made.dtype != dtype else made, element)


def _store(self: Any, pointer: Any, value: Any, mask: Any, *_: Any, **__: Any) -> Any:
    p = np.ascontiguousarray(pointer.data)
    m, v = _spread(mask.data, p.shape), _spread(value.data, p.shape)
    dtype = _numpy_dtype(pointer.get_element_ty())
    if v.dtype.itemsize != dtype.itemsize:
        v = v.astype(dtype)
    stored = _checked("store", p, m, _size(pointer), self.grid_idx)
    for storage, first, last in _met(stored) if _reads else ():  # programs come one after another here: on a GPU this one may come first
        for reader, released, low, high, read in _reads.get(storage, ()):
            if (
                reader != self.grid_idx
                and low <= last
                and first <= high
                and not _knows(self.grid_idx, reader, released)
                and np.isin(stored, read).any()
            ):
                raise Race(f"program {self.grid_idx} stores where program {reader} has read in the same launch")
    for address in stored.ravel().tolist():
        if _writer.setdefault(address, self.grid_idx) != self.grid_idx:
            raise Race(f"programs {_writer[address]} and {self.grid_idx} both store to one address")
        _stored[address] = _releases.get(self.grid_idx, 0)
    return base._interpreter.store(p, _raw(v), m)


def _anything(dtype: Any) -> Any:
    """What stands where nothing was loaded."""
    return np.iinfo(dtype).max if dtype.kind in "iu" else True if dtype.kind == "b" else np.nan


def _met(addresses: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The storages that these lie in, and the first and the last of them."""
    if addresses.size:
        first, last = addresses.min(), addresses.max()
        yield from ((low, first, last) for low, high in _allowed if low <= last and first < high)


def _knows(me: Any, program: Any, released: int) -> bool:
    """Whether what that program did before its next release happened before what I do now."""
    return _seen.get(me, {}).get(program, 0) > released


def _atomic(self: Any, kind: Any, pointer: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
    _synchronise(self.grid_idx, _checked("atomic", pointer.data, mask.data, _size(pointer), self.grid_idx), sem, scope)
    return _stock_atomic(self, kind, pointer, value, mask, sem, scope)


def _synchronise(me: Any, addresses: Any, sem: Any, scope: Any) -> None:
    """What a program stored before it released is there for one that acquires after it, at the same address."""
    if scope == ir.MEM_SYNC_SCOPE.CTA:
        return
    both = ir.MEM_SEMANTIC.ACQUIRE_RELEASE
    for address in addresses.ravel().tolist() if sem in (ir.MEM_SEMANTIC.ACQUIRE, both) else ():
        _merge(me, _seen.get(address, {}))
    if sem in (ir.MEM_SEMANTIC.RELEASE, both):
        _releases[me] = _releases.get(me, 0) + 1
        for address in addresses.ravel().tolist():
            _merge(address, {**_seen.get(me, {}), me: _releases[me]})


def _merge(who: Any, seen: dict[Any, int]) -> None:
    mine = _seen.setdefault(who, {})
    mine.update({program: max(n, mine.get(program, 0)) for program, n in seen.items()})


def _storages(values: Any) -> Iterator[tuple[Any, Any]]:
    for v in values:
        if isinstance(v, (tuple, list)):
            yield from _storages(v)
        elif hasattr(v, "data_ptr"):
            s = base._unwrap_tensor(v).untyped_storage()
            yield np.uint64(s.data_ptr()), np.uint64(s.data_ptr() + s.nbytes())


_also: list[tuple[Any, Any]] = []


def _admit(tensors: Any) -> None:
    """A kernel may reach the call's tensors through a table of addresses rather than through its arguments."""
    _also[:] = list(_storages(tensors))


_contiguous = torch.Tensor.contiguous


def _copied(t: Any, *args: Any, **kwargs: Any) -> Any:
    """Through such a table also the copies that a launcher makes of what is not dense."""
    made = _contiguous(t, *args, **kwargs)
    _also.extend(_storages([made]))
    return made


# ---- libdevice -----------------------------------------------------------------------------------------------------------

_LIBDEVICE: dict[str, Any] = {"tanh": np.tanh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2, "sqrt": np.sqrt,
                  "rsqrt": lambda x: 1 / np.sqrt(x), "pow": np.power, "erf": np.vectorize(math.erf), "div_rn": np.divide, "abs": np.abs, "rint": np.rint,
                  "floor": np.floor, "ceil": np.ceil, "sin": np.sin, "cos": np.cos}  # fmt: skip


def _device_function(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **_: Any) -> Any:
        first = next(a for a in args if isinstance(a, tl.tensor))
        with np.errstate(all="ignore"):
            made = f(*(_wide(a.handle.data) if isinstance(a, tl.tensor) else np.asarray(a) for a in args))
        return tl.tensor(Handle(made.astype(_numpy_dtype(first.dtype)), first.dtype), first.type)

    run.__name__ = name
    return run


# ---- installation --------------------------------------------------------------------------------------------------------


def _install() -> None:
    base._get_np_dtype = _numpy_dtype
    Builder.cast_impl = _cast
    Builder.create_fp_to_fp = lambda self, source, target, rounding: _cast(self, source, target)
    for name in ("create_si_to_fp", "create_ui_to_fp", "create_fp_to_si", "create_fp_to_ui", "create_fp_ext", "create_fp_trunc"):
        setattr(Builder, name, lambda self, source, target: _cast(self, source, target))
    Builder.get_bf16 = lambda self, v: Handle(np.array([v], np.float32).astype(_LOW[tl.bfloat16]), tl.bfloat16)
    Builder.create_fabs = lambda self, a: Handle(np.abs(a.data), a.dtype.scalar)
    Builder.create_dot = _dot
    unary: dict[str, Any] = {"exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos, "sqrt": np.sqrt, "precise_sqrt": np.sqrt,
                        "floor": np.floor, "ceil": np.ceil, "rsqrt": lambda x: 1 / np.sqrt(x)}  # fmt: skip
    for name, f in unary.items():
        setattr(Builder, f"create_{name}", _unary(f))
    Builder.create_masked_load, Builder.create_masked_store = _load, _store
    Builder.create_atomic_rmw = _atomic
    for name, f in _LIBDEVICE.items():
        if hasattr(libdevice, name):
            setattr(libdevice, name, _device_function(name, f))

    begin = base.GridExecutor._init_args_hst

    def begin_launch(self: Any, args: Any, kwargs: Any) -> Any:
        made = begin(self, args, kwargs)
        for told in (_writer, _stored, _releases, _seen, _reads):
            told.clear()
        _allowed[:] = list({*_storages([*made[0], *made[1].values()]), *_also})
        return made

    base.GridExecutor._init_args_hst = begin_launch
    check.before_run.append(_admit)
    torch.Tensor.contiguous = _copied  # type: ignore[method-assign, assignment]
    _numpy_scalars()
    _patch_language_once()
    _shapes_once()
    _types_once()
    if base.interpreter_builder.options.debug:  # what it finds goes to device_assert, which without `debug` looks at nothing
        raise RuntimeError("Triton's interpreter runs with debug on, and would look at overflows in its own way")
    base.interpreter_builder.options = replace(base.interpreter_builder.options, sanitize_overflow=False)


def _numpy_scalars() -> None:
    """numpy 2.4 no longer makes an int of a one-element array, which Triton 3.6 leans on."""
    stock = base._patch_lang_tensor

    def patch(*args: Any) -> Any:
        made = stock(*args)
        args[0].__index__ = lambda self: int(np.asarray(self.handle.data).reshape(-1)[0])
        args[0].__bool__ = lambda self: bool(self.handle.data.reshape(-1)[0]) if self.handle.data.size == 1 else True
        return made

    base._patch_lang_tensor = patch


def _patch_language_once() -> None:
    """Each nested jit call patches the whole of triton.language again; once a launch is enough, and 1.5 times faster."""
    stock, done, of = base._patch_lang, dict[int, Any](), dict[int, tuple[Any, set[int]]]()

    class Nothing:
        def restore(self) -> None:
            pass

    class Scope:
        def restore(self) -> None:
            for scope in reversed(list(dict.fromkeys(done.values()))):
                scope.restore()
            done.clear()

    def patch(fn: Any) -> Any:
        if id(fn.__globals__) not in of:
            of[id(fn.__globals__)] = fn.__globals__, {id(v) for v in fn.__globals__.values() if ismodule(v) and v in (tl, tl.core)}
        _, modules = of[id(fn.__globals__)]
        if modules and modules <= done.keys():
            return Nothing()
        outermost, scope = not done, stock(fn)
        done.update({m: scope for m in modules if m not in done})
        return Scope() if outermost else Nothing()

    base._patch_lang = patch


def _shapes_once() -> None:
    """Each operation makes the type of its result anew, an object for every number of its shape: what a shape is made of is kept."""
    block, made = tl.block_type.__init__, dict[tuple[int, ...], tuple[Any, ...]]()
    scalar = (tl.tuple([]), tl.constexpr(1))

    def block_type(self: Any, element: Any, shape: Any) -> None:
        sizes = tuple([n.value if type(n) is tl.constexpr else n for n in shape])
        if sizes not in made:
            block(self, element, shape)
            made[sizes] = self.shape, self.numel, f"<{self.shape}, ", (tl.tuple([tl.constexpr(n) for n in sizes]), tl.constexpr(self.numel))
        self.shape, self.numel, name, self.of_tensors = made[sizes]
        self.element_ty, self.name = element, f"{name}{element}>"

    def tensor(self: Any, handle: Any, of: Any) -> None:
        self.handle, self.type, self.dtype = handle, of, of.scalar
        self.shape, self.numel = of.of_tensors if of.is_block() else scalar

    stock = Semantic.broadcast_impl_value

    def broadcast(self: Any, a: Any, b: Any) -> Any:
        if not (a.type.is_block() and b.type.is_block()):
            return stock(self, a, b) if a.type.is_block() or b.type.is_block() else (a, b)
        if a.type.shape is b.type.shape:
            return a, b
        m, n = a.type.shape.values, b.type.shape.values
        if len(m) != len(n) or any(i != j and 1 not in (i, j) for i, j in zip(m, n)):
            return stock(self, a, b)
        both = [max(i, j) for i, j in zip(m, n)]
        return tuple(
            x
            if x.type.shape.values == both
            else tl.tensor(self.builder.create_broadcast(x.handle, both), tl.block_type(x.type.scalar, both))
            for x in (a, b)
        )

    tl.block_type.__init__, tl.tensor.__init__, Semantic.broadcast_impl_value = block_type, tensor, broadcast


def _types_once() -> None:
    """What two types promote to is asked for each operation, and a cast to the type that a tensor has."""
    promote, cast, known = Semantic.computation_type_impl, Semantic.cast, dict[tuple[Any, ...], Any]()

    def promoted(self: Any, a: Any, a_is_scalar: bool, b: Any, *rest: bool) -> Any:
        key = (a.name, a_is_scalar, b.name, *rest)
        if key not in known:
            known[key] = promote(self, a, a_is_scalar, b, *rest)
        return known[key]

    def casted(self: Any, x: Any, to: Any, *rounding: Any) -> Any:
        return x if x.dtype is to.scalar else cast(self, x, to, *rounding)

    Semantic.computation_type_impl, Semantic.cast = promoted, casted


_install()
