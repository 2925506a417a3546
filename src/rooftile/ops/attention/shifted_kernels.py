"""Queries that are not as many as keys (a chunk of a prefill, a decoder's over its encoder's) for Hopper: the options' kernels with a window that has no
left edge, whose tiles come from a list made on the device with the diagonal where the last query sees the last key."""

from dataclasses import replace

from rooftile.ops.attention.gluon_options_launchers import KERNELS as GLUON_OPTIONS


def _as_options(call):
    return {n: call[n] for n in ("q", "k", "v", "scale")} | {"left": -1, "right": 0 if call["causal"] else -1, "softcap": 0.0}


def _shifted(kernel, name, idea):
    """One of the options' kernels as one of the plain operator's."""

    def run(q, k, v, causal, scale, *, config):
        return kernel.run(q, k, v, None, None, None, None, None, scale, -1, 0 if causal else -1, 0.0, 0.0, config=config)

    def refuse(call):
        t, s = call["q"].shape[1], call["k"].shape[1]
        return f"T and S are both {t}: that is for gluon, gluon.wide and gluon.widest" if t == s else kernel.refuse(_as_options(call))

    def asked(what):
        return what and (lambda call: what(_as_options(call)))

    return replace(kernel, name=name, run=run, idea=idea, refuse=refuse, pick=asked(kernel.pick), declines=asked(kernel.declines))


_NARROW, _WIDE, _WIDEST = GLUON_OPTIONS
KERNELS = (
    _shifted(_NARROW, "gluon.shifted", "gluon's steps where T and S differ; D = 64"),
    _shifted(_WIDE, "gluon.shifted_wide", "the same for D = 128"),
    _shifted(_WIDEST, "gluon.shifted_widest", "the same for D = 256"),
)
