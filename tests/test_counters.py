"""The hardware's counters beside the simulator's: a report of ncu, here a made-up one, becomes records and a table on the page."""

import sys
from dataclasses import asdict, replace

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.core.record import append, read
from rooftile.cuda.launch import recording
from rooftile.workbench import counters, ledger, pages
from rooftile.workbench.counters import METRICS, UNITS, Planned

ENVIRONMENT = {"gpu": "NVIDIA H200", "torch": "2.11.0"}
HEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]


def plan_of(op, kernel, case, config=None) -> Planned:
    call = op.spec.draw(case)
    config = dict(config or kernel.heuristic(call))
    with recording() as seen:
        kernel.bound(config)(*call.values())
    return Planned(op.spec.name, kernel.name, case.id, kernel.digest, config, counters.launched(seen))


@pytest.fixture(scope="module")
def planned():
    """What `launch` would have written for float32 transposes and sums."""
    made = []
    for op, kernel, case in counters.rungs(["transpose", "reduce_sum"]):
        if case.dtype == torch.float32 and kernel.name in ("cuda.v2_shared", "cuda.v3_padded"):
            made.append(plan_of(op, kernel, case))
    assert [len(p.launches) for p in made] == [1, 1, 3]
    return {"device": "nvidia-h200", "environment": ENVIRONMENT, "rungs": [asdict(p) for p in made]}


def line(cells) -> str:
    return ",".join(f'"{c}"' for c in cells) + "\n"


def report(plan, wide, spoil=lambda i, metrics: None) -> str:
    """As ncu prints it: 1,000 requests of everything, with 2, 3 and so on as many units as the kernel's place in the report."""
    text = "==PROF== Connected to process 1\nprinted by the program\n==PROF== Disconnected\n"
    text += line([*HEAD, *METRICS]) + line(["", *[""] * 10, *["sector"] * len(METRICS)]) if wide else line([*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"])  # fmt: skip
    for i, (name, grid, block) in enumerate(one for p in plan["rungs"] for one in p["launches"]):
        metrics = {m: f"{1000 * (i + 2) if m == units else 1000:,}" for units, requests in UNITS.values() for m in (units, requests)}
        spoil(i, metrics)
        own = [i, 1, "python", "host", f"void {name}<float>(T1 *, const T1 *, int)", 1, 7, str(tuple(block)), str(tuple(grid)), 0, "9.0"]
        if wide:
            text += line([*own, *metrics.values()])
        else:
            text += "".join(line([*own, "Command line profiler metrics", m, "", v]) for m, v in metrics.items())
    return text


@pytest.mark.parametrize("wide", [True, False])
def test_a_report_becomes_records(planned, wide, tmp_path):
    made = counters.records(report(planned, wide), planned)
    assert [(r.op, r.kernel) for r in made] == [(p["op"], p["kernel"]) for p in planned["rungs"]]
    for r, units, requests in zip(made, (2000, 3000, 15000), (1000, 1000, 3000)):  # the sum's three launches: 4, 5 and 6 thousand units
        assert set(r.extra["hardware"]) == set(r.extra["simulator"]) == set(r.extra["asked"]) == set(UNITS)
        for what, n in r.extra["asked"].items():  # of shared memory the report's 1,000 are instructions
            assert r.extra["hardware"][what] == round(units / (n if what.startswith("shared") else requests), 3)
    loads = {r.kernel: r.extra["simulator"]["shared_load"] for r in made if r.op == "transpose"}
    assert loads == {"cuda.v2_shared": 32, "cuda.v3_padded": 1}
    assert all(r.method.startswith("ncu") and r.case.startswith("counters-") and not ledger.is_stale(r) for r in made)
    append(tmp_path / "x.jsonl", made)
    assert [r.extra for r in read(tmp_path / "x.jsonl")] == [r.extra for r in made]


def test_records_of_one_operator_alone(planned):
    """The report is held to the whole plan all the same."""
    text = report(planned, True)
    alone = counters.records(text, planned, ["reduce_sum"])
    assert [(r.op, r.extra) for r in alone] == [(r.op, r.extra) for r in counters.records(text, planned) if r.op == "reduce_sum"] != []
    with pytest.raises(ValueError, match="no operator of this plan is called 'reduce_sun'; did you mean reduce_sum"):
        counters.records(text, planned, ["reduce_sun"])
    with pytest.raises(ValueError, match="the report has 5 kernels, the plan 2"):
        counters.records(text, {**planned, "rungs": planned["rungs"][:2]}, ["transpose"])


def test_a_plan_of_gemv_is_the_same_on_a_machine_of_132_multiprocessors(monkeypatch):
    """A matrix cut into slices there and not here would be another kernel's counters."""
    made = []
    for count in (2, 132):
        for module in ("cuda_kernels", "kept_kernels"):
            monkeypatch.setattr(sys.modules[f"rooftile.ops.gemv.{module}"], "processors", lambda x, count=count: count)
        plans = [plan_of(*one) for one in counters.rungs(["gemv"])]
        made.append([(p.kernel, p.case, [(name, block) for name, _, block in p.launches]) for p in plans])
    assert made[0] == made[1] and len(made[0]) == 10


def test_the_page_shows_both_where_they_differ(planned):
    made = counters.records(report(planned, True), planned)
    same = [replace(r, extra={**r.extra, "hardware": r.extra["simulator"]}) for r in made if r.op == "transpose"]
    table = {("nvidia-h200", "transpose", same[0].case): same}
    assert "| cuda.v2_shared | 4 | 4 | 1 | 32 |" in pages.counters("transpose", table)
    other = [r for r in made if r.op == "transpose"]
    assert "(32) |" in pages.counters("transpose", {("nvidia-h200", "transpose", other[0].case): other})
    stale = [replace(same[0], digest="another")]
    assert "(stale)" in pages.counters("transpose", {("nvidia-h200", "transpose", same[0].case): stale})
    assert pages.counters("gemv", table) == "Not measured yet.\n"


def test_what_does_not_fit_is_said_with_both_numbers(planned):
    with pytest.raises(ValueError, match="2 lines, and none begins with"):
        counters.records("==ERROR==\nno counters for you", planned)
    with pytest.raises(ValueError, match="the report has 5 kernels, the plan 2"):
        counters.records(report(planned, True), {**planned, "rungs": planned["rungs"][:2]})
    turned = {**planned, "rungs": [planned["rungs"][2], *planned["rungs"][:2]]}
    with pytest.raises(ValueError, match=r"the plan says sum .*, the report transpose"):
        counters.records(report(planned, True), turned)
    with pytest.raises(ValueError, match="has 7 of 8 metrics, not l1tex__t_sectors_pipe_lsu_mem_global_op_st"):
        counters.records(report(planned, False, lambda i, m: m.pop(UNITS["global_store"][0]) if i == 1 else None), planned)
    other = {**planned["rungs"][2], "config": {}, "launches": planned["rungs"][2]["launches"][:2]}
    with pytest.raises(ValueError, match=r"reduce_sum cuda.v2_shared: with {} this machine launches .*, the plan says"):
        counters.records(report({**planned, "rungs": [other]}, True), {**planned, "rungs": [other]})
    with pytest.raises(ValueError, match="gelu has no case to be counted on"):
        counters.rungs(["gelu"])


def test_every_case_can_be_simulated_and_every_request_is_whole():
    """The cases are there to be compared: each rung takes them, and none of its requests is cut short at an edge."""
    for op, kernel, case in counters.rungs(["transpose"]):
        asked = counters.simulated(plan_of(op, kernel, case))
        assert all(units % requests == 0 for units, requests in asked.values()), (kernel.name, case.id)
    assert set(counters.CASES) <= set(OPS)


def softmax_counts(name, config=None):
    op = OPS["softmax"]
    return counters.simulated(plan_of(op, op.kernel(name), counters.CASES["softmax"][1], config))


def test_what_comes_by_itself_is_no_store_of_a_warp():
    """A row of 8 KB by cp.async and four partial sums, a store each; a cluster's barriers, which are set up but not stored."""
    units, requests = softmax_counts("cuda.v6_pipeline")["shared_store"]
    assert units == requests <= 64 * 8
    assert "shared_store" not in softmax_counts("cuda.v8_exchange")


def test_the_simulator_runs_the_config_that_ran_on_the_gpu():
    """One with blocks of another size than this machine would choose."""
    kernel = OPS["softmax"].kernel("cuda.v5_online")
    call = OPS["softmax"].spec.draw(counters.CASES["softmax"][1])
    own = dict(kernel.heuristic(call))
    assert own["threads"] != 256 and softmax_counts("cuda.v5_online", {**own, "threads": 256})["global_load"][0] == 64 * 4096 * 2 / 32
