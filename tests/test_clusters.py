"""Blocks of a cluster in the simulator: values, planted faults, and what cluster.cuh says of order, each line of it taken away."""

from pathlib import Path

import pytest
import torch

from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.cuda.source import INCLUDE, Source
from test_hopper import clean, simulated  # noqa: F401
from test_simulator import floats, marked, run, zeros

FOLDER = Path(__file__).parent / "cuda"
CLUSTERS, PLANTED = (Source(FOLDER / f"{name}.cu") for name in ("clusters", "clusters_planted"))


def case(name: str, cluster: int, threads: int, columns: int):
    x, out = floats(5, columns) + 3, zeros(5, cluster)
    want = x.sum(1) if name == "sums" else ((x - x.mean(1, keepdim=True)) ** 2).sum(1)
    return (f"{name}<{cluster}, {threads}>", (cluster,), (threads,), [out, x, 5, columns]), out, want[:, None].expand_as(out)


def check(shape, how, **knobs):
    for name in ("sums", "moments"):
        call, out, want = case(name, *shape)
        how(CLUSTERS, *call, **knobs)
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-4)


SHAPES = [(1, 64, 64), (2, 32, 50), (4, 64, 256), (8, 128, 1000), (8, 64, 40)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows(shape, clean):  # noqa: F811
    check(shape, clean)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES[1:4])
def test_rows_in_any_order(shape, seed):
    check(shape, simulated, seed=seed)


@pytest.mark.parametrize("cluster", [2, 8])
def test_several_clusters_each_with_its_own_ranks(cluster, clean):  # noqa: F811
    x, out = floats(3 * cluster * 64), zeros(3 * cluster * 64)
    clean(CLUSTERS, f"ring<{cluster}>", (3 * cluster,), (64,), [out, x])
    assert torch.equal(out.view(3, cluster, 64), x.view(3, cluster, 64).roll(1, 1).flip(2))


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("name", PLANTED.functions)
def test_planted(name, seed):
    report = run(PLANTED, name, (2,), (64,), [zeros(128), floats(64)], seed=seed, bound=1 << 24)
    (wanted,) = marked(PLANTED, name)
    found = {(line, f.kind) for f in report.findings for line in (f.line, f.other_line)}
    assert wanted in found, "\n".join(map(str, report.findings))


ORDERING = ("__syncwarp();", "mbarrier_fence();", "cluster_arrive_relaxed();", "mbarrier_wait(&s.barrier[turn % TURNS], turn / TURNS & 1);")
ORDERING += ("if (threadIdx.x == 0) mbarrier_arrive_expect(&s.barrier[turn % TURNS], s.BYTES);",)
ORDERING += ("for (int i = 0; i < TURNS; ++i) mbarrier_arrive_expect(&s.barrier[i], s.BYTES);",)


@pytest.mark.parametrize("line", ORDERING)
def test_no_line_of_the_exchange_can_be_taken_away(line, tmp_path):
    assert changed(line, ";", 1, tmp_path)


def test_one_half_is_not_enough(tmp_path):
    """A part of the next row would overwrite what others still read of this one."""
    assert changed("s.part[turn % TURNS]", "s.part[0]", 6, tmp_path)


def changed(old: str, new: str, times: int, folder: Path) -> bool:
    """Whether something is found in any of three orders when these words of the exchange are others."""
    header = (INCLUDE / "rooftile/cluster.cuh").read_text()
    begin = header.index("struct Exchange")
    assert header[begin:].count(old) == times
    (folder / "rooftile").mkdir()
    (folder / "rooftile/cluster.cuh").write_text(header[:begin] + header[begin:].replace(old, new))
    (folder / "clusters.cu").write_text(CLUSTERS.text)
    call, _, _ = case("sums", 4, 64, 256)
    return any(run(Source(folder / "clusters.cu"), *call, seed=seed, bound=1 << 24).findings for seed in (None, 1, 2))


def test_a_grid_is_whole_clusters():
    with pytest.raises(ValueError, match="a grid of 3 x 1 x 1 blocks is no whole number of clusters of 2"):
        simulator.run(CLUSTERS, CLUSTERS.function("ring<2>"), (3, 1, 1), (64, 1, 1), [zeros(192), floats(192)])


def test_a_function_knows_its_cluster():
    assert CLUSTERS.function("sums<8, 64>").cluster == "8" and PLANTED.function("names_a_third").cluster == "2"
    assert Source(FOLDER / "hopper.cu").function("bulk").cluster == "1"


@pytest.mark.parametrize("instance", ["sums<8, 128>", "moments<2, 32>", "ring<4>"])
def test_it_assembles(instance):
    made = compiler.compiled(CLUSTERS, instance, "sm_90a")
    assert made.spill_bytes == 0 and made.loss == ""


def test_elsewhere_it_is_a_trap():
    assert compiler.compiled(CLUSTERS, "ring<4>", "sm_80").registers < 16
