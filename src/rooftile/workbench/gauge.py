"""How wrong is too wrong: a tolerance derived for each output from the problem itself.

With truth t (float64), PyTorch's own result w in the working dtype, u the unit roundoff of the output's dtype and u32 = 2^-24 (2^-53 where
the output is float64, which is then added in float64):

    rounding_ij = (u + 4 u32) |t_ij| + tiny               the last cast, a few float32 operations before it, float32 subnormals flushed to zero
    sense_ij    = |t(x (1 + 2 u32 z)) - t(x)|_ij          what float32-sized noise z in the inputs does (conditioning), the largest of a few draws
    beta        = max_ij (|w - t|_ij - rounding_ij)_+ / max_j |t_ij|      the part of PyTorch's error that rounding does not explain, of rows with a digit left
    allowed_ij  = factor (rounding_ij + sense_ij + max_j sense_ij + max(beta max_j |t_ij|, gamma s_i))
    s_i         = max_j |t_ij|, or max_j sense_ij / 2 u32 where that is CANCELS times as much: the size of the row's terms; gamma is beta by this scale

A float of 8 bits is held tighter: it must be what some number within allowed_ij, without what the last cast may do, is rounded to.

Where PyTorch is exact to rounding (norms, softmax, losses) beta is 0 and every element counts, however small; where sums cancel
(matrix products, attention) the row's scale counts. Beside it stands the relative error of whole rows, held to `aggregate` times PyTorch's.

Why gamma: a row that is one number many times over (a product whose columns are equal) may cancel as a whole, and then its rounding errors,
PyTorch's too, are large beside it and small beside its terms. beta is the error of the row that cancels most, and whether PyTorch was lucky
there is a coin: an exact kernel of mlp's gradient, which rounds once where PyTorch rounds twice, was refused in 65 of 600 draws of equal
inputs. Beside the terms all rows err alike, so that the largest of PyTorch's errors says what any of them may be; no other row is given more.

Rows that cancel until the dtype of the output has no digit of them left (terms times 2 eps above the row) count in beta only for their like: of
24576 rows of dq one of a query that sees two keys was so, and an unwritten row passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rooftile.core.spec import Tolerance

U32 = 2.0**-24
CANCELS = 16.0


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff of the arithmetic behind an output of this dtype."""
    return 2.0**-53 if dtype == torch.float64 else U32


@dataclass(frozen=True)
class Reading:
    passed: bool
    worst: float  # largest |error| / allowed; 1 is the limit
    aggregate: float  # row error / allowed row error
    message: str = ""


class Gauge:
    """The measure for one output of one call."""

    def __init__(self, truth: Tensor, own: Tensor, noisy: list[Tensor], scale: float, tolerance: Tolerance, exact: bool):
        self.truth, self.tolerance, self.dtype = truth, tolerance, own.dtype
        self.exact = exact or not own.dtype.is_floating_point
        self.expected = truth.to(own.dtype).contiguous()
        if self.exact or truth.numel() == 0:
            return
        self.finite = _is_finite(self.expected) & torch.isfinite(truth)
        self.whole = bool(self.finite.all())  # then nothing has to be masked
        t = self.t = self._finite(truth)
        u, inner = torch.finfo(own.dtype).eps / 2, unit(own.dtype)
        self.rounding = (u + 4 * inner) * t.abs() + max(torch.finfo(torch.float32).tiny, torch.finfo(own.dtype).tiny * u)
        self.row = self._rows(t).abs().amax(-1, keepdim=True)
        zero = self.row == 0  # a row of zeros is measured by the size of what went in
        self.row = torch.where(zero, self.row.max() if bool((~zero).any()) else torch.full_like(self.row, scale), self.row)
        sense = self._rows(torch.stack([(self._finite(n) - t).abs() for n in noisy]).amax(0))
        # A sum that cancels to noise (dq of a query that sees one key) has no digits of its own: its scale is that of its terms.
        ill = sense.amax(-1, keepdim=True) > 2.0**-10 * self.row
        self.row = torch.where(ill, sense.amax(-1, keepdim=True) / (2 * inner), self.row)
        apart = self._apart(own)
        error = (apart - self._rows(self.rounding)).clamp_min(0)
        terms = self._terms(self.row, sense.amax(-1, keepdim=True))
        lost, share = terms * 2 * torch.finfo(own.dtype).eps > self.row, error / self.row
        self.beta = torch.where(lost, share.max(), torch.where(lost, 0.0, share).max())
        gamma = float((error / terms).max())
        self.sense, self.moved = sense, 4 * (sense + sense.amax(-1, keepdim=True))
        own_errors = torch.maximum(self.beta * self.row, gamma * terms)
        self.allowed = self.tolerance.factor * (self._rows(self.rounding) + sense + sense.amax(-1, keepdim=True) + own_errors)
        if own.dtype.itemsize == 1:
            before = self.allowed - self.tolerance.factor * self._rows(
                self.rounding - (4 * inner * t.abs() + torch.finfo(torch.float32).tiny)
            )
            self.between = [self._narrowed(t, side * before) for side in (-1, 1)]
        norm = self._rows(t).norm(dim=-1)
        self.norm = torch.where((norm == 0) | ill[:, 0], self.row[:, 0] * math.sqrt(t.shape[-1] if t.dim() else 1), norm)
        norms = self.norm, self._terms(self.norm, sense.norm(dim=-1))
        self.own_rows = [(norm, self._by_rows(apart, norm)) for norm in norms]
        self.allowed_rows = []
        for norm, theirs in self.own_rows:
            cast = 0.6 * u * float((self.norm / norm).square().mean().sqrt())  # the last one is as large as the row is, not its terms
            moved = float((sense.norm(dim=-1) / norm).max())
            self.allowed_rows.append((norm, tolerance.aggregate * max(theirs, moved, cast + 2 * inner)))

    def _narrowed(self, t: Tensor, apart: Tensor) -> Tensor:
        """What a number so far from t becomes in 8 bits."""
        most = torch.finfo(self.dtype).max
        return (self._rows(t) + apart).clamp(-most, most).to(self.dtype).float().reshape(t.shape)

    def _terms(self, row: Tensor, sense: Tensor) -> Tensor:
        """A row's scale, or that of its terms where they cancel."""
        terms = sense / (2 * unit(self.dtype))
        return torch.where(terms > CANCELS * row, terms, row)

    def _finite(self, x: Tensor) -> Tensor:
        x = x.to(self.truth.dtype)
        return x if self.whole else torch.where(self.finite, x, 0.0)

    def _apart(self, x: Tensor) -> Tensor:
        """|error|, in rows."""
        return self._rows((self._finite(x) - self.t).abs())

    @staticmethod
    def _rows(x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)

    @staticmethod
    def _by_rows(apart: Tensor, norm: Tensor) -> float:
        """Root mean square over rows of each row's relative error."""
        return float((apart.norm(dim=-1) / norm).square().mean().sqrt())

    def read(self, out: Tensor) -> Reading:
        if out.shape != self.truth.shape:
            return Reading(False, math.inf, math.inf, f"shape {list(out.shape)}, expected {list(self.truth.shape)}")
        if out.dtype != self.dtype:
            return Reading(False, math.inf, math.inf, f"dtype {out.dtype}, expected {self.dtype}")
        if out.numel() == 0:
            return Reading(True, 0.0, 0.0)
        if self.exact:
            apart = ~_same(out, self.expected)
            wrong = int(apart.sum())
            said = f"{wrong} of {out.numel()} elements are not bit-exact{_where(apart)}" if wrong else ""
            return Reading(wrong == 0, float(wrong), 0.0, said)
        strange = ~_is_finite(out)
        if not self.whole:
            strange = torch.where(self.finite, strange, ~_same(out, self.expected))
        if bool(strange.any()):
            return Reading(False, math.inf, math.inf, f"NaN or infinity in {int(strange.sum())} of {out.numel()} places where there must be none, or none where there must be one{_where(strange)}")  # fmt: skip
        if self.dtype.itemsize == 1:
            return self._read_8_bits(out)
        apart = self._apart(out)
        share = apart / self.allowed
        worst, aggregate = float(share.max()), min(self._by_rows(apart, norm) / allowed for norm, allowed in self.allowed_rows)
        passed = worst <= 1 and aggregate <= 1
        message = "" if passed else f"error {worst:.3g} times the allowed elementwise, {aggregate:.3g} times by rows; {int((share > 1).sum())} of {out.numel()} elements{_where((share > 1).reshape(out.shape))}"  # fmt: skip
        return Reading(passed, worst, aggregate, message)

    def passes(self, out: Tensor) -> bool:
        """What `read` finds of it. Most wrong answers are too far off somewhere, and then nothing else is looked at."""
        if not self.exact and out.numel() and self.dtype.itemsize > 1 and bool((self._apart(out) / self.allowed > 1).any()):
            return False
        return self.read(out).passed

    def _read_8_bits(self, out: Tensor) -> Reading:
        low, high = self.between
        apart = self.finite & ((out.float() < low) | (out.float() > high))
        wrong = int(apart.sum())
        said = f"{wrong} of {out.numel()} elements are no rounding of what they may be{_where(apart)}" if wrong else ""
        return Reading(wrong == 0, float(wrong), 0.0, said)

    def controls(self) -> dict[str, Tensor]:
        """Wrong answers that must not pass. One that equals the right answer is none and is left out."""
        if self.truth.numel() == 0:
            return {}
        t = self.expected
        made: dict[str, Tensor] = {"zeros": torch.zeros_like(t), "ones": torch.ones_like(t)}
        if t.dim():
            column = t.clone()
            column[..., -1] = 0
            made["last column dropped"] = column
            row = t.clone()
            row.view(-1, t.shape[-1])[-1] = 0
            made["last row unwritten"] = row
        if t.dtype.is_floating_point:
            made["x 1.04"] = (t.double() * 1.04).to(t.dtype)
            if not self.exact:
                mean = torch.where(self.finite, self.t.sum() / self.finite.sum().clamp_min(1), self.truth)
                made["mean"] = mean.to(t.dtype)
                if (
                    t.numel() > 1 and t.itemsize > 1
                ):  # there is nothing below 8 bits; one number may happen to be a number of the lower precision too
                    coarse = torch.where(self.finite, _coarse(self.expected), t)
                    # float32 made of bfloat16 has no digits that this could lose, nor has a row beside the terms that cancel in it
                    if all(self._by_rows(self._apart(coarse), norm) > 2 * error for norm, error in self.own_rows):
                        made["lower precision"] = coarse
        return {n: c for n, c in made.items() if not self._right(c)}

    def _right(self, control: Tensor) -> bool:
        """Equal to the right answer, or no further from it than noise in the inputs moves it (dq of a query that sees one key)."""
        if bool(_same(control, self.expected).all()):
            return True
        if self.exact:
            return False
        return bool((self._apart(control) <= self.moved).all())


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise: equal, or both NaN. PyTorch compares few things in 8 bits."""
    return (a == b) | (a.isnan() & b.isnan())


def _is_finite(x: Tensor) -> Tensor:
    return torch.isfinite(x.float() if x.itemsize == 1 else x)


def _coarse(x: Tensor) -> Tensor:
    """x with the mantissa of the next lower precision: float32 for float64, tf32 for float32, bf16 for float16, fp8 e4m3 for bf16."""
    bits = {torch.float64: 23, torch.float32: 10, torch.float16: 7, torch.bfloat16: 3}[x.dtype]
    mantissa, exponent = torch.frexp(x.double())
    step = 2.0 ** (bits + 1)
    return torch.ldexp((mantissa * step).round() / step, exponent).to(x.dtype)


def _where(bad: Tensor) -> str:
    if bad.dim() == 0 or not bool(bad.any()):
        return ""
    first = [int(i) for i in bad.nonzero()[0]]
    return f", the first at {first} of {list(bad.shape)}"
