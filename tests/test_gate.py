"""Wrong kernels are planted in every operator, and the gate must refuse each of them: a check that cannot fail is a defect."""

import pytest
import torch
from torch import Tensor

from rooftile.core.kernel import OPS, Kernel
from rooftile.workbench.check import Problem


def results(out) -> list[Tensor]:
    return [] if out is None else list(out) if isinstance(out, tuple) else [out]


def packed(out: list[Tensor]):
    return out[0] if len(out) == 1 else tuple(out)


def outputs(spec, call: dict) -> list[Tensor]:
    """What a run of the reference gives: its results, or what it wrote in place."""
    made = results(spec.reference(**call))
    return made or [t for n, a in spec.args.items() if a.mutated for t in call[n]]


def after(change):
    """A plant that spoils the right answer: `change` is told each output (or what was updated in place) and writes into it."""

    def plant(spec):
        def run(*args):
            call = dict(zip(spec.signature.parameters, args))
            made = [t if spec.returns == {} else t.clone(memory_format=torch.contiguous_format) for t in outputs(spec, call)]
            for t in made:
                if t.is_floating_point() and t.numel():
                    change(t)
            return packed(made) if spec.returns else None

        return run

    return plant


def before(change):
    """A plant that reads the wrong input: `change` gives what it takes each real tensor for."""

    def plant(spec):
        def run(*args):
            call = dict(zip(spec.signature.parameters, args))
            seen = {n: _seen(change, v) if not spec.args.get(n) or not spec.args[n].mutated else v for n, v in call.items()}
            made = outputs(spec, seen)
            return packed([t.contiguous() for t in made]) if spec.returns else None

        return run

    return plant


def _seen(change, v):
    if isinstance(v, list):
        return [_seen(change, t) for t in v]
    return change(v) if isinstance(v, Tensor) and v.is_floating_point() and v.dim() else v


def _scale(t):
    t.mul_(1.04)


def _last_tile(t):
    t.view(-1)[-max(1, t.numel() // 8) :] = float("nan")


def _last_column(t):
    t = t.clone()
    t[..., -1] = 0
    return t


def _wrong_axis(t):
    return t.transpose(-1, -2).reshape(t.shape) if t.dim() > 1 else t.flip(-1)


def stale(spec):
    """Gives the answer to a call it has seen before."""

    def run(*args):
        case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)
        call = spec.draw(case, seed=99)
        made = outputs(spec, call)
        if spec.returns:
            return packed([t.contiguous() for t in made])
        written = [t for n, a in spec.args.items() if a.mutated for t in dict(zip(spec.signature.parameters, args))[n]]
        for t, wrong in zip(written, made):
            t.copy_(wrong)
        return None

    return run


def mutating(spec):
    """Right, but it scribbles on an input."""

    def run(*args):
        call = dict(zip(spec.signature.parameters, args))
        made = [t.contiguous() for t in results(spec.reference(**call))]
        target = [v for n, v in call.items() if n in spec.args and not spec.args[n].mutated]
        target = next(t for t in (v[0] if isinstance(v, list) else v for v in target) if t is not None and t.is_floating_point())
        target.view(-1)[0] += 1
        return packed(made) if spec.returns else None

    return run


def irreproducible(spec):
    """Another last bit at every call: a race seen from outside."""
    calls = []

    def run(*args):
        call = dict(zip(spec.signature.parameters, args))
        calls.append(1)
        made = outputs(spec, call)
        for t in made:
            if t.is_floating_point() and t.numel() and len(calls) % 2 == 0:
                t.view(-1)[0] = torch.nextafter(t.view(-1)[0], torch.tensor(float("inf"), dtype=t.dtype))
        return packed([t.contiguous() for t in made]) if spec.returns else None

    return run


PLANTS = {
    "wrong scale": after(_scale),
    "last tile unwritten": after(_last_tile),
    "last column dropped": before(_last_column),
    "wrong axis": before(_wrong_axis),
    "stale output": stale,
    "input mutated": mutating,
    "irreproducible": irreproducible,
}


def refused(op, run, dtype=torch.float32) -> list[str]:
    """The gate's verdict on every smoke case of a dtype."""
    cases = [c for c in op.spec.cases if "smoke" in c.use and c.dtype == dtype]
    assert cases
    return [Problem(op.spec, c, "normal", "cpu").judge(Kernel("planted", run)).status for c in cases]


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", OPS)
def test_planted_wrong_kernels_are_refused(name, plant):
    statuses = refused(OPS[name], PLANTS[plant](OPS[name].spec))
    assert set(statuses) == {"failed"}, f"{plant} passes for {name}: {statuses}"


@pytest.mark.parametrize("name", OPS)
def test_the_right_kernel_passes(name):
    spec = OPS[name].spec
    assert set(refused(OPS[name], OPS[name].kernels[-1].run)) == {"passed"}, spec.name


@pytest.mark.parametrize("name", OPS)
def test_lower_precision_is_refused(name):
    """float32 in, but the work done in bf16."""
    spec = OPS[name].spec

    def down(v):
        return (
            [down(t) for t in v]
            if isinstance(v, list)
            else v.bfloat16().to(v.dtype)
            if isinstance(v, Tensor) and v.is_floating_point()
            else v
        )

    def run(*args):
        call = {n: v if spec.args.get(n) and spec.args[n].mutated else down(v) for n, v in zip(spec.signature.parameters, args)}
        made = outputs(spec, call)
        return packed([down(t).contiguous() for t in made]) if spec.returns else None

    assert set(refused(OPS[name], run)) == {"failed"}
