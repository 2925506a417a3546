"""`patch(model)`: a Hugging Face model's norms, gates, rotations, attention, embedding and loss through our operators, in place."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from rooftile.ops import geglu, geglu_again, reglu, reglu_again, swiglu, swiglu_again
from rooftile.patching import forwards
from rooftile.patching.report import SLOTS, Entry, Report, Swap

__all__ = ["FAMILIES", "patch"]

FAMILIES = {
    "deepseek_v3": "DeepseekV3",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
    "gpt2": "GPT2",
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
}
TANH_GATE = ("geglu", *(partial(f, approximate="tanh") for f in (geglu, geglu_again)))
GATES = {
    "SiLUActivation": ("swiglu", swiglu, swiglu_again),
    "SiLU": ("swiglu", swiglu, swiglu_again),
    "GELUTanh": TANH_GATE,
    "PytorchGELUTanh": TANH_GATE,
    "NewGELUActivation": TANH_GATE,
    "GELUActivation": ("geglu", geglu, geglu_again),
    "ReLU": ("reglu", reglu, reglu_again),
}
GELUS = {"NewGELUActivation": "tanh", "GELUTanh": "tanh", "PytorchGELUTanh": "tanh", "GELUActivation": "none"}
OWN_WAY = (
    "a call with dropout, one query over a cache of earlier tokens or a mask of numbers (what is added to scores; padding and windows are boolean) "
    "goes the model's own way"
)
CAPPED = (
    "a call with dropout, for the weights themselves or with a mask that is trained goes the model's own way; of any other mask of numbers only "
    "the sign is read: a key is seen where it is not negative, and a query that sees none, as padding on the left, gives zeros"
)
LOSS = "in training `logits` is None, which keep_logits=True keeps; a head that is wrapped, sharded or moved by hooks goes by logits and cross_entropy"


def patch(model: nn.Module, *, keep_logits: bool = False) -> Report:
    """Put the operators into a Hugging Face model in place, and say what was done.

    Replaced are the forwards of single modules of this instance. Its class, parameters, buffers, hooks and state dict stay as they are, so it
    may be moved, compiled, wrapped by PEFT, sharded, checkpointed and saved as before, and these may have come first. Modules whose weights or inputs are
    DTensors, as tensor parallelism makes them, go the model's own way. Only float64 is not taken: of a model
    that becomes one, `undo()` the report first; one that is one already is left.

    Args:
        model: of a family we know (DeepseekV3, Gemma, Gemma2, Gemma3, GPT2, Llama, Mistral, Qwen2, Qwen3), or what wraps one: PEFT, torch.compile, DDP.
        keep_logits: labels in training mode make the logits too, as transformers does; else the loss comes straight from the hidden states
            (`linear_cross_entropy`) and `logits` of the result is None. What reads them while it trains, as TRL's SFTTrainer does, needs
            True. Without labels, or in eval mode, there are logits in any case.

    Returns:
        A Report: `replaced` and `left` (with the reason) by module, printed by `print(report)`; `report.undo()` gives the model back.

    Raises:
        ValueError: nothing in the model is of a known family; or it is patched already.

    Example:
        >>> patch(torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        ValueError: patch: Linear holds no model of a family that is known: DeepseekV3, Gemma, Gemma2, Gemma3, GPT2, Llama, Mistral, Qwen2, Qwen3
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"patch: model must be a torch.nn.Module, got {type(model).__name__}")
    report = Report(type(model).__name__)
    modules = list(model.named_modules())
    roots = [(name, m) for name, m in modules if _family(m) and hasattr(m, "config") and hasattr(m, "base_model_prefix")]
    if not roots:
        raise ValueError(f"patch: {report.model} holds no model of a family that is known: {', '.join(FAMILIES.values())}")
    done = [name for name, m in modules if any(_is_ours(vars(m).get(slot)) for slot in SLOTS)]
    if done:
        raise ValueError(f"patch: {report.model} is patched already, in {len(done)} modules: undo that report first")
    within = {id(m) for _, root in roots for m in root.modules()}
    for name, module in modules:
        if id(module) in within:
            for part in _parts(module, keep_logits):
                _put(report, name, module, part)
    return report


@dataclass(frozen=True)
class Part:
    """A part of a module, or two that one forward computes: {what it is: our operator}; what makes the forward; a note. Without `make` it is
    left, and the note is the reason."""

    operators: dict[str, str]
    make: Callable[[], Callable[..., Any] | None] | None = None
    note: str = ""


def _put(report: Report, name: str, module: nn.Module, part: Part) -> None:
    function, why, known = None, "" if part.make else part.note, _class(module)
    if not why and type(module).forward is not known.forward:
        why = f"its forward is {type(module).__name__}'s own, not {known.__name__}'s"
    if not why and any(p.dtype == torch.float64 for p in module.parameters()):
        why = "it is in float64, which rooftile's operators do not take"
    if not why and not Swap.free(module):
        why = "its forward has been replaced by someone else"
    if not why:
        try:
            function = part.make()
        except ValueError as error:
            why = str(error)
    if why:
        report.left += [Entry(what, name, "", why) for what in part.operators]
        return
    if function is not None:
        function.__rooftile__ = True
        report.swaps.append(Swap(name, module, function))
    notes = dict.fromkeys(part.operators, part.note) | {"rotary embedding": ""}
    report.replaced += [Entry(what, name, f"rooftile.{operator}", notes[what]) for what, operator in part.operators.items()]
    if "loss" in part.operators:
        module.loss_function = forwards.causal_lm_loss
        report.attributes.append((module, "_loss_function", forwards.causal_lm_loss))


def _is_ours(forward: Any) -> bool:
    return getattr(forward, "__rooftile__", False)


def _class(module: nn.Module) -> type:
    """The class of it that we know: a user's subclass comes before it, and fully_shard's."""
    return next((c for c in type(module).__mro__ if _family_of(c) or c in (nn.LayerNorm, nn.Embedding)), type(module))


def _family(module: nn.Module) -> str:
    return _family_of(_class(module))


def _family_of(kind: type) -> str:
    """Hugging Face's word for the family whose modelling file defines this class, or ""."""
    parts = kind.__module__.split(".")
    known = parts[:2] == ["transformers", "models"] and len(parts) == 4 and parts[3] == f"modeling_{parts[2]}"
    return parts[2] if known and parts[2] in FAMILIES else ""


def _parts(module: nn.Module, keep_logits: bool) -> Iterator[Part]:
    """What of this module itself can be replaced, or must be left."""
    kind, family = _class(module).__name__, _family(module)
    name = kind.removeprefix(FAMILIES[family]) if family else kind
    if family and name == "RMSNorm":
        gemma = family.startswith("gemma")
        yield Part({"norm": "rmsnorm"}, partial(forwards.rms_norm, "eps" if gemma else "variance_epsilon", float(gemma)))
    elif _class(module) is nn.LayerNorm:
        yield _layer_norm(module)
    elif _class(module) is nn.Embedding or (family and name == "TextScaledWordEmbedding"):  # PEFT has an Embedding of its own
        yield _embedding(module, scaled=bool(family))
    elif family and name == "MLP":
        yield _mlp(module)
    elif family and name == "MoE":
        yield Part(
            {"experts": ""},
            note="each is a product of the tokens that chose it, and rooftile has no grouped product; the shared ones are gated mlps",
        )
    elif family and name == "Attention":
        yield from _attention(module)
    elif family and name in ("ForCausalLM", "LMHeadModel"):
        yield _loss(module, keep_logits)
    elif family and ("For" in name or name == "DoubleHeadsModel"):
        yield Part({"loss": ""}, note=f"{kind} has another one than the next token's")


def _layer_norm(module: nn.Module) -> Part:
    axes = len(module.normalized_shape)
    if axes != 1:
        return Part({"norm": ""}, note=f"it normalises {axes} axes, rooftile.layernorm 1")
    return Part({"norm": "layernorm"}, forwards.layer_norm)


def _embedding(module: nn.Module, scaled: bool) -> Part:
    for name in ("max_norm", "scale_grad_by_freq", "sparse"):
        if value := getattr(module, name):
            return Part({"embedding": ""}, note=f"{name} is {value}, which rooftile.embedding does not take")
    return Part({"embedding": "embedding"}, partial(forwards.embed, scaled))


def _mlp(module: nn.Module) -> Part:
    plain = hasattr(module, "c_fc")  # GPT-2's
    what, table, activation = ("activation", GELUS, module.act) if plain else ("gated mlp", GATES, module.act_fn)
    known = table.get(type(activation).__name__)
    if known is None:
        return Part({what: ""}, note=f"its activation is {type(activation).__name__}, those known are {', '.join(table)}")
    if plain:
        return Part({what: "gelu"}, partial(forwards.plain_mlp, type(activation), known))
    return Part({what: known[0]}, partial(forwards.gated, type(activation), *known[1:]))


def _attention(module: nn.Module) -> Iterator[Part]:
    forward = _class(module).forward
    scope, why = inspect.unwrap(forward).__globals__, _why_not(module)
    operators, names, note = {}, {}, ""
    for name, turn in forwards.ROTATIONS.items():
        if name in scope:
            operators["rotary embedding"], names[name] = "rope", turn
    if why:
        yield Part({"attention": ""}, note=why)
    else:
        operators["attention"] = "attention"
        table, eager = "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"
        if capped := module.config._attn_implementation == "eager":
            names[eager] = forwards.attend(scope[eager])
        else:
            names[table] = forwards.Interfaces(scope[table])
        note = CAPPED if capped else OWN_WAY
    if operators:
        yield Part(operators, partial(forwards.rebound, forward, **names), note)


def _why_not(module: nn.Module) -> str:
    """Why attention is left to the model, or ""."""
    asked, cap = module.config._attn_implementation, getattr(module, "attn_logit_softcapping", None)
    if asked != "sdpa" and not (asked == "eager" and cap):  # who asks for eager wants the weights; with a cap there is no other choice
        return f"attn_implementation is {asked!r}, and rooftile.attention takes the calls of 'sdpa'"
    head = module.qk_head_dim if hasattr(module, "qk_head_dim") else module.head_dim  # DeepSeek's: of queries and keys
    if head > forwards.LARGEST_HEAD:
        return f"a head has {head} dimensions, rooftile.attention takes up to {forwards.LARGEST_HEAD}"
    return "it looks at another sequence" if getattr(module, "is_cross_attention", False) else ""


def _loss(module: nn.Module, keep_logits: bool) -> Part:
    there = getattr(getattr(module, "loss_function", None), "__name__", "none")
    ours = vars(module).get("_loss_function") is forwards.causal_lm_loss  # came with a pickled model, without our forwards
    if not ours and (there != "ForCausalLMLoss" or "_loss_function" in vars(module)):
        return Part({"loss": ""}, note=f"its loss function is {there}, not transformers' ForCausalLMLoss")
    if keep_logits:
        return Part({"loss": "cross_entropy"}, lambda: None, "keep_logits")
    base = module.base_model_prefix if hasattr(module, module.base_model_prefix) else "model"  # transformers 4 misnames Gemma3's
    return Part({"loss": "linear_cross_entropy"}, partial(forwards.causal_lm, _class(module).forward, base), LOSS)
