"""`rooftile.patch` on small random models of every family: what it computes, what it says, and the way back."""

import copy
import inspect
import os
import pickle
import warnings
from types import MethodType

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import rooftile
from rooftile.patching import forwards
from test_llama import kept
from test_models import gap, one_thread  # noqa: F401 - a fixture for every test here

transformers = pytest.importorskip("transformers")
SHAPE = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 32}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0, "sliding_window": 16}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"sliding_window": 16}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "first_k_dense_replace": 2,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
}
GPT2 = {"vocab_size": 97, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
IDS = torch.randint(3, 97, (2, 24), generator=torch.Generator().manual_seed(1))
GATED = {"embedding", "rmsnorm", "rope", "swiglu", "attention"}
CALLED = {
    "llama": GATED,
    "qwen2": GATED,
    "qwen3": GATED,
    "mistral": GATED,  # 24 tokens are fewer than its window of 32: no mask arrives
    "gemma2": GATED - {"attention", "swiglu"} | {"geglu", "attention_options"},  # a soft cap
    "gemma3": GATED - {"attention", "swiglu"} | {"geglu", "attention_options"},  # more than its window of 16, which comes as a mask
    "gpt2": {"embedding", "layernorm", "gelu", "attention"},
    "deepseek_v3": GATED,
}


def build(family, **changes):
    config, model, more = FAMILIES[family]
    torch.manual_seed(0)
    shape = GPT2 if family == "gpt2" else SHAPE
    made = getattr(transformers, model)(getattr(transformers, config)(**{**shape, **more, **changes}))
    with torch.no_grad():  # initial biases and norms are zero and one: a swapped or forgotten one would not show
        for p in made.parameters():
            p += 0.05 * torch.randn_like(p)
    return made.train()


def step(model, **call):
    """The outcome of one forward and backward pass: loss, and the gradient of every parameter that has one."""
    model.zero_grad()
    out = model(**{"input_ids": IDS, "labels": IDS, **call})
    out.loss.backward()
    return {"": out.loss.detach(), **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}}


def close(ours, theirs, tolerance=1e-5):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if value.norm() > 1e-6:  # the bias of a key has no gradient in exact arithmetic
            assert gap(ours[name], value) < tolerance, name


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Called(TorchDispatchMode):
    """Which of our operators ran."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "rooftile":
            self.names.add(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_same_results_and_exact_undo(family):
    model = build(family)
    before, logits = step(model), model.eval()(IDS).logits
    state = [sorted(vars(m)) for m in model.modules()]
    evaluated = step(model)
    for keep in (True, False):
        report = rooftile.patch(model.eval(), keep_logits=keep)
        with Called() as seen:
            assert gap(model(IDS).logits, logits) < 1e-5
        assert seen.names == CALLED[family], report
        close(step(model), evaluated)
        assert (model.train()(IDS, labels=IDS).logits is None) is not keep
        close(step(model), before)
        with Called() as seen:
            model(IDS, labels=IDS)
        assert seen.names == CALLED[family] | {"cross_entropy" if keep else "linear_cross_entropy_ahead"}
        report.undo(), report.undo()
        assert same(step(model), before) and torch.equal(model.eval()(IDS).logits, logits)
        assert state == [sorted(vars(m)) for m in model.modules()]


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_theirs(family):
    """Before and after `.to`: the same bits; logits and every gradient within 1.5 times the error of the model as it was, over three
    batches: a norm of 16 weights is too few numbers for one to tell."""
    exact, theirs, early, late = build(family), build(family).bfloat16(), build(family), build(family).bfloat16()
    rooftile.patch(early), rooftile.patch(late)
    early.bfloat16()
    seen = {}
    for seed in range(3):
        ids = torch.randint(3, 97, (2, 24), generator=torch.Generator().manual_seed(seed))
        outcomes = [step(m, input_ids=ids, labels=ids) for m in (exact, theirs, late)]
        assert same(step(early, input_ids=ids, labels=ids), outcomes[2])
        for outcome, m in zip(outcomes, (exact, theirs, late)):
            outcome[""] = m.eval()(ids).logits.detach()
            m.train()
        for name in outcomes[0]:
            seen.setdefault(name, []).append([o[name].float() for o in outcomes])
    for name, batches in seen.items():
        truth, own, ours = (torch.stack(tensors) for tensors in zip(*batches))
        if truth.norm() > 1e-6:
            assert gap(ours, truth) < 1.5 * gap(own, truth), name


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt2", "deepseek_v3"])
def test_compiles_into_one_graph(family):
    """Compiled before patching, and run before it too; what is in the graph is ours."""
    model, names = build(family), set()
    before = step(model)

    def backend(graph, inputs):
        names.update(str(node.target) for node in graph.graph.nodes)
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    if family == "qwen3":
        step(compiled)
    report = rooftile.patch(compiled)
    close({name.removeprefix("_orig_mod."): value for name, value in step(compiled).items()}, before)
    ours = {name.split(".")[1] for name in names if name.startswith("rooftile.")}
    either = {"attention", "attention_options"}  # an older transformers or torch makes a mask
    assert ours - either == (CALLED[family] | {"linear_cross_entropy_ahead"}) - either and ours & either
    report.undo()
    assert same(step(model), before)


def test_calls_that_go_the_models_own_way():
    """Positions of each row, packed labels and counts of Trainer, a cache, a mask of numbers: the same numbers as before."""
    model, patched = build("llama").eval(), build("llama").eval()
    rooftile.patch(patched)
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    added = torch.where(mask.bool()[:, None, None, :] & torch.ones(24, 24, dtype=torch.bool).tril(), 0.0, torch.finfo(torch.float32).min)
    numbers = {"attention_mask": added, "position_ids": positions}
    assert gap(patched(IDS, **numbers).logits[mask.bool()], model(IDS, **numbers).logits[mask.bool()]) < 1e-5
    with Called() as seen:
        patched(IDS, **numbers)
    assert "rope" in seen.names and not {"attention", "attention_options"} & seen.names
    generate = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": 96}
    assert torch.equal(patched.generate(IDS, **generate), model.generate(IDS, **generate))
    model.train(), patched.train()
    labels = IDS.clone()
    labels[0, :9] = -100
    for call in (
        {"labels": labels},
        {"num_items_in_batch": 31},
        {"num_items_in_batch": torch.tensor(31)},
        {"shift_labels": labels.roll(2, 1)},
        {"labels": labels.flatten()},  # seen red: "leading shape is [48] in target"
    ):
        close(step(patched, **call), step(model, **call))
    assert isinstance(patched(IDS, labels=IDS, return_dict=False), tuple)
    assert patched(IDS, labels=IDS, output_hidden_states=True).hidden_states[-1].shape == (2, 24, 64)
    assert inspect.signature(patched.forward) == inspect.signature(model.forward)  # Trainer keeps the columns that it names


@pytest.fixture
def one_rank():
    """A mesh of this process alone: every DTensor is whole, and is dispatched as one of many is."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def tensor_parallel(model, mesh, sequence):
    """PyTorch's plan for Llama: products by columns and rows, the table by rows; with `sequence` norms of DTensors too."""
    by_rows = {"output_layouts": Shard(1), "use_local_output": False} if sequence else {}
    plan = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **by_rows)}
    plan["lm_head"] = ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Replicate())
    for i in range(model.config.num_hidden_layers):
        products = [f"self_attn.{n}_proj" for n in "qkv"] + ["mlp.gate_proj", "mlp.up_proj"]
        block: dict = dict.fromkeys(products, ColwiseParallel()) | {
            n: RowwiseParallel(**by_rows) for n in ("self_attn.o_proj", "mlp.down_proj")
        }
        if sequence:
            block |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), SequenceParallel())
            one, other = {"hidden_states": Shard(1)}, {"hidden_states": Replicate()}
            block["self_attn"] = PrepareModuleInput(input_kwarg_layouts=one, desired_input_kwarg_layouts=other)
            block["mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {f"model.layers.{i}.{name}": style for name, style in block.items()}
    return parallelize_module(model, mesh, plan | ({"model.norm": SequenceParallel()} if sequence else {}))


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_tensor_parallel(sequence, early, one_rank):
    """What is a DTensor goes the model's own way. Seen red: "Operator rooftile.embedding.default does not have a sharding strategy registered"."""

    def whole(made):
        return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in made.items()}

    model, patched = (build("llama") for _ in range(2))
    if early:
        rooftile.patch(patched)
    tensor_parallel(model, one_rank, sequence)
    tensor_parallel(patched, one_rank, sequence)
    if not early:
        rooftile.patch(patched)
    with Called() as seen:
        ours = step(patched)
    assert seen.names >= {"rope", "swiglu", "attention"} and ("rmsnorm" in seen.names) != sequence and "embedding" not in seen.names
    close(whole(ours), whole(step(model)))


@pytest.mark.parametrize("family", ["gpt2", "gemma3"])
def test_dtensors_in_an_activation_and_a_norm(family, one_rank):
    """Seen red, as above."""
    model, patched = (build(family) for _ in range(2))
    rooftile.patch(patched)
    x = distribute_tensor(torch.randn(2, 3, 64), one_rank, [Shard(0)])
    outs = []
    for m in (model, patched):
        layer = (m.transformer.h if family == "gpt2" else m.model.layers)[0]
        norm = layer.ln_1 if family == "gpt2" else layer.input_layernorm
        with torch.no_grad():
            distribute_module(norm, one_rank)
            distribute_module(layer.mlp, one_rank)
            made = [norm(x)] + ([layer.mlp.act(x)] if family == "gpt2" else [layer.mlp(x)])
        outs.append([t.full_tensor() for t in made])
    assert all(torch.equal(a, b) for a, b in zip(*outs))


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_a_chunk_over_a_cache_is_taken(family):
    """And one token goes the model's own way; the second row is padded on its left."""
    model, patched, mask = build(family).eval(), build(family).eval(), torch.ones_like(IDS)
    rooftile.patch(patched)
    mask[1, :3] = 0

    def chunks(model):
        cache, made, ours = None, [], []
        for first, end in ((0, 9), (9, 20), (20, 21)):
            with Called() as seen:
                out = model(IDS[:, first:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            made.append(out.logits), ours.append(bool({"attention", "attention_options"} & seen.names))
        return torch.cat(made, 1)[mask[:, :21].bool()], ours

    (logits, none), (again, ours) = chunks(model), chunks(patched)
    assert gap(again, logits) < 1e-5 and not any(none) and ours == [True, True, False]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_a_mask_that_is_taken(family, side):
    model, patched = build(family), build(family)
    rooftile.patch(patched)
    mask = torch.ones_like(IDS)
    mask[0, slice(5) if side == "left" else slice(-5, None)] = 0
    padded = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0), "labels": IDS.where(mask.bool(), -100)}
    with Called() as seen:
        close(step(patched, **padded), step(model, **padded))
    assert "attention_options" in seen.names and "attention" not in seen.names
    model.eval(), patched.eval()
    assert gap(patched(IDS, **padded).logits[mask.bool()], model(IDS, **padded).logits[mask.bool()]) < 1e-5


def test_what_cannot_be_taken_is_left_with_its_reason():
    def left(family, **changes):
        return {f"{e.part}: {e.note}" for e in rooftile.patch(build(family, **changes)).left}

    assert left("llama", attn_implementation="eager") == {
        "attention: attn_implementation is 'eager', and rooftile.attention takes the calls of 'sdpa'"
    }
    assert left("llama", head_dim=264) == {"attention: a head has 264 dimensions, rooftile.attention takes up to 256"}
    assert left("deepseek_v3", qk_nope_head_dim=256) == {"attention: a head has 272 dimensions, rooftile.attention takes up to 256"}
    (why,) = left("deepseek_v3", first_k_dense_replace=1)
    assert why.startswith("experts: each is a product of the tokens that chose it")
    assert not left("gemma2") and "attention: now rooftile.attention in" in str(rooftile.patch(build("gemma2")))
    wide = build("llama").double()  # seen red: it was patched, and then could not be called
    logits = wide(IDS).logits
    assert not rooftile.patch(wide).replaced and torch.equal(wide(IDS).logits, logits)
    (why,) = left("llama", hidden_act="gelu_fast")
    assert why.startswith("gated mlp: its activation is FastGELUActivation, those known are SiLUActivation, ")
    model = build("llama")
    model.model.embed_tokens.max_norm = 1.0
    model.loss_function = lambda *args, **kwargs: None
    model.model.layers[1].mlp.forward = lambda x: x
    report = rooftile.patch(model)
    assert {(e.part, e.module): e.note for e in report.left} == {
        ("loss", ""): "its loss function is <lambda>, not transformers' ForCausalLMLoss",
        ("embedding", "model.embed_tokens"): "max_norm is 1.0, which rooftile.embedding does not take",
        ("gated mlp", "model.layers.1.mlp"): "its forward has been replaced by someone else",
    }
    assert "3 left" in str(report) and "norm: now rooftile.rmsnorm in model.layers.0.input_layernorm and 4 more" in str(report)


def test_less_is_kept():
    """Of a gated perceptron gate and up alone, and not the product that the last projection reads."""
    model = build("llama")
    report, plain = rooftile.patch(model), forwards._plain
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forwards, "_plain", lambda layer: layer.in_features != 96 and plain(layer))
        usual = kept(lambda: step(model))
    assert usual - kept(lambda: step(model)) == 2 * IDS.numel() * 96 * 4  # blocks, tokens, features, bytes
    report.undo()


def test_pairs_that_are_neighbours_come_out_half_a_head_apart():
    """As transformers leaves them: a cache of keys may have been begun by either."""
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs

    gen = torch.Generator().manual_seed(0)
    q, k, angle = (torch.randn(*shape, generator=gen) for shape in ((2, 4, 7, 16), (2, 1, 7, 16), (2, 7, 8)))
    cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))
    assert forwards.ROTATIONS.keys() == {"apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave"}
    for name, ours in forwards.ROTATIONS.items():
        for got, wanted in zip(ours(q, k, cos, sin), getattr(theirs, name)(q, k, cos, sin), strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_mask_that_is_trained_beside_a_soft_cap():
    """Its numbers are added to the scores. Seen red: their signs alone were read, and it got no gradient."""
    grads = []
    for patched in (False, True):
        model = build("gemma2")
        report = rooftile.patch(model) if patched else None
        mask = torch.randn(1, 1, 24, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
        grads.append(step(model, attention_mask=mask) | {"mask": mask.grad})
    close(*reversed(grads))
    assert "of any other mask of numbers only the sign is read" in str(report)


def test_padding_on_the_left_beside_a_soft_cap():
    """Its queries see no key: transformers' mask then hides all alike, and the model's own weighs all alike. The report says what ours gives."""
    model, mask = build("gemma2").eval(), torch.ones_like(IDS)
    mask[0, :3] = 0
    theirs = model(IDS, attention_mask=mask).logits
    report, seen = rooftile.patch(model), []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    ours = model(IDS, attention_mask=mask).logits
    assert gap(ours[mask.bool()], theirs[mask.bool()]) < 1e-5 and not any(out[0, :3].any() for out in seen) and len(seen) == 2
    assert "a query that sees none, as padding on the left, gives zeros" in str(report)


@pytest.mark.parametrize("family", ["llama", "gpt2", "deepseek_v3"])
def test_what_else_a_model_returns_comes_along(family):
    model = build(family)
    call = {"input_ids": IDS, "labels": IDS, "use_cache": True, "output_hidden_states": True}
    theirs = model(**call)
    rooftile.patch(model)
    ours = model(**call)
    assert set(ours.keys()) == set(theirs.keys()) - {"logits"} and len(ours.keys()) >= 3
    assert gap(ours.hidden_states[-1], theirs.hidden_states[-1]) < 1e-5


def test_an_output_that_nobody_names_is_no_loss_of_ours():
    with pytest.raises(ValueError, match="its forward says that it returns None, which is not one output"):
        forwards.causal_lm(lambda self, labels=None: None, "model")


def test_refusals():
    with pytest.raises(
        ValueError, match=r"Linear holds no model of a family that is known: DeepseekV3, Gemma, .*, GPT2, Llama, Mistral, Qwen2, Qwen3$"
    ):
        rooftile.patch(nn.Linear(2, 2))
    opt = transformers.OPTForCausalLM(
        transformers.OPTConfig(vocab_size=32, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(ValueError, match="OPTForCausalLM holds no model"):
        rooftile.patch(opt)
    model = build("llama")
    report = rooftile.patch(model)
    with pytest.raises(ValueError, match="LlamaForCausalLM is patched already, in 11 modules"):
        rooftile.patch(model)
    model.model.norm.forward = lambda x: x
    with pytest.raises(ValueError, match=r"1 of 11 modules have another forward by now, model\.norm among them"):
        report.undo()
    assert forwards.rebound(build, SHAPE=None).__globals__["SHAPE"] is None
    with pytest.raises(ValueError, match="does not call apply_rotary_pos_emb by that name"):
        forwards.rebound(build, apply_rotary_pos_emb=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int16])
def test_tokens_that_are_no_indices(dtype):
    """Seen red: they were cut to whole numbers, 1.5 to token 1, which PyTorch's embedding refuses. Its int32 is taken."""
    model = build("llama")
    rooftile.patch(model)
    assert torch.equal(model(IDS.int()).logits, model(IDS).logits)
    with pytest.raises(ValueError, match=f"embedding: indices is {str(dtype).removeprefix('torch.')}, takes int64"):
        model(IDS.to(dtype))


def test_activation_checkpointing_copies_and_half_a_model():
    before = step(build("llama"))
    for early in (True, False):
        model = build("llama")
        if early:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        rooftile.patch(model)
        if not early:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        close(step(model), before)
    twin = copy.deepcopy(model)
    assert twin.model.norm.forward.__self__ is twin.model.norm
    close(step(twin), before)
    trunk = build("llama").model  # no head, no loss
    hidden = trunk(IDS).last_hidden_state
    report = rooftile.patch(trunk)
    assert gap(trunk(IDS).last_hidden_state, hidden) < 1e-5 and not report.left


def test_a_users_subclass():
    """Taken for what it is of where it inherits the forward; left with a reason where it has its own. Seen red: neither was named in the report."""
    theirs = transformers.LlamaForCausalLM
    inherits = type("Inherits", (theirs,), {})
    own = type("Own", (theirs,), {"forward": lambda self, *args, **call: theirs.forward(self, *args, **call)})
    for kind, left in ((inherits, {}), (own, {"loss": "its forward is Own's own, not LlamaForCausalLM's"})):
        model = build("llama")
        before = step(model)
        model.__class__ = kind
        report = rooftile.patch(model)
        assert {e.part: e.note for e in report.left} == left and len(report.replaced) + len(left) == 13
        close(step(model), before)
        report.undo()
        assert same(step(model), before)
    assert rooftile.patch(type("Trunk", (transformers.LlamaModel,), {})(build("llama").config)).replaced


def test_a_pickle_is_patched_anew():
    """It brings the classes' forwards back, and the loss function, which is a name. Seen red: the loss was then left as someone else's."""
    model = build("llama")
    before = step(model)
    rooftile.patch(model)
    again = pickle.loads(pickle.dumps(model))
    report = rooftile.patch(again)
    assert not report.left
    close(step(again), before)
    report.undo()
    assert same(step(again), before) and again.loss_function.__name__ == "ForCausalLMLoss"


@pytest.mark.parametrize("early", [True, False])
def test_lora(early):
    peft = pytest.importorskip("peft")

    def lora(model):
        torch.manual_seed(5)
        # a wrapped head: its weight alone would be the wrong loss; around the embedding is a class of PEFT's of that name
        targets = ["q_proj", "v_proj", "gate_proj", "down_proj", "lm_head", "embed_tokens"]
        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False))

    before = step(lora(build("llama")))
    model = build("llama")
    if early:
        report, model = rooftile.patch(model), lora(model)
    else:
        model = lora(model)
        report = rooftile.patch(model)
    assert len(before) == 21
    close(step(model), before)
    report.undo()
    assert same(step(model), before)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.down_proj", "lm_head"])
def test_what_is_put_on_a_product_is_called(name):
    """Those whose weight is read where it lies: the last of a gated perceptron, and the head. A forward of the instance, and a hook of gradients."""

    def forward_of_its_own(layer):
        theirs = layer.forward
        layer.forward = lambda x: 2 * theirs(x)

    for put in (forward_of_its_own, lambda layer: layer.register_full_backward_pre_hook(lambda _, grads: (2 * grads[0],))):
        model, patched = build("llama"), build("llama")
        rooftile.patch(patched)
        for m in (model, patched):
            put(m.get_submodule(name))
        close(step(patched), step(model))


@pytest.mark.parametrize("family, name", [("llama", "model.layers.0.mlp"), ("gpt2", "transformer.h.0.mlp")])
def test_what_is_put_on_an_activation_is_called(family, name):
    """Its product goes by our operator alone: a hook on it, and another one in its place, were passed over."""

    def another(mlp, slot):
        setattr(mlp, slot, nn.Tanh())

    for put in (another, lambda mlp, slot: getattr(mlp, slot).register_forward_hook(lambda m, x, out: 2 * out)):
        model, patched = build(family), build(family)
        rooftile.patch(patched)
        for m in (model, patched):
            mlp = m.get_submodule(name)
            put(mlp, "act" if family == "gpt2" else "act_fn")
        close(step(patched), step(model))


def test_what_is_set_after_patch_counts():
    """A loss function of one's own, another cap, the weights of attention by the config: each was passed over without a word."""

    def thrice(logits, labels, vocab_size, **_):
        return 3 * nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab_size), labels[:, 1:].reshape(-1))

    model, patched = build("gemma2"), build("gemma2")
    rooftile.patch(patched)
    for m in (model, patched):
        m.config.final_logit_softcapping = 0.5
    close(step(patched), step(model))
    for m in (model, patched):
        m.loss_function, m.config.output_attentions = thrice, True
    close(step(patched), step(model))
    theirs, ours = (m(IDS).attentions for m in (model, patched))
    assert len(ours) == len(theirs) == 2 and all(gap(a.detach(), b.detach()) < 1e-5 for a, b in zip(ours, theirs))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_trace_holds_operators(family):
    """And no function of Python's, which a trace cannot keep."""

    class Logits(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids, use_cache=False).logits

    model = build(family).eval()
    rooftile.patch(model)
    made = torch.jit.trace(Logits(model), IDS)
    assert "PythonOp" not in {node.kind().rpartition("::")[2] for node in made.inlined_graph.nodes()}
    torch.testing.assert_close(made(IDS[:1]), model(IDS[:1]).logits)


def test_accelerate_takes_its_wrapper_away():
    """What `prepare` puts around a forward for mixed precision, `unwrap_model(keep_fp32_wrapper=False)` peels off: it peeled ours off too, and undo refused."""
    accelerate = pytest.importorskip("accelerate")
    model = build("llama")
    before = step(model)
    report = rooftile.patch(model)
    model._original_forward = model.forward
    model.forward = MethodType(torch.autocast("cpu", torch.bfloat16)(model.forward.__func__), model)
    accelerate.utils.extract_model_from_parallel(model, keep_fp32_wrapper=False)
    assert "labels" in inspect.signature(model.forward).parameters and model(IDS, labels=IDS).logits is None
    report.undo()
    assert same(step(model), before)


@pytest.mark.parametrize("early", [True, False])
def test_device_map(early):
    """accelerate's hooks around every module, in either order; and weights that a hook brings only for the time of a call."""
    accelerate = pytest.importorskip("accelerate")
    before = step(build("llama"))
    places = dict.fromkeys(("model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    for place in (
        lambda m: accelerate.dispatch_model(m, places, force_hooks=True),
        lambda m: accelerate.cpu_offload(m, torch.device("cpu")),
    ):
        model = build("llama")
        if early:
            report = rooftile.patch(model)
        place(model)
        if not early:
            report = rooftile.patch(model)
        with Called() as seen:
            loss = model(IDS, labels=IDS).loss
        assert gap(loss, before[""]) < 1e-6 and {"rmsnorm", "swiglu", "cross_entropy"} <= seen.names
        accelerate.hooks.remove_hook_from_submodules(model)
        report.undo()
    model = build("llama")
    if early:
        report = rooftile.patch(model)
    accelerate.dispatch_model(model, places, force_hooks=True)
    if not early:
        report = rooftile.patch(model)
    close(step(model), before)
    report.undo()
    with Called() as seen:
        assert same(step(model), before) and not seen.names


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu(family):
    """bfloat16 there against float32 on the host: within 1.5 times the error of the model as it was; and no operator runs its reference."""
    exact, theirs, ours = build(family), build(family).bfloat16().cuda(), build(family).bfloat16().cuda()
    report = rooftile.patch(ours)
    seen = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # "runs its slow reference"
        for seed in range(3):
            ids = torch.randint(3, 97, (2, 24), generator=torch.Generator().manual_seed(seed))
            outcomes = [step(exact, input_ids=ids, labels=ids)]
            outcomes += [step(m, input_ids=ids.cuda(), labels=ids.cuda()) for m in (theirs, ours)]
            for name in outcomes[0]:
                seen.setdefault(name, []).append([o[name].float().cpu() for o in outcomes])
    for name, batches in seen.items():
        truth, own, made = (torch.stack(tensors) for tensors in zip(*batches))
        if name and truth.norm() > 1e-6:
            assert gap(made, truth) < 1.5 * gap(own, truth), name
    report.undo()
    close(step(ours, input_ids=ids.cuda(), labels=ids.cuda()), outcomes[1], 1e-3)  # atomics of PyTorch's own


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_the_second_gpu_while_the_first_is_current():
    model = build("llama").bfloat16().to("cuda:1")
    rooftile.patch(model)
    ids = IDS.to("cuda:1")
    assert torch.cuda.current_device() == 0 and step(model, input_ids=ids, labels=ids)[""].device.index == 1
