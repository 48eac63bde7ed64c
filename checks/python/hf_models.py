"""Small models of Transformers with random weights, one for each way to attend that its own models have. Nothing is downloaded.

Weights are large enough that attention decides the tokens: with the default ones, of which all scores are near 0, a wrong mask hardly
shows. Windows are shorter than the tests' prompts."""
import torch
import transformers

WINDOW = 8
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3)
WORDS = dict(vocab_size=96, pad_token_id=0, bos_token_id=1, eos_token_id=None, tie_word_embeddings=False)
ENCODER = dict(**SIZES, **{**WORDS, "eos_token_id": 2}, max_position_embeddings=128)
DECODER = dict(**SIZES, **WORDS, max_position_embeddings=256, num_key_value_heads=2, head_dim=16)
WINDOWS = dict(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"])
LATENT = dict(num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
              n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=2)
TWO_SIDES = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
                 decoder_ffn_dim=96, init_std=0.3, decoder_start_token_id=1, **WORDS)
latent = {**{name: value for name, value in DECODER.items() if name != "head_dim"}, **LATENT}

CAUSAL = {
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "llama-mha": lambda: transformers.LlamaConfig(**{**DECODER, "num_key_value_heads": 4}),
    "llama-mqa": lambda: transformers.LlamaConfig(**{**DECODER, "num_key_value_heads": 1}),
    "qwen2": lambda: transformers.Qwen2Config(**DECODER, **WINDOWS, use_sliding_window=True),
    "qwen3": lambda: transformers.Qwen3Config(**DECODER),
    "mistral": lambda: transformers.MistralConfig(**DECODER, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(**DECODER, **WINDOWS, attn_logit_softcapping=5.0, query_pre_attn_scalar=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(**DECODER, **WINDOWS, query_pre_attn_scalar=8),
    "gemma4": lambda: transformers.Gemma4TextConfig(  # the last two layers attend to the keys of the first two
        **{**DECODER, **WINDOWS, "num_hidden_layers": 4, "layer_types": 2 * WINDOWS["layer_types"]}, num_kv_shared_layers=2,
        vocab_size_per_layer_input=96, hidden_size_per_layer_input=8, global_head_dim=16),
    "gpt-oss": lambda: transformers.GptOssConfig(**DECODER, **WINDOWS, num_local_experts=2, num_experts_per_tok=2, rope_parameters={
        "rope_type": "default", "rope_theta": 1e4}),  # sinks
    "llama4": lambda: transformers.Llama4TextConfig(  # chunks of keys
        **{**DECODER, "layer_types": ["chunked_attention", "full_attention"]}, attention_chunk_size=WINDOW, no_rope_layers=[1, 0],
        num_local_experts=2, intermediate_size_mlp=96, moe_layers=[]),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(**latent),  # values shorter than keys
    "deepseek-v3.2": lambda: transformers.DeepseekV32Config(**latent, index_topk=6, index_n_heads=2, index_head_dim=16),  # chosen keys
    "gpt2": lambda: transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, initializer_range=0.3, **WORDS),
}
ENCODER_DECODER = {
    "bart": lambda: transformers.BartConfig(**TWO_SIDES, max_position_embeddings=128, forced_eos_token_id=None),
    "t5": lambda: transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=1,
                                        initializer_factor=2.0, **WORDS),
    "whisper": lambda: transformers.WhisperConfig(**TWO_SIDES, num_mel_bins=16, max_source_positions=30, max_target_positions=60,
                                                  begin_suppress_tokens=None),
}


def made(config, kind="AutoModelForCausalLM", seed=0, **options):
    """An eager model for evaluation."""
    torch.manual_seed(seed)
    return getattr(transformers, kind).from_config(config, attn_implementation="eager", **options).eval()


def prompt(rows=20, batch=2, padded=0, side="left"):
    """Tokens and their mask; so many tokens of the first sequence are padding."""
    ids = torch.randint(3, 96, (batch, rows), generator=torch.Generator().manual_seed(rows))
    mask = torch.ones_like(ids)
    mask[0, slice(padded) if side == "left" else slice(rows - padded, None)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
