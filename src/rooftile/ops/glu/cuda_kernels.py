"""Gated linear units in CUDA C++: a thread an element, then 16 bytes an access with several in flight."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.pointwise import no_rows, ragged, together
from rooftile.ops.glu.reference import GELU
from rooftile.ops.glu.triton_kernels import MANY, elements, gradients, halves

V1, V2 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector"))
NAMES = {"silu": "Silu", "relu": "Relu", "gelu": "Gelu", "gelu_tanh": "GeluTanh"}
NAIVE = {"vecs": 0, "threads": BLOCK}


def _instance(name, x, act, config, *flags):
    """The instance and the elements one block takes."""
    vecs, threads = config["vecs"], config["threads"]
    each = f", {vecs}, {threads}" if vecs else ""
    kind = ", ".join((CTYPE[x.dtype], NAMES[act], *flags))
    return f"{name}<{kind}{each}>", threads * (vecs * 16 // x.itemsize or 1)


def gated(gate, up, act, config):
    g, u = halves(gate, up)
    out = g.new_empty(g.shape)
    m, n, (g, u), strides = together(g, u)
    instance, size = _instance("gated", g, act, config)
    tiles = cdiv(n, size)
    launch(V2 if config["vecs"] else V1, instance, m * tiles, config["threads"], out, g, u, n, tiles, *strides)
    return out


def gated_backward(dout, gate, up, act, config, again=False):
    results, (dgate, dup), apart = gradients(gate, up)
    m, n, (dout, g, u), strides = together(dout, *halves(gate, up))
    instance, size = _instance("gated_backward", g, act, config, str(again).lower())
    tiles = cdiv(n, size)
    launch(V2 if config["vecs"] else V1, instance, m * tiles, config["threads"], dgate, dup, dout, g, u, n, tiles, *strides,
           apart or n, apart or n)  # fmt: skip
    return results


def gated_again(dout, gate, up, act, config):
    return gated_backward(dout, gate, up, act, config, again=True)


def _rung(name, run, act, idea, configs):
    def plain(*args):
        return run(*_named(args, act), NAIVE)

    def tuned(*args, config):
        return run(*_named(args, act), config)

    def refuse(call):
        scattered = no_rows("dout", call["dout"]) if run is gated_again else None
        return off_gpu(call["gate"]) or scattered or (ragged(_tensors(call)) if configs else None)

    pick = (lambda call: pick_vector(call, configs)) if configs else None
    return Kernel(f"cuda.{name}", tuned if configs else plain, idea, refuse, configs, pick, sources=(V2 if configs else V1,), declines=_few)


def _few(call):
    """Why Triton's programs are sooner through, or None."""
    size = elements(call) * call["gate"].itemsize
    return f"a result of {size} bytes is a few small programs, of which Triton's are sooner through" if size < MANY else None


def _named(args, act):
    """geglu's form, which is its last argument, becomes the activation's name."""
    return (*args[:-1], GELU[args[-1]]) if act == "gelu" else (*args, act)


def _tensors(call):
    g, u = halves(call["gate"], call["up"])
    return {"gate": g, "up": u, **({"dout": call["dout"]} if "dout" in call else {})}


def pick_vector(call, configs):
    """What the Triton kernel has in flight, 64 bytes a thread forward and 96 backward, unless so few elements were left for the last
    multiprocessors: then a vector a thread."""
    return configs[0] if elements(call) * call["gate"].itemsize >= MANY else {"vecs": 1, "threads": 128}


_VECTORS = tuple({"vecs": v, "threads": t} for v, t in ((2, 256), (1, 256), (4, 128), (2, 128), (1, 128), (2, 512), (1, 512), (4, 256)))


def kernels(act):
    return tuple(
        (
            _rung("v2_vector", run, act, "16 bytes an access, several in flight", _VECTORS),
            _rung("v1_naive", run, act, "a thread an element", ()),
        )
        for run in (gated, gated_backward, gated_again)
    )
