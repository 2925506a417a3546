"""What is shared out to processes is what one process finds."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.workbench import bench, check, gatekeeper
from rooftile.workbench.spread import spread

UNITS = [(op, OPS[op].spec.cases[0].id, ("reference",), "cpu") for op in ("vector_add", "array_increment")]


def test_verdicts_of_two_processes_and_what_one_raises():
    made = dict(spread(gatekeeper.judge, UNITS, 2))
    assert set(made) == set(UNITS)
    for unit, verdicts in made.items():
        assert verdicts == gatekeeper.judge(*unit) and {(v["op"], v["case"]) for v in verdicts} == {unit[:2]} and len(verdicts) > 1
    with pytest.raises(ValueError, match="refrence"):
        list(spread(bench.complaint, [("vector_add", "refrence", "cpu")], 1))


def waits(file, seconds):
    with open(file, "a") as f:
        f.write(f"{seconds}\n")
    time.sleep(seconds)


def test_who_has_heard_enough_waits_for_what_is_under_way(tmp_path):
    begun = tmp_path / "begun"
    for _ in (heard := spread(waits, [(str(begun), 0.1 * i) for i in range(40)], 2)):
        heard.close()
    assert 1 <= len(begun.read_text().splitlines()) < 10  # two at work, and as many handed over to each


def test_what_is_under_way_at_the_end_is_heard_and_nothing_is_begun(tmp_path):
    """Seen red: the first that was done after the end was the last that was heard of, and what the other processes had found was lost."""
    begun = tmp_path / "begun"
    made = [seconds for (_, seconds), _ in spread(waits, [(str(begun), 0.3 + 0.01 * i) for i in range(40)], 2, time.monotonic() + 0.1)]
    assert sorted(map(str, made)) == sorted(begun.read_text().splitlines()) and 2 <= len(made) < 10
    assert not [*spread(waits, [(str(tmp_path / "late"), 0.0)], 1, time.monotonic())] and not (tmp_path / "late").exists()


INTERRUPTED = """
import contextlib, signal, sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from test_spread import waits
from rooftile.workbench.spread import spread
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it, these tests too
    units = [(sys.argv[1], 0.1)] * 3 + [(sys.argv[1], 300.0)] * 2  # and one has nothing to do
    with contextlib.closing(spread(waits, units, 3)) as heard:
        for _ in heard:
            if sys.argv[2] == "does something":
                Path(sys.argv[1]).write_text("300.0 does something")
                time.sleep(300)
"""


@pytest.mark.parametrize("who", ["waits", "does something"])
def test_ctrl_c_waits_for_nothing(who, tmp_path):
    """A terminal sends it to all processes. Seen to hang: those that were idle ended, and the pool waited for ever; who did something else at the time waited
    for all that was left."""
    script, begun = tmp_path / "interrupted.py", tmp_path / "begun"
    script.write_text(INTERRUPTED)
    begun.touch()
    path = os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])
    ours = subprocess.Popen(
        [sys.executable, str(script), str(begun), who],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        text=True,
        stderr=subprocess.PIPE,
    )
    try:
        while "300.0" not in begun.read_text():
            assert ours.poll() is None
            time.sleep(0.05)
        os.killpg(ours.pid, signal.SIGINT)
        said = ours.communicate(timeout=60)[1]
        assert ours.returncode == -signal.SIGINT and "ForkServerProcess" not in said, said  # one who was asked answers
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ours.pid, signal.SIGKILL)


def told(name):
    """A kernel that takes the device down for its process."""
    if name == "guilty":
        torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, dies
    return name, torch.get_num_threads()


def dies():
    raise torch.AcceleratorError("an illegal memory access was encountered")


def heard(name):
    return os.environ.get(name)


def test_an_environment_that_changes_between_two_calls_is_handed_on(monkeypatch):
    for said in ("first", "second"):  # the process that the others are forked from is there at the second
        monkeypatch.setenv("ROOFTILE_HEARD", said)
        assert dict(spread(heard, [("ROOFTILE_HEARD",)], 1)) == {("ROOFTILE_HEARD",): said}


def test_a_dead_device_is_nobody_elses_verdict():
    units = [("guilty",), ("innocent",), ("innocent too",)]
    assert dict(spread(told, units, 1)) == {unit: (*unit, 1) for unit in units}


def test_who_imports_an_operator_has_woken_no_device():
    """PyTorch's engine asks all devices when it first runs, and of a GPU that was asked in this process its children get nothing."""
    code = """
import torch
def asleep(*_, **__): raise AssertionError("a backward ran while importing")
torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = asleep
import rooftile.workbench.gatekeeper, rooftile.models
try:
    torch.ones(1, requires_grad=True).sum().backward()
except AssertionError:
    print("asleep")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout == "asleep\n", said.stderr[-1000:]


def test_jobs_that_cannot_be():
    with pytest.raises(ValueError, match="0 jobs are less than 1"):
        list(spread(bench.complaint, UNITS, 0))
    with pytest.raises(ValueError, match=r"--jobs 2: .* on cpu 1 process judges"):
        gatekeeper.check(["vector_add"], None, "cpu", None, jobs=2)


@pytest.fixture
def session(monkeypatch):
    """On a CPU, without its ceilings; processes are this one."""
    monkeypatch.setattr(bench, "spread", lambda work, units, jobs, end: [(u, work(*u)) for u in units if time.monotonic() < end])
    made = bench.Session.__new__(bench.Session)
    made.where, made._green, made.passed = torch.device("cpu"), {}, set()
    return made


def one_case(op):
    """Of a bench case that is none, so that nothing is compiled."""
    return [(op, op.spec.cases[0])]


def test_what_is_prepared_is_not_judged_again(session, monkeypatch):
    op = OPS["array_increment"]
    session.prepare(one_case(op), ["torch"], 2)
    assert set(session._green) == {("array_increment", k.name) for k in op.kernels[:-1]}
    monkeypatch.setattr(check, "run_points", lambda *a: pytest.fail("judged again"))
    assert not any(session.green(op, k) for k in op.kernels[:-1])


def test_nothing_is_prepared_when_time_is_over(session, monkeypatch):
    """And who was not judged for want of it has no verdict."""
    monkeypatch.setattr(bench, "complaints", lambda *a: pytest.fail("judged"))
    monkeypatch.setattr(bench, "warm", lambda *a: pytest.fail("compiled"))
    session.prepare(one_case(OPS["array_increment"]), ["compile"], 2, end=time.monotonic())
    assert not session._green


def test_who_has_passed_as_it_is_now_is_not_judged_again(session, monkeypatch):
    """And nobody else's verdict is taken for another's."""
    op = OPS["softmax"]
    *passed, stranger = (k.name for k in op.kernels[:-1])
    session.passed = {(op.spec.name, k) for k in passed}
    asked = []
    monkeypatch.setattr(
        bench, "complaints", lambda name, case, device, kernels: asked.append((case, kernels)) or dict.fromkeys(kernels, "")
    )
    session.prepare(one_case(op), [], 2)
    assert asked == [(c.id, (stranger,)) for c in op.spec.cases if "check" in c.use]
    monkeypatch.setattr(check, "run_points", lambda *a: pytest.fail("judged again"))
    assert not any(session.green(op, k) for k in op.kernels[:-1])
    asked.clear()
    session.passed.add((op.spec.name, stranger))
    session.prepare(one_case(op), [], 2)
    assert not asked


def test_only_what_will_be_timed_is_compiled_and_no_cuda(session, monkeypatch):
    """Of two bench cases of three the Triton kernels and the peer that compiles; of tuning, which tries every config, CUDA C++ as well."""
    op, warmed = OPS["softmax"], []
    cases = [c for c in op.spec.cases if "bench" in c.use][:3]
    session.passed = {(op.spec.name, k.name) for k in op.kernels[:-1]}
    monkeypatch.setattr(bench, "warm", lambda *unit: warmed.append(unit))
    session.prepare([(op, c) for c in cases[:2]], ["torch", "compile"], 2)
    two = tuple(c.id for c in cases[:2])
    triton = [k.name for k in op.kernels[:-1] if k.name.startswith("triton")]
    assert warmed == [("softmax", k, "cpu", two, None) for k in triton] + [("softmax", "peer.compile", "cpu", (c,), None) for c in two]
    warmed.clear()
    other = OPS["vector_add"]
    session.passed |= {(other.spec.name, k.name) for k in other.kernels[:-1]}
    added = next(c for c in other.spec.cases if "bench" in c.use)
    session.prepare([(op, cases[0]), (other, added)], [], 2)
    assert {(unit[0], unit[3]) for unit in warmed} == {("softmax", two[:1]), ("vector_add", (added.id,))}
    warmed.clear()
    session.prepare([(op, cases[0])], [], 2, "cuda")
    assert {unit[1] for unit in warmed} == {k.name for k in op.kernels[:-1]}


def test_warming_up_runs_the_cases_it_is_given(monkeypatch):
    ran = []
    monkeypatch.setattr(bench, "_versions", lambda op, version, case, where, every: [lambda: ran.append((version, case.id))])
    cases = [c.id for c in OPS["softmax"].spec.cases if "bench" in c.use]
    bench.warm("softmax", "triton", "cpu", (cases[1],), None)
    assert ran == [("triton", cases[1])]


def test_a_complaint_comes_back_and_want_of_memory_is_none(session, monkeypatch):
    said = {"cuda.v1_naive": "M3: dx: error 7 times the allowed", "triton": "M3: CUDA out of memory. Tried to allocate 2.00 GiB"}
    op = OPS["array_increment"]
    second = [c.id for c in op.spec.cases if "check" in c.use][1]

    def heard(op, case, device, kernels):
        return {k: said.get(k, "") if case == second else "" for k in kernels}

    monkeypatch.setattr(bench, "complaints", heard)
    session.prepare(one_case(op), [], 2)
    assert {k: v for (_, k), v in session._green.items()} == {"cuda.v2_vector": "", "cuda.v1_naive": said["cuda.v1_naive"]}


def test_a_kernel_that_nobody_judged_is_judged_when_its_turn_comes(session, monkeypatch):
    """Another has killed the device of their case before."""
    monkeypatch.setattr(bench, "complaints", lambda op, case, device, kernels: {"triton": "M3: the device died"})
    session.prepare(one_case(OPS["array_increment"]), [], 2)
    assert session._green == {("array_increment", "triton"): "M3: the device died"}


def test_want_of_memory_beside_others_is_judged_alone(monkeypatch):
    (unit, other), heard = UNITS, []

    def judge(*unit):
        heard.append(unit)
        return [{"message": ""}]

    said = [(unit, [{"message": "CUDA out of memory"}]), (other, [{"message": "wrong"}])]
    monkeypatch.setattr(gatekeeper, "spread", lambda work, units, jobs, end: (each for each in said))
    monkeypatch.setattr(gatekeeper, "judge", judge)
    points = [check.Point(OPS[op], OPS[op].kernel(k), OPS[op].spec.cases[0]) for op, _, (k,), _ in UNITS]
    assert gatekeeper._shared_out(points, "cpu", None, 2) == [{"message": ""}, {"message": "wrong"}] and heard == [unit]
