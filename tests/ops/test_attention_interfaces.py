"""PyTorch's function and module and transformers' interface, each beside the original, whose conventions differ from ours and from each other."""

import pytest
import torch
import torch.nn.functional as F

from rooftile import MultiheadAttention, attention, register_attention, scaled_dot_product_attention
from rooftile.ops.attention import huggingface


def drawn(*shapes):
    gen = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=gen, dtype=torch.float64).float() for s in shapes]


@pytest.mark.parametrize("t, s", [(5, 5), (5, 8), (8, 5)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": "bool"}, {"attn_mask": "added"}])
def test_the_function_is_pytorchs(options, t, s):
    q, k, v, added = drawn((2, 4, t, 16), (2, 4, s, 16), (2, 4, s, 24), (2, 1, t, s))
    mask = {"bool": added > -1, "added": added}.get(options.get("attn_mask"))
    options = options if mask is None else {"attn_mask": mask}
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, **options), F.scaled_dot_product_attention(q, k, v, **options))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 4)])
def test_any_leading_axes(lead):
    q, k, v = drawn((*lead, 5, 16), (*lead, 7, 16), (*lead, 7, 16))
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("shape", [(5, 7), (4, 5, 7), (1, 1, 5, 7), (3, 1, 5, 7), (2, 3, 4, 5, 7), (2, 1, 1, 1, 7)])
def test_a_mask_broadcasts_to_any_leading_axes(shape):
    q, k, v, mask = drawn((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 16), shape)
    for m in (mask, mask > -1):
        torch.testing.assert_close(scaled_dot_product_attention(q, k, v, m), F.scaled_dot_product_attention(q, k, v, m))


def test_leading_axes_that_do_not_fit_are_told():
    """Also where there are as many in all: the 6 were paired in the order of memory."""
    q, k, mask = drawn((2, 3, 4, 5, 16), (3, 2, 4, 5, 16), (2, 1, 5, 5))
    with pytest.raises(ValueError, match=r"are \[2, 3, 4, 5, 16\], \[3, 2, 4, 5, 16\], .*all axes before the last 3 must be the same"):
        scaled_dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match=r"attn_mask is \[2, 1, 5, 5\], which does not broadcast to \[2, 3, 4, 5, 5\]"):
        scaled_dot_product_attention(q, q, q, mask)


def test_shared_heads_are_asked_for():
    q, k, v = drawn((2, 4, 5, 16), (2, 2, 7, 16), (2, 2, 7, 16))
    wanted = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, enable_gqa=True), wanted)
    with pytest.raises(ValueError, match="4 heads on 2 of keys: that is for enable_gqa=True"):
        scaled_dot_product_attention(q, k, v)
    with pytest.raises(ValueError, match="it takes 1 of the 2"):
        scaled_dot_product_attention(q, k, v, torch.ones(5, 7, dtype=torch.bool), is_causal=True)


@pytest.mark.parametrize("variant", ["flash", "standard"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 12, "vdim": 20}, {"bias": False}])
def test_the_module_is_pytorchs(options, batch_first, variant):
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=batch_first, **options)
    ours = MultiheadAttention(32, 4, batch_first=batch_first, variant=variant, **options)
    ours.load_state_dict(theirs.state_dict())
    q, k, v, added = drawn((2, 5, 32), (2, 7, options.get("kdim", 32)), (2, 7, options.get("vdim", 32)), (5, 7))
    q, k, v = (x if batch_first else x.transpose(0, 1) for x in (q, k, v))
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    for masks in ({}, {"key_padding_mask": padding}, {"attn_mask": added}, {"attn_mask": added > 1, "key_padding_mask": padding},
                  {"attn_mask": (added > 1).expand(8, 5, 7)}):  # fmt: skip
        for average in (True, False):
            wanted, weights = theirs(q, k, v, average_attn_weights=average, **masks)
            out, ours_weights = ours(q, k, v, need_weights=True, average_attn_weights=average, **masks)
            torch.testing.assert_close(out, wanted)
            torch.testing.assert_close(ours_weights, weights)
        out, nothing = ours(q, k, v, **masks)
        torch.testing.assert_close(out, wanted)
        assert nothing is None


def test_the_standard_way_keeps_the_digits_of_float64():
    theirs, ours = (cls(32, 4, batch_first=True, dtype=torch.float64) for cls in (torch.nn.MultiheadAttention, MultiheadAttention))
    ours.load_state_dict(theirs.state_dict())
    (x,) = drawn((2, 5, 32))
    for made, wanted in zip(ours(x.double(), x.double(), x.double(), need_weights=True), theirs(x.double(), x.double(), x.double())):
        torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-12)


def test_the_modules_arguments_are_in_pytorchs_order():
    given = 8, 2, 0.0, True, False, False, None, None, True, "meta", torch.bfloat16
    assert [(p.device, p.dtype) for p in MultiheadAttention(*given).parameters()] == [
        (p.device, p.dtype) for p in torch.nn.MultiheadAttention(*given).parameters()
    ]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(3, 2, 16), (3, 16)])
def test_on_itself_the_projections_are_one_product(batch_first, shape, monkeypatch):
    """Without batch_first, PyTorch's default, and without a batch they were three."""
    module, x, weights = MultiheadAttention(16, 2, batch_first=batch_first), torch.randn(shape), []
    linear = F.linear
    monkeypatch.setattr(F, "linear", lambda x, w, b: weights.append(len(w)) or linear(x, w, b))
    module(x, x, x)
    assert weights == [48, 16]


def test_the_module_alone_causal_and_on_itself():
    ours, (x,) = MultiheadAttention(32, 4, dropout=0.5), drawn((6, 32))
    ours.eval()
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
    out = ours(x, x, x, is_causal=True)[0]
    assert out.shape == x.shape and torch.equal(out, ours.eval()(x, x, x, is_causal=True)[0])
    torch.testing.assert_close(out, ours(x, x, x, attn_mask=mask, is_causal=True)[0])
    assert not torch.equal(ours.train()(x, x, x)[0], ours(x, x, x)[0])
    with pytest.raises(ValueError, match="variant is 'paged', takes flash or standard"):
        MultiheadAttention(32, 4, variant="paged")


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"attn_mask": torch.zeros(5, 7, dtype=torch.int64)}, "attn_mask is int64, takes bool, True at a key that is not seen, or floats"),
        ({"key_padding_mask": torch.zeros(2, 7, dtype=torch.uint8)}, "key_padding_mask is uint8, takes bool"),
        ({"attn_mask": torch.zeros(2, 5, 7)}, r"attn_mask is \[2, 5, 7\], it must be \[8, 5, 7\] or \[5, 7\]"),
        ({"attn_mask": torch.zeros(7, 5)}, r"attn_mask is \[7, 5\], it must be \[8, 5, 7\] or \[5, 7\]"),
        ({"key_padding_mask": torch.zeros(2, 5)}, r"key_padding_mask is \[2, 5\], it must be \[2, 7\]"),
        ({"key": torch.zeros(7, 32)}, r"query, key and value have \(3, 2, 3\) axes, it takes 3 of each, or 2 without a batch"),
        ({"value": torch.zeros(2, 7, 20)}, r"value is \[2, 7, 20\], its last axis must be 32"),
    ],
)
def test_what_the_module_cannot_take_is_a_sentence(given, sentence):
    """A mask of whole numbers above all: it was added to the scores."""
    q, kv = drawn((2, 5, 32), (2, 7, 32))
    with pytest.raises(ValueError, match=sentence):
        MultiheadAttention(32, 4, batch_first=True)(**{"query": q, "key": kv, "value": kv, **given})


def test_transformers_mask_of_whole_numbers_is_refused():
    """It was added to the scores."""
    q, k = drawn((2, 4, 5, 16), (2, 2, 7, 16))
    with pytest.raises(ValueError, match="attention_mask is int64, takes bool, True where a key is seen, or floats"):
        huggingface._attend(torch.nn.Module(), q, k, k, torch.ones(2, 1, 5, 7, dtype=torch.int64))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL)


def gemma2():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM, Gemma2Config(num_key_value_heads=2, head_dim=16, sliding_window=4, attn_logit_softcapping=2.0, **SMALL)


def gpt_oss():
    from transformers import GptOssConfig, GptOssForCausalLM

    return GptOssForCausalLM, GptOssConfig(
        num_key_value_heads=2, head_dim=16, sliding_window=4, num_local_experts=2, num_experts_per_tok=1, **SMALL
    )


SMALL = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM, MistralConfig(num_key_value_heads=2, sliding_window=4, **SMALL)


def phimoe():
    from transformers import PhimoeConfig, PhimoeForCausalLM

    return PhimoeForCausalLM, PhimoeConfig(num_key_value_heads=2, sliding_window=4, num_local_experts=2, num_experts_per_tok=2, **SMALL)


def olmoe():
    from transformers import OlmoeConfig, OlmoeForCausalLM

    return OlmoeForCausalLM, OlmoeConfig(num_key_value_heads=2, sliding_window=4, num_experts=2, num_experts_per_tok=2, **SMALL)


@pytest.mark.parametrize("model", [llama, gemma2, gpt_oss, mistral])
def test_transformers_models_give_what_they_gave(model, monkeypatch):
    """Shared key heads; a cap and a window; sinks and a window; a window. Without padding, with it, and one token after a cache. Only padding makes a mask."""
    calls = []
    monkeypatch.setattr(huggingface, "attention", lambda *args, **options: calls.append(options) or attention(*args, **options))
    register_attention()
    kind, config = model()
    torch.manual_seed(0)
    net = kind(config).eval()
    tokens = torch.randint(0, 40, (2, 9))
    padding = torch.ones(2, 9, dtype=torch.int64)
    padding[0, :3] = 0
    given = {}
    for name in ("eager", "rooftile"):
        net.set_attn_implementation(name)
        with torch.no_grad():
            cache = net(tokens[:, :-1], use_cache=True)
            given[name] = [
                net(tokens).logits,
                net(tokens, attention_mask=padding).logits[padding.bool()],
                net(tokens[:, -1:], past_key_values=cache.past_key_values).logits,
            ]
        loss = net(tokens, labels=tokens).loss
        given[name] += [loss, *torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad], allow_unused=True)[:6]]
    assert len(calls) == 2 * 5 and all(
        (model is gemma2) == bool(c["softcap"]) and (model is gpt_oss) == (c["sinks"] is not None) for c in calls
    )
    assert [c["mask"] is not None for c in calls] == [False] * 4 + [True] * 2 + [False] * 4
    windows = {llama: 0, mistral: 2}.get(model, 1)  # of two layers
    assert all(c["window"] in (None, (3, 0)) for c in calls)
    assert [sum(c["window"] is not None for c in calls[i : i + 2]) for i in (0, 2, 8)] == [windows] * 3
    for ours, theirs in zip(given["rooftile"], given["eager"]):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def as_eager_attention_has_it(kind, config, **words):
    """Whether a model's first result is the same with both."""
    torch.manual_seed(0)
    net, given = kind(config).eval(), []
    for name in ("eager", "rooftile"):
        net.set_attn_implementation(name)
        with torch.no_grad():
            given.append(net(**words)[0])
    torch.testing.assert_close(given[1], given[0], rtol=1e-4, atol=1e-5)


def mistral_both_ways():
    kind, config = mistral()
    config.is_causal = False
    return kind, config


@pytest.mark.parametrize("model", [phimoe, olmoe, mistral_both_ways])
def test_transformers_models_whose_masks_and_words_differ(model):
    """The attention of one does not tell of the window that its masks have; another's tells of one that they have not; one's windows are on both sides."""
    pytest.importorskip("transformers", minversion="5.24")
    register_attention()
    kind, config = model()
    assert huggingface._tells(config) == (model is mistral_both_ways) and huggingface._tells(mistral()[1])
    as_eager_attention_has_it(kind, config, input_ids=torch.randint(0, 40, (2, 9)))


def test_a_window_of_transformers_compiles_in_one_graph():
    register_attention()
    kind, config = mistral()
    net, tokens = kind(config).eval(), torch.randint(0, 40, (2, 9))
    net.set_attn_implementation("rooftile")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(tokens).logits, net(tokens).logits)


def test_layers_of_another_kind_keep_their_masks():
    config = mistral()[1]
    config.layer_types = ["hybrid_sliding", "sliding_attention"]  # whose masks generate makes without a window
    assert not huggingface._tells(config)


@pytest.mark.parametrize("model", [llama, gpt_oss, mistral])
def test_transformers_static_cache_is_read_from_its_begin(model):
    """Where no token is padding there is no mask, and the places of tokens to come lie behind the prompt's keys."""
    register_attention()
    kind, config = model()
    torch.manual_seed(0)
    net, tokens = kind(config).eval(), torch.randint(0, 40, (2, 9))
    drawn = []
    for name in ("eager", "rooftile"):
        net.set_attn_implementation(name)
        words = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
        drawn.append(net.generate(tokens, attention_mask=torch.ones_like(tokens), cache_implementation="static", **words))
    torch.testing.assert_close(torch.stack(drawn[1].logits), torch.stack(drawn[0].logits), rtol=1e-4, atol=1e-5)


def test_transformers_models_with_attention_of_their_own_are_refused():
    """Bloom asks no table for attention, but for masks: it added the boolean one to its scores."""
    from transformers import BloomConfig, BloomForCausalLM

    register_attention()
    net = BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=32, n_layer=1, n_head=4, attn_implementation="rooftile"))
    with pytest.raises(
        ValueError, match="models of BloomConfig compute attention by themselves, and know no masks but their own: use 'eager'"
    ):
        net(torch.zeros(1, 4, dtype=torch.int64))


def git():
    from transformers import GitConfig, GitForCausalLM

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return GitForCausalLM, GitConfig(vision_config={"image_size": 16, "patch_size": 8, **small}, vocab_size=40, **small), "input_ids"


def pegasus_x():
    from transformers import PegasusXConfig, PegasusXForConditionalGeneration

    config = PegasusXConfig(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                            encoder_ffn_dim=8, decoder_ffn_dim=8, num_global_tokens=4, block_size=4, dropout=0.0)  # fmt: skip
    return PegasusXForConditionalGeneration, config, "decoder_input_ids"


def deepseek_v4():
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    kinds = ["compressed_sparse_attention", "heavily_compressed_attention"]
    config = DeepseekV4Config(vocab_size=40, hidden_size=16, moe_intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, head_dim=16,
                              q_lora_rank=8, o_lora_rank=8, o_groups=2, n_routed_experts=2, num_experts_per_tok=1, index_n_heads=2, index_head_dim=8,
                              index_topk=2, compress_rates=dict(zip(kinds, (2, 4))), layer_types=kinds)  # fmt: skip
    return DeepseekV4ForCausalLM, config, "input_ids"


def deepseek_v32():
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    config = DeepseekV32Config(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                               index_topk=3, index_n_heads=2, index_head_dim=16, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
                               qk_rope_head_dim=8, v_head_dim=16, first_k_dense_replace=1)  # fmt: skip
    return DeepseekV32ForCausalLM, config, "input_ids"


@pytest.mark.parametrize("model", [git, pegasus_x, deepseek_v4, deepseek_v32])
def test_transformers_models_that_want_other_masks_than_sdpas(model):
    """One adds its mask to the scores itself, one does not say that it is causal, one puts numbers behind its mask, one hands over which keys a query
    sees: all four gave other logits."""
    pytest.importorskip("transformers", minversion="5.24")
    register_attention()
    kind, config, ids = model()
    tokens = torch.randint(3, 40, (2, 9))
    as_eager_attention_has_it(kind, config, **{"input_ids": tokens, ids: tokens})


@pytest.mark.parametrize("what", ["block_indices", "sinks"])
def test_what_transformers_says_of_the_scores_and_we_do_not_know_is_refused(what):
    q, k = drawn((2, 4, 5, 16), (2, 2, 7, 16))
    with pytest.raises(ValueError, match=rf"Module gives {what} \[2, 4, 5, 1\]; it takes indices of keys and a sink a head"):
        huggingface._attend(torch.nn.Module(), q, k, k, **{what: torch.zeros(2, 4, 5, 1)})


def test_a_bias_beside_keys_to_come():
    q, k, bias = drawn((2, 4, 5, 16), (2, 2, 8, 16), (1, 4, 5, 8))
    causal = torch.nn.Module()
    causal.is_causal = True
    (ours, _), (theirs, _) = (huggingface._attend(causal, q, k[:, :, :n], k[:, :, :n], position_bias=bias[..., :n]) for n in (8, 5))
    assert torch.equal(ours, theirs)


def test_rows_that_a_mask_of_floats_hides_have_no_gradient():
    """As left-padded sequences have. Added as numbers, each weight of theirs was 1 where it is 1 of the keys' number."""
    q, k, v, dout = (x.requires_grad_(i < 3) for i, x in enumerate(drawn((2, 4, 7, 16), (2, 2, 7, 16), (2, 2, 7, 16), (2, 7, 4, 16))))
    seen = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    seen[1, :, :, :3] = False  # three tokens of padding, whose queries see nothing
    bias = drawn((1, 1, 7, 7))[0] * seen
    floats = bias.masked_fill(~seen, torch.finfo(torch.float32).min)
    given = [
        (out, *torch.autograd.grad(out, (q, k, v), dout))
        for out, _ in (
            huggingface._attend(torch.nn.Module(), q, k, v, mask, position_bias=more) for mask, more in ((floats, None), (seen, bias))
        )
    ]
    for ours, theirs in zip(*given):
        torch.testing.assert_close(ours, theirs)
    assert not given[0][1][1, :, :3].any() and given[0][1][0].any()
