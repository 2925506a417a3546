"""Several processes that train one model, as torchrun starts them:

    torchrun --nproc-per-node 2 -m rooftile train --parallel fsdp ...

Each takes its share of a step's rows. `ddp` keeps the model whole in every process, `fsdp` (`fully_shard`) a part of every tensor. All of them go
through the same steps; the one of rank 0 writes. A checkpoint is the same file as that of one process, with whole tensors in it.
"""

import dataclasses
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rooftile.training.config import TrainConfig
from rooftile.training.errors import TrainError

__all__ = ["Team"]

BLOCKS = 64  # of a kernel of NCCL's at most: what it has channels for


class Team:
    """The processes of a run; of one alone, where `parallel` is none."""

    def __init__(self, config: TrainConfig):
        self.kind, self.rank, self.world, self.began, self.device = config.parallel, 0, 1, False, config.device
        if self.kind == "none":
            return
        there = dist.is_initialized()
        if not there and "RANK" not in os.environ:
            raise TrainError(f"parallel {self.kind!r} is for several processes: torchrun --nproc-per-node 2 -m rooftile train ...")
        if self.device == "cuda":  # before the first collective: NCCL takes the current GPU, and refuses two processes on one
            self.device = f"cuda:{os.environ.get('LOCAL_RANK') or (dist.get_rank() if there else os.environ['RANK'])}"
            torch.cuda.set_device(self.device)
        if not there:
            dist.init_process_group("nccl" if self.device.startswith("cuda") else "gloo")
            self.began = True
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def close(self) -> None:
        if self.began:
            dist.destroy_process_group()

    def agree(self, config: TrainConfig) -> TrainConfig:
        """The folder of rank 0, whose clock named it; and on GPUs each process its own."""
        if self.world == 1:
            return config
        named = [config.out]
        dist.broadcast_object_list(named)
        return dataclasses.replace(config, out=named[0], device=self.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """What the forward pass is called on. `fsdp` changes the model itself: its parameters are shards from here on.

        Who exchanges beside the passes takes multiprocessors from products, a wave of whose tiles then becomes two. Near ones do it at once instead, all
        weights before the forward pass and all gradients behind the backward pass, where the model's size leaves room."""
        if self.kind == "none":
            return model
        freed = self._scarce(model)
        at_once = not freed and self._near()
        group = self._unshared() if at_once else None
        if self.kind == "ddp":
            buckets = {"bucket_cap_mb": sum(p.nbytes for p in model.parameters()) // 2**20 + 1} if at_once else {}
            return DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=True, **buckets
            )  # or gradients are there twice
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard  # a second to import, which no other run should wait for

        for block in () if at_once else getattr(model, "layers", None) or model.h:
            fully_shard(block, reshard_after_forward=freed)
        fully_shard(model, mesh=None if group is None else DeviceMesh.from_group(group, "cuda"))
        return model

    def _unshared(self) -> dist.ProcessGroup | None:
        """All processes, for exchanges that nothing else runs beside: NCCL by itself leaves most multiprocessors to others, and links are then not
        full. None, the group there is, on CPUs."""
        if not self.device.startswith("cuda"):
            return None
        options = dist.ProcessGroupNCCL.Options()
        options.config.min_ctas = options.config.max_ctas = BLOCKS  # one of them alone NCCL refuses
        return dist.new_group(backend="nccl", pg_options=options)

    def _near(self) -> bool:
        """Whether all processes are on one machine, and its GPUs, if they have some, reach each other's memory."""
        if self.world != int(os.environ.get("LOCAL_WORLD_SIZE", 0)):
            return False
        mine = torch.device(self.device)
        others = (i for i in range(self.world) if i != mine.index)
        return mine.type == "cpu" or all(torch.cuda.can_device_access_peer(mine, i) for i in others)

    def _scarce(self, model: nn.Module) -> bool:
        """Whether a block's whole weights are freed after its forward pass, and gathered again for its backward: not where those of all blocks
        together are a sixteenth of the GPU's memory at most."""
        if not self.device.startswith("cuda"):
            return True
        return 16 * sum(p.nbytes for p in model.parameters()) > torch.cuda.get_device_properties(self.device).total_memory

    def share(self, rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """This process's rows of a step."""
        x, y = (t.chunk(self.world)[self.rank] for t in rows)
        return x, y

    def mean(self, loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Over all processes; no host waits."""
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if self.world > 1:
            loss = loss / self.world
            dist.all_reduce(loss)
        return loss, norm

    def anyone(self, asked: bool) -> bool:
        """Whether it is so in any process: they answer SIGTERM after the same step. Waits for all."""
        if self.world == 1:
            return asked
        seen: list[Any] = [None] * self.world
        dist.all_gather_object(seen, asked)
        return any(seen)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def whole(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
        """Weights and optimizer state as one process has them; of shards on rank 0 alone, but all must ask. Masters stand in the place of
        their weights and nowhere else: what is stored is what a run on float32 weights stores."""
        if self.kind != "fsdp":
            return _without_masters(model.state_dict(), optimizer.state_dict(), _names(model, optimizer))
        state_dict, of_all = _sharded()
        weights, named = state_dict.get_state_dict(model, optimizer, options=of_all)
        if self.rank:
            return {}, {}
        return weights, _numbered(named, _names(model, optimizer), optimizer)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict, states: dict) -> None:
        """The way back; every process has read the whole."""
        names = _names(model, optimizer)
        if self.kind != "fsdp":
            model.load_state_dict(weights)
            optimizer.load_state_dict(_with_masters(optimizer, states, [weights[name] for name in names]))
            return
        groups = [{**group, "params": [names[i] for i in group["params"]]} for group in states["param_groups"]]
        named = {"state": {names[i]: state for i, state in states["state"].items()}, "param_groups": groups}
        state_dict, of_all = _sharded()
        state_dict.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=named, options=of_all)


def _sharded() -> tuple[Any, Any]:
    """PyTorch's own way from shards to whole tensors on rank 0 and back, and its options; late, like `fully_shard`."""
    from torch.distributed.checkpoint import state_dict

    return state_dict, state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The parameters' names in the order in which an optimizer numbers them."""
    known = {p: name for name, p in model.named_parameters()}
    return [known[p] for group in optimizer.param_groups for p in group["params"]]


def _without_masters(weights: dict, states: dict, names: list[str]) -> tuple[dict, dict]:
    masters = {names[i]: state["master"] for i, state in states["state"].items() if "master" in state}
    plain = {i: {name: t for name, t in state.items() if name != "master"} for i, state in states["state"].items()}
    return {**weights, **masters}, {**states, "state": plain}


def _with_masters(optimizer: torch.optim.Optimizer, states: dict, weights: list[Tensor]) -> dict:
    """For those parameters that have one here; `weights` as the optimizer numbers them."""
    narrow = [i for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"]) if "master" in optimizer.state.get(p, ())]
    held = {i: {**states["state"][i], "master": weights[i]} for i in narrow}
    return {**states, "state": {**states["state"], **held}}


def _numbered(named: dict, names: list[str], optimizer: torch.optim.Optimizer) -> dict:
    """torch.distributed.checkpoint names parameters, an optimizer's own state dict numbers them."""
    numbers = {name: i for i, name in enumerate(names)}
    plain = optimizer.state_dict()["param_groups"]
    return {"state": {numbers[name]: state for name, state in named["state"].items()}, "param_groups": plain}
