"""cuBLASLt as its header has it, on a CPU's memory: descriptors with attributes by number and size, matrices by columns, epilogues. It is called
through C function pointers, so that what the binding hands over goes through the same machinery as to the library itself."""

import contextlib
import ctypes

import torch
from torch.utils._python_dispatch import _disable_current_modes

from rooftile.cuda import cublaslt

P, I, N, L, U = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_uint64
PROTOTYPES = {  # as the header has them; every one returns a status
    "cublasLtCreate": (P,),
    "cublasLtMatmulDescCreate": (P, I, I),
    "cublasLtMatmulDescDestroy": (P,),
    "cublasLtMatmulDescSetAttribute": (P, I, P, N),
    "cublasLtMatrixLayoutCreate": (P, I, U, U, L),
    "cublasLtMatrixLayoutDestroy": (P,),
    "cublasLtMatmulPreferenceCreate": (P,),
    "cublasLtMatmulPreferenceDestroy": (P,),
    "cublasLtMatmulPreferenceSetAttribute": (P, I, P, N),
    "cublasLtMatmulAlgoGetHeuristic": (P, P, P, P, P, P, P, I, P, P),
    "cublasLtMatmulAlgoConfigGetAttribute": (P, I, P, N, P),
    "cublasLtMatmul": (P, P, P, P, P, P, P, P, P, P, P, P, P, P, N, P),
}
INVALID, UNSUPPORTED = 7, 15
SIZES = {3: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 8}  # bytes of a description's attributes: transposed A and B, epilogue, bias, aux and its rows
PREFERRED = {1: 8, 5: 4, 6: 4, 7: 4, 8: 4}  # of a preference's: workspace, alignments
DTYPES = {2: torch.float16, 14: torch.bfloat16, 0: torch.float32}
LEAN = 1000  # what is offered without a workspace is counted from here
DEFAULT, BIAS, GELU_AUX, GELU_AUX_BIAS, DGELU, ANSWER = 1, 4, 32 | 128, 32 | 128 | 4, 64 | 128, 96  # the last: bytes of one answer


class Library:
    """offered: algorithms for every product; the i-th asks for i KB, has tile 100 + i, or that of `tiles`, and parts the sum where `parted` names it;
    without a workspace `lean` tiles are offered, and none is needed. fails: status by function. `log` has every product that ran."""

    def __init__(self, offered=5, fails=None, before_matmul=lambda: None, tiles=(), parted=(), lean=()):
        self.tiles, self.parted, self.lean = dict(enumerate(range(100, 200))) | dict(enumerate(tiles)), parted, lean
        self.tiles |= {LEAN + i: tile for i, tile in enumerate(lean)}
        self.offered, self.fails, self.before_matmul = offered, fails or {}, before_matmul
        self.alive, self.counts, self.log = {}, dict.fromkeys(PROTOTYPES, 0), []
        self.used = 0x1000
        for name, arguments in PROTOTYPES.items():
            setattr(self, name, ctypes.CFUNCTYPE(I, *arguments)(self._counted(name)))
        self.cublasLtGetStatusName = lambda status: {7: b"INVALID_VALUE", 13: b"EXECUTION_FAILED", 15: b"NOT_SUPPORTED"}.get(status)

    def _counted(self, name):
        def run(*arguments):
            self.counts[name] += 1
            if name in self.fails:
                return self.fails[name]
            try:
                with _disable_current_modes():  # PyTorch does not see what a library computes
                    return getattr(self, name.removeprefix("cublasLt"))(*arguments) or 0
            except (AssertionError, KeyError):
                return INVALID

        return run

    def _new(self, to, what):
        self.used += 16
        self.alive[self.used] = what
        P.from_address(to).value = self.used

    def Create(self, to):
        self._new(to, "handle")

    def MatmulDescCreate(self, to, compute, scale):
        assert (compute, scale) == (68, 0)
        self._new(to, {})

    MatmulPreferenceCreate = lambda self, to: self._new(to, {5: 256, 6: 256, 7: 256, 8: 256})  # noqa: E731

    def MatrixLayoutCreate(self, to, kind, rows, columns, leading):
        assert rows <= leading
        self._new(to, (DTYPES[kind], rows, columns, leading))

    def MatmulDescDestroy(self, which):
        del self.alive[which]

    MatrixLayoutDestroy = MatmulPreferenceDestroy = MatmulDescDestroy

    def _attribute(self, which, attribute, at, size, sizes):
        assert sizes[attribute] == size
        self.alive[which][attribute] = int.from_bytes(ctypes.string_at(at, size), "little")

    def MatmulDescSetAttribute(self, which, attribute, at, size):
        self._attribute(which, attribute, at, size, SIZES)

    def MatmulPreferenceSetAttribute(self, which, attribute, at, size):
        self._attribute(which, attribute, at, size, PREFERRED)

    def MatmulAlgoGetHeuristic(self, handle, description, a, b, c, d, preference, wanted, answers, count):
        preferred, epilogue = self.alive[preference], self.alive[description]
        assert self.alive[handle] == "handle" and self.alive[c][:3] == self.alive[d][:3]
        assert epilogue[7] in (DEFAULT, BIAS) or (epilogue[11] % 16 == 0 and epilogue[12] % 8 == 0)
        if min(preferred[i] for i in (5, 6, 7, 8)) < 16:
            return UNSUPPORTED
        offered = [(i, i * 1024) for i in range(self.offered)] if preferred[1] else [(LEAN + i, 0) for i in range(len(self.lean))]
        for i, (which, space) in enumerate(offered[:wanted]):
            U.from_address(answers + i * ANSWER).value = which + 1  # the algorithm's own 64 bytes
            N.from_address(answers + i * ANSWER + 64).value = space
            I.from_address(answers + i * ANSWER + 72).value = 0
        I.from_address(count).value = min(wanted, len(offered))
        return 0

    def MatmulAlgoConfigGetAttribute(self, algorithm, attribute, at, size, written):
        which = U.from_address(algorithm).value - 1
        assert size == 4 and written is None
        I.from_address(at).value = {1: self.tiles[which], 2: 3 if which in self.parted else 1}[attribute]

    def Matmul(self, handle, description, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, work, size, stream):
        chosen = U.from_address(algorithm).value - 1
        kept = ctypes.c_float.from_address(beta).value
        assert ctypes.c_float.from_address(alpha).value == 1 and kept in (0, 1)
        assert size == (chosen * 1024 if chosen < LEAN else 0) and (work is not None) == (size > 0)
        self.before_matmul()
        wanted = self.alive[description]
        left, right, old, out = (self._matrix(at, self.alive[which]) for at, which in ((a, of_a), (b, of_b), (c, of_c), (d, of_d)))
        left, right = (t.t() if wanted.get(which) else t for t, which in ((left, 3), (right, 4)))
        made = left.double() @ right.double()
        epilogue = wanted[7]
        assert left.dtype == right.dtype != torch.float32 and (kept == 0 or epilogue in (DEFAULT, BIAS))
        if kept:
            assert old.dtype == out.dtype and old.shape == out.shape
            made = made + old.double()
        if epilogue in (BIAS, GELU_AUX_BIAS):
            made = made + self._matrix(wanted[8], (out.dtype, out.shape[0], 1, out.shape[0])).double()
        aux = None if epilogue in (DEFAULT, BIAS) else self._matrix(wanted[11], (out.dtype, *out.shape, wanted[12]))
        if epilogue in (GELU_AUX, GELU_AUX_BIAS):
            aux.copy_(made)
            made = torch.nn.functional.gelu(made, approximate="tanh")
        elif aux is not None:
            assert epilogue == DGELU
            with torch.enable_grad():
                at = aux.double().requires_grad_()
                (slope,) = torch.autograd.grad(torch.nn.functional.gelu(at, approximate="tanh").sum(), at)
            made = made * slope
        out.copy_(made)
        self.log.append((chosen, stream, tuple(out.t().shape)))

    @staticmethod
    def _matrix(at, layout):
        """rows x columns by columns, `leading` elements apart, where they lie."""
        dtype, rows, columns, leading = layout
        count = (columns - 1) * leading + rows
        return torch.frombuffer((ctypes.c_char * (dtype.itemsize * count)).from_address(at), dtype=dtype).as_strided(
            (rows, columns), (1, leading)
        )


@contextlib.contextmanager
def in_the_machines_place(monkeypatch, stream=0):
    """A function that makes a Library, which the binding finds from then on, on tensors that lie on the CPU."""
    monkeypatch.setattr(cublaslt, "relaxed", contextlib.nullcontext)
    monkeypatch.setattr(cublaslt, "_stream", lambda x: stream)
    monkeypatch.setattr(cublaslt, "_plans", {})
    find = cublaslt._find

    def put(**how):
        library = Library(**how)
        cublaslt._handle.cache_clear()
        monkeypatch.setattr(cublaslt, "_find", lambda: library)
        return library

    yield put
    cublaslt._handle.cache_clear()
    find.cache_clear()
