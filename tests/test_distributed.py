"""DDP and FSDP2 as users run them, in two processes over gloo: the losses of one process, and sharded checkpoints that go on to the bit."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import rooftile
from rooftile.models import GPT2, GPT2Config, Llama, llama_operators, operators
from rooftile.training import TrainConfig, TrainError, parallel
from rooftile.training.parallel import Team
from test_llama import SMALL, shape
from test_patch import build
from test_training import maker, run, series

STEPS, WORLD = 4, 2
TOKENS = torch.randint(0, 5, (STEPS, 4, 18), generator=torch.Generator().manual_seed(1))
OPTIONS = {"lr": 1e-2, "weight_decay": 0.1, "max_norm": 0.05}  # a norm that clips in every step


def our_llama(**changes):
    torch.manual_seed(0)
    return Llama(shape(**changes), llama_operators("rooftile"))


def our_gpt2():
    torch.manual_seed(0)
    return GPT2(GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4), operators("rooftile"))


def patched_llama():
    model = build("llama")
    rooftile.patch(model)
    return model


def ours(model, tokens):
    return model(tokens[:, :-1], tokens[:, 1:])


def theirs(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def train(model, optimizer, loss_of, steps, rank=0, world=1):
    """Each rank its share of the rows; the mean loss over all of them, step by step."""
    losses = []
    for tokens in TOKENS[steps]:
        loss = loss_of(model, tokens.chunk(world)[rank])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        if world > 1:
            dist.all_reduce(whole)
        losses.append(whole.item() / world)
    return losses


def shard(model):
    blocks = model.h if isinstance(model, GPT2) else getattr(model, "model", model).layers
    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


def whole(model):
    return {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.state_dict().items()}


def near(a, b):
    for name, value in a.items():
        torch.testing.assert_close(
            value, b[name.removeprefix("module.")], rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    try:
        for make, loss_of in (
            (our_llama, ours),
            (lambda: our_llama(tie_word_embeddings=True), ours),
            (our_gpt2, ours),
            (patched_llama, theirs),
        ):
            alone = make()
            expected = train(alone, rooftile.AdamW(alone.parameters(), **OPTIONS), loss_of, slice(None))
            assert expected[-1] < expected[0]
            for wrap in (DistributedDataParallel, shard):
                model = wrap(make())
                optimizer = rooftile.AdamW(model.parameters(), **OPTIONS)
                losses = train(model, optimizer, loss_of, slice(None), rank, WORLD)
                assert losses == pytest.approx(expected, rel=1e-5), (wrap, losses, expected)
                near(whole(model), alone.state_dict())
        sharded_checkpoint(rank, f"{folder}/sharded")
        bfloat16(rank)
        runs(rank, folder)
    finally:
        dist.destroy_process_group()


def sharded_checkpoint(rank, folder):
    """Saved in mid-run, loaded into a fresh model and optimizer, trained on: the bits of the run that was not interrupted."""
    model = shard(our_llama())
    optimizer = rooftile.AdamW(model.parameters(), **OPTIONS)
    train(model, optimizer, ours, slice(0, 2), rank, WORLD)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    rest = train(model, optimizer, ours, slice(2, None), rank, WORLD)
    torch.manual_seed(9)
    again = shard(Llama(SMALL, llama_operators("rooftile")))
    other = rooftile.AdamW(again.parameters(), **OPTIONS)
    weights, states = get_state_dict(again, other)
    stored = {"model": weights, "optimizer": states}
    dcp.load(stored, checkpoint_id=folder)
    set_state_dict(again, other, model_state_dict=stored["model"], optim_state_dict=stored["optimizer"])
    assert train(again, other, ours, slice(2, None), rank, WORLD) == rest
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local()), name
        assert all(torch.equal(optimizer.state[a][n].to_local(), other.state[b][n].to_local()) for n in ("exp_avg", "exp_avg_sq"))


@contextlib.contextmanager
def counted_calls():
    """Of each `Team.wrap`: the modules that were sharded one by one, and of DDP the megabytes of a bucket."""
    calls, wrap = [], Team.wrap

    def wrapped(self, model):
        made = wrap(self, model)
        shards = [m for m in made.modules() if isinstance(m, FSDPModule)]
        calls.append((shards, getattr(made, "bucket_bytes_cap", None) and made.bucket_bytes_cap // 2**20))
        return made

    with mock.patch.object(Team, "wrap", wrapped):
        yield calls


def runs(rank, folder):
    """`train` itself: the series of one process on all rows; begun in shards, gone on with whole, checkpoints being the same files."""
    tiny = maker(Path(folder))
    changes = {"model": "llama", "kernels": "rooftile", "clip": 0.5, "batch_size": 2, "memory": True}
    if rank == 0:
        run(tiny("alone", **{**changes, "batch_size": 4}))
    run(tiny("ddp", parallel="ddp", **changes))
    run(tiny("fsdp", parallel="fsdp", steps=3, detect_anomaly=True, **changes))
    with mock.patch.object(
        Team, "_scarce", lambda self, model: False
    ):  # as on a GPU that has room: weights stay whole until the backward pass
        result = run(tiny("fsdp", parallel="fsdp", steps=4, resume=True, **changes))
        with (
            mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(WORLD)}),
            counted_calls() as calls,
        ):  # near each other: all is exchanged at once
            run(tiny("ddp_once", parallel="ddp", **changes))
            run(tiny("fsdp_once", parallel="fsdp", **changes))
        assert [(len(made), buckets) for made, buckets in calls] == [(0, 1), (1, None)], calls
    run(tiny("fsdp", parallel="ddp", resume=True, **changes))
    if rank == 0:
        for name in ("ddp", "fsdp", "ddp_once", "fsdp_once"):
            rows = zip(series(f"{folder}/{name}"), series(f"{folder}/alone"), strict=True)
            assert all(a.keys() == b.keys() and all(a[key] == pytest.approx(b[key], rel=1e-4) for key in a) for a, b in rows), name
            near(Llama.from_pretrained(f"{folder}/{name}/model").state_dict(), Llama.from_pretrained(f"{folder}/alone/model").state_dict())
        with pytest.raises(TrainError, match="trained by 2 processes, this run has 1"):
            run(tiny("fsdp", steps=9, resume=True, **changes))
    assert len(result.sample) == 9
    dist.barrier()


def bfloat16(rank):
    """Weights in bfloat16 with float32 masters, in shards that do not divide: 61 rows, and 1 row for two ranks."""
    torch.manual_seed(0)
    model = Llama(SMALL, llama_operators("rooftile"), torch.bfloat16, weights=torch.bfloat16)
    model.extra = torch.nn.Parameter(torch.ones(1, 3, dtype=torch.bfloat16))
    shard(model)
    optimizer = rooftile.AdamW(model.parameters(), **OPTIONS, master=True)
    with pytest.raises(ValueError, match="narrow takes plain float32 parameters"):
        optimizer.narrow(shard(our_llama()).parameters())
    (loss,) = train(model, optimizer, lambda m, t: ours(m, t) + m.extra.float().sum(), slice(0, 1), rank, WORLD)
    assert 6 < loss < 8
    state = optimizer.state[model.extra]
    assert state["master"].placements == model.extra.placements and state["master"].dtype == state["exp_avg"].dtype == torch.float32
    assert model.extra.to_local().shape[0] == 1 - rank and (model.extra.full_tensor() < 1).all()


def test_two_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))
    torch.multiprocessing.spawn(worker, (str(tmp_path),), nprocs=WORLD)


def test_a_process_takes_its_own_gpu_before_it_meets_the_others(monkeypatch):
    """NCCL refuses two processes on one GPU, and every collective is on the current one."""
    done = []
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(f"set {device}"))
    monkeypatch.setattr(dist, "init_process_group", lambda backend: done.append(f"init {backend}"))
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda named: done.append("broadcast"))
    team = Team(TrainConfig(device="cuda", parallel="ddp"))
    assert team.agree(TrainConfig(device="cuda", parallel="ddp", out="here")).device == "cuda:1"
    assert done == ["set cuda:1", "init nccl", "broadcast"]


@pytest.mark.parametrize("local, reach, near", [("2", True, True), ("1", True, False), (None, True, False), ("2", False, False)])
def test_near_are_processes_of_one_machine_whose_gpus_reach_each_other(local, reach, near, monkeypatch):
    asked = []
    if local:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: asked.append((one.index, other)) or reach)
    team = Team(TrainConfig())
    team.world, team.device = 2, "cuda:1"
    assert team._near() is near
    assert asked == ([(1, 0)] if local == "2" else [])
    team.device = "cpu"
    assert team._near() is (local == "2")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("scarce", [True, False])
def test_near_ones_exchange_at_once_only_where_the_model_leaves_room(kind, scarce, monkeypatch):
    sharded, knobs = [], {}
    monkeypatch.setattr(Team, "_near", lambda self: True)
    monkeypatch.setattr(Team, "_scarce", lambda self, model: scarce)
    monkeypatch.setattr(Team, "_unshared", lambda self: "all blocks")
    monkeypatch.setattr(parallel, "DistributedDataParallel", lambda model, **given: knobs.update(given))
    monkeypatch.setattr("torch.distributed.device_mesh.DeviceMesh.from_group", lambda group, device: f"{group} on {device}")
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", lambda m, **given: sharded.append(type(m).__name__) or knobs.update(given))
    team, model = Team(TrainConfig()), GPT2(GPT2Config(vocab_size=8, n_positions=4, n_embd=8, n_layer=2, n_head=1))
    team.kind = kind
    team.wrap(model)
    assert sharded == ([] if kind == "ddp" else ["Block", "Block", "GPT2"] if scarce else ["GPT2"])
    assert ("bucket_cap_mb" in knobs) is (kind == "ddp" and not scarce)
    assert knobs["process_group" if kind == "ddp" else "mesh"] == (
        None if scarce else "all blocks" if kind == "ddp" else "all blocks on cuda"
    )


def test_an_exchange_beside_nothing_has_all_of_nccls_blocks(monkeypatch):
    given = {}
    nccl = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace(min_ctas=None, max_ctas=None)))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)  # which a PyTorch for CPUs lacks
    monkeypatch.setattr(dist, "new_group", lambda **knobs: given.update(knobs) or "a group")
    team = Team(TrainConfig())
    team.device = "cpu"
    assert team._unshared() is None and not given  # gloo takes no such options
    team.device = "cuda:1"
    assert team._unshared() == "a group" and given["backend"] == "nccl"
    assert vars(given["pg_options"].config) == {"min_ctas": 64, "max_ctas": 64}
