import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rooftile.core.bind import fits, flag
from rooftile.core.kernel import Op, ranked
from rooftile.ops.adamw import cuda_kernels, measured_kernels, norm_kernels, triton_kernels
from rooftile.ops.adamw.members import Member, Members, with_numbers
from rooftile.ops.adamw.spec import MEASURED, NORM, SPEC

_adamw = Op(SPEC, *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v6_once", "cuda.v2_vector", "cuda.v3_pipeline"))
_grad_norm = Op(NORM, *ranked((*norm_kernels.FORWARD, *cuda_kernels.NORM), "cuda.v5_norm_vector"))
_adamw_measured = Op(MEASURED, *ranked(cuda_kernels.MEASURED, "cuda.v6_once", "cuda.v2_vector"), *measured_kernels.FORWARD)


def adamw(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], hyper: Tensor, *,
          masters: list[Tensor] | None = None, scale: Tensor | None = None, seed: Tensor | None = None, beta1: float = 0.9,
          beta2: float = 0.999, eps: float = 1e-8) -> None:  # fmt: skip
    """One AdamW step on a list of tensors, in place and in one launch; arithmetic is float32.

        g = scale g;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
        p = p (1 - lr decay) - lr / c1 * m / (sqrt(v / c2) + eps)

    Args:
        params, grads, exp_avgs, exp_avg_sqs: lists of P tensors, pairwise of one shape. Parameters are float32 or bfloat16; gradients, and
            states, are float32 or the parameters' dtype.
        hyper: [P, 4] float32 on the same device: lr, decay, c1 = 1 - beta1^step, c2 = 1 - beta2^step of each tensor.
        masters: float32 parameters that are updated in the parameters' place; those become their rounded copies.
        scale: float32 [] on the same device, of all gradients: clipping, undoing a loss scale.
        seed: int64 []: bfloat16 parameters without masters are rounded at random to one of their two neighbours, the nearer the likelier,
            so that updates below half a step are not lost on average. A new one for every step.

    Raises:
        ValueError: lists of different lengths, shapes, dtypes or devices; tensors that are written and share a place, also with one
        that is read; masters and a seed at once.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019.
    """
    if params or grads or exp_avgs or exp_avg_sqs or masters:
        _adamw(params, grads, exp_avgs, exp_avg_sqs, masters or [], hyper, scale, seed, beta1, beta2, eps)


def grad_norm(grads: Sequence[Tensor]) -> Tensor:
    """norm = sqrt(sum over all tensors and elements of g^2), in two launches and without waiting.

    Args:
        grads: tensors of any shapes, all float32, bfloat16 or float16 and on one device.

    Returns:
        float32 []; the same bits every time. Squares are float32: a gradient above 1.8e19 makes the norm infinite. No gradient.

    Raises:
        ValueError: no tensor at all; dtypes or devices that differ.

    Example:
        >>> grad_norm([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(5.)
    """
    return _grad_norm(list(grads) if isinstance(grads, Iterable) else grads)


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW with the whole model in one launch a step; state dicts go both ways.

    Args:
        params, lr, betas, eps, weight_decay: as torch.optim.AdamW has them; groups may differ in lr and weight_decay.
        amsgrad, maximize, capturable, differentiable: as there, and not supported: only False is taken.
        foreach, fused: as there, and without effect: a step is one launch.
        max_norm: gradients are scaled down to this norm over all parameters, on the fly: they are not written. `grad_norm` of the last
            step is kept as a tensor. Two launches more a step. math.inf scales nothing, and measures in the launch that updates.
        master: float32 copies of bfloat16 parameters are kept in the state ("master") and updated, with float32 moments. They begin as what
            the parameters hold; of a float32 model, `narrow` makes both without a rounding.
        state_dtype: of the moments; the parameters' unless given, float32 beside masters.
        stochastic: bfloat16 parameters without masters are rounded at random, by PyTorch's generator on their device.

    Parameters may be DTensors, as `fully_shard` makes them: their states are DTensors of the same placements, each rank updates the part it
    holds, and max_norm is the norm over all ranks.

    A step can be captured in a CUDA graph once it has run; the graph then needs `advance()` before each replay:

        with torch.cuda.graph(graph):          # after a step or two of the same, on a side stream
            model(x).sum().backward()
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.advance()
        graph.replay()
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
                 capturable: bool = False, differentiable: bool = False, fused: bool | None = None, max_norm: float | None = None,
                 master: bool = False, state_dtype: torch.dtype | None = None, stochastic: bool = False):  # fmt: skip
        asked = {"amsgrad": amsgrad, "maximize": maximize, "differentiable": differentiable, "capturable": capturable}
        for name, given in (asked | {n: g for n, g in (("foreach", foreach), ("fused", fused)) if g is not None}).items():
            flag("AdamW", name, given)
        for name in (n for n, given in asked.items() if given):
            instead = (
                "a step is captured as it is, and `advance` before each replay counts it"
                if name == "capturable"
                else "use torch.optim.AdamW"
            )
            raise ValueError(f"AdamW: {name}=True is not supported: {instead}")
        # PyTorch's own too: torch.distributed.checkpoint loads by the names that the loading optimizer has
        same = {**asked, "foreach": foreach, "fused": fused, "decoupled_weight_decay": True}
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **same}
        _check_group(defaults)
        if max_norm is not None and not (fits(max_norm, float) and max_norm > 0):
            raise ValueError(f"AdamW: max_norm is {max_norm!r}, must be {'above 0' if fits(max_norm, float) else 'a number or None'}")
        flag("AdamW", "master", master)
        flag("AdamW", "stochastic", stochastic)
        if master and stochastic:
            raise ValueError("AdamW: master and stochastic are both asked for: with float32 masters nothing is left to round at random")
        if state_dtype not in (None, torch.float32, torch.bfloat16):
            raise ValueError(f"AdamW: state_dtype is {state_dtype}, it takes torch.float32 or torch.bfloat16")
        self.max_norm, self.master, self.stochastic = max_norm, master, stochastic
        self.state_dtype = torch.float32 if master and state_dtype is None else state_dtype
        self.grad_norm: Tensor | None = None
        self._launches: dict[tuple[Any, ...], Members] = {}  # of the last step
        self._begun: list[Tensor] = []  # whose states the last step began
        self._captured = False
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def narrow(self, params: Iterable[Tensor]) -> None:
        """Keep these float32 parameters of a new optimizer in bfloat16 from here on. The numbers they hold become their masters.

            >>> model = torch.nn.Linear(2, 2)
            >>> optimizer = AdamW(model.parameters(), master=True)
            >>> optimizer.narrow(model.parameters())
            >>> model.weight.dtype, optimizer.state[model.weight]["master"].dtype
            (torch.bfloat16, torch.float32)

        Raises:
            ValueError: without `master`; a parameter that is not float32, has a gradient or a state, or is a DTensor.
        """
        if not self.master:
            raise ValueError("AdamW: narrow is for master=True, without which the float32 numbers would be lost")
        params, ours = list(params), {id(p) for group in self.param_groups for p in group["params"]}
        for p in params:
            found = p.dtype if p.dtype != torch.float32 else "a DTensor" if hasattr(p, "to_local") else None
            if found is None and (p.grad is not None or p in self.state):
                found = "one with a gradient or a state"
            if found is None and id(p) not in ours:
                found = "none of this optimizer's"
            if found is not None:
                raise ValueError(f"AdamW: narrow takes plain float32 parameters before their first gradient, {list(p.shape)} is {found}")
        for p in params:
            whole = p.detach()
            p.data = whole.to(torch.bfloat16)
            self._begin(p, whole)

    @torch._disable_dynamo  # the host's counts are no graph's; torch.compiler.disable imports the compiler, 1.3 s, when this is read
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """`advance` and `update`, on the parameters that have a gradient. While a CUDA graph is captured, `update` alone."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing, before, self._begun = _capturing(), self._launches, []
        try:
            self._launches = self._gather(capturing)
            if self._launches:  # without one gradient there is nothing to count and nothing to do, as in torch.optim.AdamW
                if any(m is not before.get(key) for key, m in self._launches.items()):
                    self._ask()
                if not capturing:
                    self.advance()
                self.update()
        except BaseException:  # an interrupted one too
            self._take_back()
            raise
        return loss

    def _ask(self) -> None:
        """What `update` would refuse is refused before anything is counted and before the first of its launches."""
        op, alike = self._how()
        for grads in alike:
            _grad_norm.ask(_local(grads))
        for members in self._launches.values():
            op.ask(*self._arguments(members))

    def _take_back(self) -> None:
        """Of a step that has failed: the counts of what was not launched, and the states that were begun for it."""
        for members in self._launches.values():
            members.take_back()
        for p in self._begun:
            with with_numbers():
                if not self.state[p]["step"]:
                    del self.state[p]
        if not self._captured:  # they are gathered anew
            self._launches = {}

    @torch.no_grad()
    def advance(self) -> None:
        """The host's part of a step: count it, and send learning rates, decays and bias corrections to where `update` reads them.

        Call it before every replay of a CUDA graph that holds a step; the graph counts nothing and holds no rate.
        """
        if not self._launches:
            raise RuntimeError("AdamW: advance found 0 parameters: it counts on those of the last step, and there was none")
        for members in self._launches.values():
            members.advance()

    @torch.no_grad()
    def update(self) -> None:
        """The device's part of a step, on the parameters of the last one: the norm, the clipping and the launch. It can be captured."""
        if missing := [list(p.shape) for m in self._launches.values() for p in m.params if p.grad is None]:
            raise RuntimeError(f"AdamW: update is for the parameters of the last step, and {len(missing)} have no gradient: {missing[0]}")
        op, alike = self._how()
        norms, scale = [_norm_over_ranks(grads) for grads in alike], None
        if self.max_norm is not None and self.max_norm < math.inf:  # PyTorch's clip_grad_norm_ adds the same 1e-6
            scale = (self.max_norm / (_norm_of(norms) + 1e-6)).clamp_max(1.0)
        made = [self._launch(op, m, scale) for m in self._launches.values()]
        if norms := made if op is _adamw_measured else norms:
            self.grad_norm = _norm_of(norms)

    def _how(self) -> tuple[Op, list[list[Tensor]]]:
        """Who updates, and the gradients that norms are made of before."""
        alike = self._alike() if self.max_norm is not None else []
        if self.max_norm == math.inf and not any(hasattr(grads[0], "to_local") for grads in alike):  # of parts the norm is over all ranks
            return _adamw_measured, []
        return _adamw, alike

    def _alike(self) -> list[list[Tensor]]:
        """The gradients, those together of which one launch makes a norm."""
        grads: dict[tuple[Any, ...], list[Tensor]] = {}
        for p in (p for m in self._launches.values() for p in m.params):
            assert p.grad is not None
            mesh = (p.grad.device_mesh, p.grad.placements) if hasattr(p.grad, "to_local") else ()
            grads.setdefault((p.grad.dtype, *mesh), []).append(p.grad)
        devices = list(dict.fromkeys(g.device for gs in grads.values() for g in gs))
        if len(devices) > 1:
            raise ValueError(f"AdamW: max_norm is one norm on one device, gradients are on {devices[0]} and {devices[1]}")
        return list(grads.values())

    def _seed(self, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        if not self.stochastic or dtype != torch.bfloat16:
            return None
        return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)

    def _gather(self, capturing: bool) -> dict[tuple[Any, ...], Members]:
        """Parameters that one launch can take: same device, dtypes, betas and eps, whatever their group."""
        lists: dict[tuple[Any, ...], list[Member]] = {}
        for group in self.param_groups:
            tail = (*map(float, group["betas"]), float(group["eps"]))
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                if grad.is_sparse:
                    raise ValueError(f"AdamW: the gradient of a parameter {list(p.shape)} is sparse, takes dense ones")
                lists.setdefault((p.device, p.dtype, grad.dtype, *tail), []).append((p, group))
        return {key: self._members(key, members, capturing) for key, members in lists.items()}

    def _members(self, key: tuple[Any, ...], members: list[Member], capturing: bool) -> Members:
        """Those of the last step where nothing has changed."""
        states = [self.state[p] for p, _ in members]
        known = self._launches.get(key)
        if known is None or not known.are(members, states):
            if capturing:  # states and rates made now would lie in the graph's memory, and the first replay would find nothing in them
                raise RuntimeError(f"AdamW: a step is captured on {len(members)} parameters that it was never run on: run one before")
            if self._captured:
                raise RuntimeError(
                    f"AdamW: the parameters, groups or states of a captured step have changed: now {len(members)} parameters"
                )
            for (p, _), state in zip(members, states):
                if not state:
                    self._begun.append(p)
                    self._begin(p)
            if any("master" in state for state in states):  # of one launch all have one; loaded ones may be a few float32 parameters' too
                for (p, _), state in zip(members, states):
                    if "master" not in state:
                        state["master"] = p.detach().to(torch.float32, copy=True)
            known = Members(members, states, key[-3:-1], key[-1])
        self._captured |= capturing
        return known

    def _begin(self, p: Tensor, master: Tensor | None = None) -> None:
        state = self.state[p]
        with with_numbers():
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(p, memory_format=torch.preserve_format, dtype=self.state_dtype)
        if self.master and p.dtype != torch.float32:
            state["master"] = p.detach().float() if master is None else master

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """PyTorch casts a state to its parameter's dtype; moments and masters keep their own. Nothing is shared with whoever gave it. One that has masters
        goes on with them, as with `master=True`."""
        if self._captured:
            raise RuntimeError(
                "AdamW: a state dict is loaded after a step was captured, whose graph holds the old states' addresses: load it before"
            )
        taken: list[dict[str, Any]] = []  # what hooks make of it

        def take(_: Any, given: dict[str, Any]) -> None:
            masters = sum("master" in state for state in given["state"].values())
            if masters and self.stochastic:
                what = f"the state dict has float32 masters of {masters} parameters, which leave nothing to round at random"
                raise ValueError(f"AdamW: {what}: load it without stochastic")
            for group in given["param_groups"]:
                if missing := [n for n in ("lr", "betas", "eps", "weight_decay") if n not in group]:
                    raise ValueError(f"AdamW: a group of the state dict has no {missing[0]}, it has {', '.join(group)}: is it AdamW's?")
                _check_group(group)
            taken.append(given)

        handles = (
            self.register_load_state_dict_pre_hook(take),
            self.register_load_state_dict_post_hook(lambda _: self._keep(*taken), prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _keep(self, state_dict: dict[str, Any]) -> None:
        """What was loaded, in dtypes of its own; before hooks of others see it."""
        if any("master" in state for state in state_dict["state"].values()):
            self.master, self.state_dtype = True, self.state_dtype or torch.float32
        saved = dict(zip((i for g in state_dict["param_groups"] for i in g["params"]), (p for g in self.param_groups for p in g["params"])))
        for i, p in saved.items():
            for name, value in state_dict["state"].get(i, {}).items():
                if name in ("exp_avg", "exp_avg_sq"):
                    self.state[p][name] = value.to(p.device, self.state_dtype or p.dtype, copy=True)
                elif name == "step":
                    with with_numbers():
                        self.state[p][name] = torch.as_tensor(value, dtype=torch.float32, device="cpu").clone()
                elif name == "master":
                    self.state[p][name] = value.to(p.device, torch.float32, copy=True)
            if self.master and p.dtype != torch.float32 and i in state_dict["state"] and "master" not in self.state[p]:
                self.state[p]["master"] = p.detach().float()

    def __getstate__(self) -> dict[str, Any]:
        """PyTorch's copies and pickles have defaults, states and groups alone. What launches keep is made anew; a captured step stays the original's."""
        ours = {name: getattr(self, name) for name in ("max_norm", "master", "stochastic", "state_dtype")}
        return {**super().__getstate__(), **ours, "grad_norm": None, "_launches": {}, "_begun": [], "_captured": False}

    def _launch(self, op: Op, members: Members, scale: Tensor | None = None) -> Tensor:
        made = op(*self._arguments(members, scale, self._seed(members.hyper.device, members.params[0].dtype)))
        members.counted = False
        return made

    def _arguments(self, members: Members, scale: Tensor | None = None, seed: Tensor | None = None) -> tuple[Any, ...]:
        columns = (members.params, [p.grad for p in members.params], members.column("exp_avg"), members.column("exp_avg_sq"))
        masters = _local(members.column("master")) if "master" in members.states[0] else []
        return (*map(_local, columns), masters, members.hyper, scale, seed, *members.betas, members.eps)


def _check_group(group: dict[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"AdamW: {name} has {value.numel()} numbers, must be 1")
        if not fits(value, float, Tensor):
            raise ValueError(f"AdamW: {name} is {value!r}, must be a number or a tensor of one")
        if not 0 <= value < math.inf:
            raise ValueError(f"AdamW: {name} is {value!r}, must be at least 0, and finite")
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(fits(b, float, Tensor) and 0 <= b < 1 for b in betas):
        raise ValueError(f"AdamW: betas are {betas}, both must be in [0, 1)")
    for name in ("amsgrad", "maximize", "differentiable"):
        if group.get(name):
            raise ValueError(f"AdamW: a group has {name}={group[name]}, which is not supported: use torch.optim.AdamW")
    for name in ("max_norm", "master", "state_dtype", "stochastic"):
        if name in group:
            raise ValueError(f"AdamW: a group has {name}={group[name]}, which is the same for all groups: give it to AdamW")


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # the second alone fails where there is no driver


def _local(tensors: Sequence[Any]) -> list[Tensor]:
    """What this rank holds of each: the tensor itself, or its part of a DTensor, where it lies."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]


def _norm_of(norms: list[Tensor]) -> Tensor:
    return norms[0] if len(norms) == 1 else torch.stack(norms).square().sum().sqrt()


def _norm_over_ranks(grads: list[Tensor]) -> Tensor:
    """The norm of gradients that all lie alike: of what this rank holds, added up along the axes of the mesh that they are sharded over."""
    norm = grad_norm(_local(grads))
    if not hasattr(grads[0], "to_local"):
        return norm
    from torch.distributed.tensor import DTensor, Partial, Replicate

    placements = [Partial() if p.is_shard() else Replicate() for p in grads[0].placements]
    return DTensor.from_local(norm.square(), grads[0].device_mesh, placements).full_tensor().sqrt()
