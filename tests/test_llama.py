"""Llama: equal to transformers tensor by tensor, both ways, on every table."""

import json
import pickle

import pytest
import torch
import torch.nn.functional as F

from rooftile.models import LLAMA_1_2B, Llama, LlamaConfig, llama_operators
from rooftile.models.llama_pretrained import INDEX, JOINED
from rooftile.models.precision import Precision
from rooftile.ops import linear, swiglu
from test_models import gap, one_thread, spoiling  # noqa: F401 - a fixture for every test here

transformers = pytest.importorskip("transformers")
SMALL = LlamaConfig(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=24,
)  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SHAPES = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True, "rope_theta": 5e5},
    "wide-heads": {"head_dim": 16, "num_key_value_heads": 1},
    "scaled": {"rope_scaling": LLAMA3, "num_key_value_heads": 4},
}


def shape(**changes):
    return LlamaConfig(**{**vars(SMALL), **changes})


def small(config=SMALL, **options):
    torch.manual_seed(0)
    model = Llama(config, **options)
    with torch.no_grad():  # initial norms are one: a forgotten one would not show
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape)
    return model


def text(rows=3):
    tokens = torch.randint(0, 61, (rows, 18), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def kept(call):
    """Bytes that autograd keeps from forward to backward."""
    stores = {}

    def note(t):
        stores[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        call()
    return sum(stores.values())


def compare(ours, hf):
    """Logits, loss and every gradient, within 1e-5 by norm."""
    x, y = text()
    logits = hf(x).logits
    assert gap(ours(x), logits) < 1e-5
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss = ours(x, y)
    assert gap(loss, expected) < 1e-6
    expected.backward(), loss.backward()
    wanted = {name.removeprefix("model."): p.grad for name, p in hf.named_parameters()}
    for name, p in ours.named_parameters():
        joined = next((j for j in JOINED if name.endswith(j)), None)
        stem = name.removesuffix(joined.split(".")[1] + ".weight") if joined else ""
        parts = [wanted.pop(f"{stem}{part}.weight") for part in JOINED[joined]] if joined else [wanted.pop(name)]
        assert gap(p.grad, torch.cat(parts)) < 1e-5, name
    assert not wanted


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
@pytest.mark.parametrize("name", SHAPES)
def test_equal_to_transformers_both_ways(tmp_path, name, kernels):
    ours = small(config=shape(**SHAPES[name]), operators=llama_operators(kernels))
    ours.save_pretrained(tmp_path / "ours")
    hf = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    compare(ours, hf)
    hf.save_pretrained(tmp_path / "theirs", max_shard_size="30KB")
    assert (tmp_path / "theirs" / INDEX).is_file()
    again = Llama.from_pretrained(tmp_path / "theirs", operators=llama_operators(kernels))
    assert again.config == shape(**{"head_dim": 8, "bos_token_id": 60, "eos_token_id": 60, **SHAPES[name]})
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))
    with torch.no_grad():
        again.norm.weight += 1
    again.save_pretrained(tmp_path / "theirs")  # beside parts that an index still names
    saved = Llama.from_pretrained(tmp_path / "theirs"), transformers.LlamaForCausalLM.from_pretrained(tmp_path / "theirs").model
    assert all(torch.equal(model.norm.weight, again.norm.weight) for model in saved)


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        Llama.from_pretrained(tmp_path)
    config, weights, good, stored, refused = spoiling(Llama, small(), tmp_path)
    refused(r"embed_tokens\.weight has shape \(61, 32\), config\.json says \(62, 32\)", {"vocab_size": 62})
    refused("num_attention_heads is 4, not a multiple of num_key_value_heads 3", {"num_key_value_heads": 3})
    refused("attention_bias True; this model only computes False", {"attention_bias": True})
    refused("model_type 'mistral'", {"model_type": "mistral"})
    refused("rope_type 'yarn', this model computes llama3 or none", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})
    refused(r"rope_scaling lacks low_freq_factor \(3 such", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}})
    refused(r"lacks layers\.1\.self_attn\.qkv_proj", tensors={k: v for k, v in stored.items() if "1.self_attn.k_proj" not in k})
    refused("has the unknown extra", tensors={**stored, "extra": torch.ones(1)})
    refused(r"unknown layers\.7\.mlp\.up_proj", tensors={**stored, "model.layers.7.mlp.up_proj.weight": torch.ones(64, 32)})
    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    refused(
        r"layers\.0\.self_attn\.q_proj\.weight has shape \(16, 32\), config\.json says \(32, 32\)",
        tensors={**stored, q: stored[k], k: stored[q]},
    )
    refused(r"norm\.weight is int8, takes float32, bfloat16", tensors={**stored, "model.norm.weight": torch.ones(32, dtype=torch.int8)})
    for name, wrong in (("rms_norm_eps", None), ("num_attention_heads", "4"), ("rope_scaling", 5), ("tie_word_embeddings", 1)):
        refused(rf"config\.json has {name} {wrong!r}, takes", {name: wrong})
    config.write_text(json.dumps(good))
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors: neither it nor"):
        Llama.from_pretrained(tmp_path)
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(ValueError, match=r"index\.json holds list, needs an object"):
        Llama.from_pretrained(tmp_path)
    for nothing in ({}, {"weight_map": {}}, {"weight_map": "model.safetensors"}, {"weight_map": {"norm.weight": 1}}):
        (tmp_path / INDEX).write_text(json.dumps(nothing))
        with pytest.raises(ValueError, match=r"index\.json has no weight_map: which of the parts"):
            Llama.from_pretrained(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one", "b": "two"}}))
    with pytest.raises(FileNotFoundError, match="names 2 parts"):
        Llama.from_pretrained(tmp_path)


def test_shapes():
    def parameters(c):
        attention = 2 * c.hidden_size * c.dim * (c.num_attention_heads + c.kv_heads)
        return c.num_hidden_layers * (attention + c.hidden_size * (3 * c.intermediate_size + 2)) + c.hidden_size * (c.vocab_size + 1)

    tied = shape(tie_word_embeddings=True)
    assert sum(p.numel() for p in small(config=tied).parameters()) == parameters(tied)
    assert parameters(LLAMA_1_2B) == 1_235_814_400
    model = Llama(shape(num_hidden_layers=8, hidden_size=128, vocab_size=500))
    assert model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.layers[3].mlp.down_proj.weight.std().item() == pytest.approx(0.005, rel=0.03)
    with pytest.raises(ValueError, match="25 tokens, this model's max_position_embeddings is 24"):
        small()(torch.zeros(1, 25, dtype=torch.long))
    with pytest.raises(ValueError, match="a head has 9 dimensions"):
        shape(head_dim=9)
    with pytest.raises(ValueError, match=r"weights is torch\.bfloat16, must be torch\.float32 or the compute dtype, torch\.float32"):
        small(weights=torch.bfloat16)


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_bfloat16_stays_near_float32(kernels, weights):
    x, y = text()
    exact, mixed = small(), small(operators=llama_operators(kernels), compute_dtype=torch.bfloat16, weights=weights)
    for model in (exact, mixed):
        model(x, y).backward()
    assert mixed(x).dtype == torch.bfloat16 and mixed(x, y).dtype == torch.float32 and mixed.cos.dtype == torch.float32
    for (name, p), q in zip(exact.named_parameters(), mixed.parameters()):
        assert q.grad.dtype == weights and 1e-7 < gap(q.grad.float(), p.grad) < 0.08, name
    assert torch.equal(mixed.bfloat16().cos, exact.cos)


def test_made_on_the_meta_device():
    """As fully_shard's users do: memory comes last, and then the numbers."""
    with torch.device("meta"):
        model = Llama(SMALL, compute_dtype=torch.bfloat16, weights=torch.bfloat16)
    model.to_empty(device="cpu").initialise()
    assert torch.equal(model.cos, Llama(SMALL).cos) and (model.norm.weight == 1).all() and model.norm.weight.dtype == torch.bfloat16
    assert 4.0 < model(*text()).item() < 4.3  # ln 61 = 4.11


def test_weights_loaded_into_one_made_on_the_meta_device():
    """No state dict holds the angles: they were what the memory held, or stayed on the meta device."""
    whole, tokens = small(), torch.arange(8)[None]
    for assign in (False, True):
        with torch.device("meta"):
            model = small()
        if not assign:
            model.to_empty(device="cpu")
        model.load_state_dict(whole.state_dict(), assign=assign)
        assert torch.equal(model(tokens), whole(tokens)) and torch.equal(model.cos, whole.cos) and torch.equal(model.sin, whole.sin)
        assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), whole(tokens))


def test_checkpointing_changes_no_gradient():
    x, y = text()
    plain, again = (small(operators=llama_operators("rooftile"), checkpointing=c) for c in (False, True))
    for model in (plain, again):
        model(x, y).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), again.parameters()))


def test_what_a_block_keeps():
    """Not the factor of its last product, which is made again from gate and up."""

    x, y = text()
    model = small(operators=llama_operators("rooftile"), config=shape(num_hidden_layers=4))
    with_it = kept(lambda: model(x, y).backward())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Precision,
            "gated_mlp",
            lambda self, x, gate_up, down, residual: linear(swiglu(linear(x, gate_up.weight)), down.weight) + residual,
        )
        without = kept(lambda: model(x, y).backward())
    assert without - with_it == 4 * 3 * 17 * 48 * 4  # blocks, rows, tokens, features, bytes


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_compiles_into_one_graph(kernels):
    x, y = text()
    eager, traced = (small(operators=llama_operators(kernels)) for _ in range(2))
    torch.compile(traced, fullgraph=True, backend="aot_eager")(x, y).backward()
    eager(x, y).backward()
    for a, b in zip(traced.parameters(), eager.parameters()):
        assert gap(a.grad, b.grad) < 1e-5


def test_what_is_put_in_a_layers_place_is_told():
    """As of a GPT-2."""
    for name in ("layers.0.self_attn.qkv_proj", "layers.0.self_attn.o_proj", "layers.1.mlp.gate_up_proj", "layers.1.mlp.down_proj",
                 "layers.0.input_layernorm", "norm", "embed_tokens", "lm_head"):  # fmt: skip
        model = small(operators=llama_operators("rooftile"))
        layer = model.get_submodule(name)
        layer.forward = lambda x: x
        with pytest.raises(ValueError, match=f"{type(layer).__name__} stands in the place of a torch.nn.{type(layer).__name__}"):
            model(*text())


def test_generation_slides():
    model, (x, _) = small(), text()
    drawn = model.generate(x, 12, top_k=9, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (3, 29) and torch.equal(drawn[:, :17], x)


@pytest.mark.gpu
def test_bfloat16_on_a_gpu_is_no_worse_than_twice_pytorchs_own(tmp_path):
    """Against the float64 model of transformers; PyTorch's own error is that of the same model in bfloat16."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2
    )
    Llama(config).save_pretrained(tmp_path)
    x, y = (torch.randint(0, 1024, (4, 256), generator=torch.Generator().manual_seed(s)).cuda() for s in (1, 2))

    def theirs(dtype):
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").cuda().to(dtype)
        logits = model(x).logits
        F.cross_entropy(logits.flatten(0, 1).to(torch.promote_types(dtype, torch.float32)), y.flatten()).backward()
        grads = {name.removeprefix("model."): p.grad.double() for name, p in model.named_parameters()}
        parts = lambda joined, stem: torch.cat([grads[f"{stem}{part}.weight"] for part in JOINED[joined]])  # noqa: E731
        for layer in range(3):
            grads |= {f"layers.{layer}.{j}": parts(j, f"layers.{layer}.{j.split('.')[0]}.") for j in JOINED}
        return {**grads, "": logits.detach().double()}

    truth, own = theirs(torch.float64), theirs(torch.bfloat16)
    model = Llama.from_pretrained(
        tmp_path, operators=llama_operators("rooftile"), compute_dtype=torch.bfloat16, weights=torch.bfloat16
    ).cuda()
    model(x, y).backward()
    ours = {"": model(x).detach(), **{name: p.grad for name, p in model.named_parameters()}}
    for name, value in ours.items():
        assert gap(value.double(), truth[name]) <= 2 * gap(own[name], truth[name]), name
