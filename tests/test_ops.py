"""The grid: operator x kernel x case x input family x layout. It does not grow; operators declare themselves into it."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import processes
from rooftile.core.kernel import TooLarge
from rooftile.cuda import simulator
from rooftile.cuda.source import Source
from rooftile.workbench import check, dry, gatekeeper

OPS = {op.spec.name: op for op in check.all_ops()}


def child(*words: str, **environment: str) -> str:
    """The interpreter and the stand-in driver each want a process of their own."""
    run = processes.run(*words, **environment)
    assert run.returncode in (0, 1) and run.stdout, run.stderr[-3000:]
    return run.stdout


@pytest.mark.parametrize("name", OPS)
def test_reference(name):
    """The definition passes its own gate: no case is vacuous, every family and layout can be posed. Attention over 1e8 products and more, and rows
    of 4e6 elements in all, are for the GPU: ten seconds and more each here."""

    def quick(dims):
        rows = math.prod(dims.get(n, 1) for n in "BHTMN")
        return math.prod(n for n in dims.values() if isinstance(n, int)) < 1e8 and rows < 4e6

    points = [p for p in check.grid(check.with_gradients([OPS[name]])) if p.kernel is p.op.kernels[-1]]
    points = gatekeeper.affordable([p for p in points if quick(p.case.dims)])
    verdicts = check.run_points(points, "cpu")
    assert verdicts
    assert [v for v in verdicts if v.status != "passed"] == []


IN_TRITON = [n for n, op in OPS.items() if any(k.name.startswith("triton") for o in check.with_gradients([op]) for k in o.kernels)]


COMPOSED = ("attention_qkvpacked", "rotary_attention")  # of attention's kernels and rope's, which have rows of their own


@pytest.mark.parametrize(
    "name, kernels",
    [(n, "triton" if n in COMPOSED else "") for n in IN_TRITON] + [pytest.param(n, "", marks=pytest.mark.thorough) for n in COMPOSED],
)
def test_triton_through_the_interpreter(name, kernels):
    only = ["--kernel", kernels] if kernels else []
    answer = json.loads(child("rooftile", "check", name, *only, "--device", "interpret", "--json", TRITON_INTERPRET="1"))
    bad = [v for v in answer["results"] if v["status"] in ("failed", "error")]
    assert bad == []
    ran = {(v["op"], v["kernel"]) for v in answer["results"] if v["status"] == "passed"}
    declared = {(o.spec.name, k.name) for o in check.with_gradients([OPS[name]]) for k in o.kernels
                if k.name.startswith("triton") and kernels in ("", k.name)}  # fmt: skip
    assert declared <= ran, f"never ran: {declared - ran}"


IN_CUDA = [name for name, op in OPS.items() if any(k.name.startswith("cuda.") for o in check.with_gradients([op]) for k in o.kernels)]


@pytest.mark.parametrize("name", IN_CUDA)
def test_cuda_in_the_simulator(name):
    answer = gatekeeper.check([name], None, "sim", None)
    assert [v for v in answer["results"] if v["status"] in ("failed", "error")] == []
    ran = {(v["op"], v["kernel"]) for v in answer["results"] if v["status"] == "passed"}
    declared = {(o.spec.name, k.name) for o in check.with_gradients([OPS[name]]) for k in o.kernels if k.name.startswith("cuda.")}
    assert declared <= ran, f"never ran: {declared - ran}"


def waits(kernel):
    """Whether its threads wait for one another by more than a block's barrier."""
    files = {path.name for source in kernel.sources if isinstance(source, Source) for path in source.files}
    return kernel.name.startswith("cuda.") and bool(files & {"mbarrier.cuh", "cluster.cuh", "sync.cuh"})


WAITING = {(o.spec.name, k.name): (o, k) for o in check.with_gradients(check.all_ops()) for k in o.kernels if waits(k)}


@pytest.mark.thorough
@pytest.mark.parametrize("names", WAITING, ids="-".join)
def test_nobody_waits_for_ever_in_another_order(names):
    """Nor does anything else come up in orders that nobody chose. Of a second's work at most: several tiles."""
    (op, kernel), ran = WAITING[names], 0
    for case in (c for c in op.spec.cases if c.dtype == torch.bfloat16 and {"smoke", "check"} & {*c.use}):
        call = op.spec.draw(case, 0, torch.device("cpu"))
        for seed in (1, 2, 3) if op.spec.operations(call) < 2e8 else ():
            call = op.spec.draw(case, 0, torch.device("cpu"))
            with simulator.active("values", seed=seed):
                if kernel.refuse(call) is None:
                    kernel.bound(kernel.heuristic(call))(*call.values())
                    ran += 1
    assert ran


COMPILE = """
import json, sys
from dataclasses import asdict
from rooftile.workbench import dry
arch, every, lean = map(int, sys.argv[1:4])
print(json.dumps([asdict(row) for row in dry.compile_all(sys.argv[4:], arch, bool(every), bool(lean))]))
"""


def compiles_within_its_limits(names, arch, every=False, lean=True):
    run = processes.run(str(arch), str(int(every)), str(int(lean)), *names, code=COMPILE, ROOFTILE_DRY_GPU="1")
    assert run.returncode == 0, run.stderr[-3000:]
    rows = json.loads(run.stdout)
    assert [f"{r['op']} {r['kernel']} {r['case']} {r['config']}: {r['fault']}" for r in rows if r["fault"]] == []
    compiled = {(r["op"], r["kernel"]) for r in rows if not r["fault"]}
    declared = {(o.spec.name, k.name) for o in check.with_gradients([OPS[n] for n in names]) for k in o.kernels
                if k.name.startswith(("triton", "gluon")) and not k.sources and arch in (k.architectures or (arch,))}  # fmt: skip
    assert declared <= compiled, f"never compiled: {declared - compiled}"


NAMES = [o.spec.name for o in check.all_ops()]


HEAVY = [n for n in NAMES if n.startswith("attention")]  # two thirds of the time: for Hopper here, for the others in the thorough run
APART = [
    n for n in NAMES if n not in COMPOSED
]  # what is composed of others' kernels has their instances at other strides: in the thorough run


@pytest.mark.parametrize("names", [APART[0::3], APART[1::3], APART[2::3]], ids=lambda names: f"{names[0]}-and-others")
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_triton_compiles_within_its_limits(arch, names):
    compiles_within_its_limits([n for n in names if arch == 90 or n not in HEAVY], arch, lean=arch == 90)


FUSED = """
import importlib.util, pathlib, tempfile
from rooftile.ops._shared import triton_norms
from rooftile.workbench import dry
text = pathlib.Path(triton_norms.__file__).read_text()
assert text.count(" / N + 0.0") == 1
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "changed.py"
    file.write_text(text.replace(" / N + 0.0", " / N"))
    spec = importlib.util.spec_from_file_location("changed", file)
    changed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changed)
    triton_norms._forward = changed._forward
    print([row.fault for row in dry.compile_all(["layernorm"], 90) if row.kernel == "triton" and row.op == "layernorm"])
"""


@pytest.mark.thorough
def test_other_bits_where_nothing_is_saved_are_seen():
    """LayerNorm's mean, where it is not stored, is subtracted in one multiply-add."""
    made = processes.run(code=FUSED, ROOFTILE_DRY_GPU="1")
    assert re.search(r"_forward has {'FADD': \d+} with what a gradient reads and {'FFMA': \d+} without", made.stdout), (
        made.stdout + made.stderr
    )


LEAN = [n for n in NAMES if any(k.lean for k in OPS[n].kernels)]


@pytest.mark.thorough
@pytest.mark.parametrize("arch", [80, 100])
@pytest.mark.parametrize("names", [HEAVY, LEAN], ids=["heavy", "lean"])
def test_what_takes_long_compiles_within_its_limits_elsewhere(names, arch):
    compiles_within_its_limits(names, arch)


@pytest.mark.thorough
@pytest.mark.parametrize("name", APART)  # what is composed of others' kernels has their configs
def test_triton_compiles_within_its_limits_in_every_config(name):
    compiles_within_its_limits([name], 90, every=True)


TIGHT = """
import dataclasses, json
from rooftile.core.kernel import OPS, Limits
from rooftile.workbench import dry
op = OPS["residual_add"]
kernel = op.kernel("triton")
tight = dataclasses.replace(kernel, limits=Limits(registers=4))
op.kernels = tuple(tight if k is kernel else k for k in op.kernels)
rows = [r for r in dry.compile_all(["residual_add"], 90, every=True) if (r.op, r.kernel) == ("residual_add", "triton")]
print(json.dumps([len(kernel.configs), [r.config for r in rows if "registers, the limit is 4" in r.fault]]))
"""


def test_a_config_that_keeps_to_the_limits_nowhere_is_told():
    made = processes.run(code=TIGHT, ROOFTILE_DRY_GPU="1")
    assert made.returncode == 0, made.stderr[-2000:]
    count, told = json.loads(made.stdout)
    assert len({json.dumps(config, sort_keys=True) for config in told}) >= count


def test_what_is_compiled_is_the_first_config_that_fits_as_in_a_launch(monkeypatch):
    """Seen red: of sm_80, a first config for 227 KiB was a fault, whatever stood behind it."""
    op = OPS["residual_add"]
    kernel = replace(op.kernel("triton"), configs=({"n": 3}, {"n": 2}, {"n": 1}), pick=None)
    stand_in, tried = SimpleNamespace(arch=80), []

    def compiled(stand_in, op, kernel, case, config, lean, room=2):
        tried.append(config["n"])
        if config["n"] > room:
            raise TooLarge(f"{config['n']} KiB, a block has {room}")
        return [dry._nothing(stand_in, op, kernel, case, config, "")]

    monkeypatch.setattr(dry, "_compile", compiled)
    (row,) = dry._chosen(stand_in, op, kernel, op.spec.cases[0], False)
    assert (row.config, row.fault, tried) == ({"n": 2}, "", [3, 2])
    monkeypatch.setattr(dry, "_compile", partial(compiled, room=0))
    (row,) = dry._chosen(stand_in, op, kernel, op.spec.cases[0], False)
    assert row.config == {"n": 3} and row.fault == "no config fits, {'n': 1} does not: 1 KiB, a block has 0"
    (row,) = dry._of_config(stand_in, op, kernel, {"n": 2}, list(op.spec.cases[:1]), False)
    assert row.fault == "2 KiB, a block has 0"


SMALL = """
import json, sys
from rooftile.core.kernel import OPS, Op
from rooftile.workbench import dry
from rooftile.workbench.explain import blank
dry.driver.set_active(dry.StandIn(89))
runner, tried = Op._runner, []
Op._runner = lambda op, choice, *more: (tried.append((op.spec.name, choice.kernel.name)), runner(op, choice, *more))[1]
for name in sys.argv[1:]:
    op = OPS[name]
    op.kernels = tuple(k for k in op.kernels if not k.sources and not k.architectures and k.name != "cudnn")
    op.launch(*blank(op.spec, [c for c in op.spec.cases if "bench" in c.use][-1], "meta").values())
print(json.dumps(tried))
"""


def test_attention_runs_where_a_block_has_99_kib():
    """Its configs are for 163 KiB, or an H200's 227, and sm_86, sm_89 and sm_120 have less. Seen red: Triton was out of resources."""
    made = processes.run("attention", "attention_decode", code=SMALL, ROOFTILE_DRY_GPU="1")
    assert made.returncode == 0, made.stderr[-2000:]
    tried = dict(json.loads(made.stdout))
    assert len(json.loads(made.stdout)) > len(tried) == 2 and "reference" not in tried.values()


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_on_the_gpu(name):
    verdicts = check.run_points(check.grid(check.with_gradients([OPS[name]]), device="cuda"), "cuda")
    assert [v for v in verdicts if v.status in ("failed", "error")] == []
    assert any(v.status == "passed" and v.kernel != "reference" for v in verdicts)
