"""Replaces attention in a PyTorch model, and prints tokens per second before and after.

    python tokens_per_second.py --context 4096

The model is a small Llama with random weights and grouped query heads, so nothing is downloaded. Attention is PyTorch's at first, then
libattn's in two ways: routed under the unchanged model, and chosen by name in Transformers. All three must generate the same tokens."""
import argparse
import contextlib
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import libattn
import libattn.torch
import libattn.transformers


def small_model(context):
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=4,
                         head_dim=64, vocab_size=1000, max_position_embeddings=2 * context, initializer_range=0.1)
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def generate(model, prompt, count):
    """Greedy. Returns the tokens, the seconds that the prompt took, and those of each further token."""
    tokens, times, step = [], [], prompt
    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + count)  # written in place; others copy all keys for each token
    for _ in range(count + 1):
        start = time.perf_counter()
        step = model(step, cache=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        times.append(time.perf_counter() - start)
        tokens.append(int(step))
    return tokens, times[0], times[1:]


def ways():
    """What is compared: a name, Transformers' name of the attention, and what to run it in."""
    libattn.transformers.register()
    return [("PyTorch", "sdpa", contextlib.nullcontext), ("with libattn.torch.installed()", "sdpa", libattn.torch.installed),
            ('attn_implementation="libattn"', "libattn", contextlib.nullcontext)]


def measure(model, prompt, count, rounds):
    """The ways in turn, round after round, so that what slows the machine down slows all of them."""
    found = {name: {"tokens": None, "prompt": [], "token": []} for name, _, _ in ways()}
    for _ in range(rounds + 1):
        for name, implementation, around in ways():
            model.set_attn_implementation(implementation)
            with around():
                tokens, first, rest = generate(model, prompt, count)
            if found[name]["tokens"] not in (None, tokens):
                raise SystemExit(f"{name}: WRONG, other tokens in another round")
            if found[name]["tokens"] is not None:  # the first round warms up
                found[name]["prompt"].append(first)
                found[name]["token"] += rest
            found[name]["tokens"] = tokens
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=2048, help="tokens of the prompt (default 2048)")
    parser.add_argument("--tokens", type=int, default=16, help="to generate (default 16)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of PyTorch")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = small_model(options.context)
    prompt = torch.randint(0, 1000, (1, options.context))
    libattn.torch.reset_stats()
    found = measure(model, prompt, options.tokens, options.rounds)

    before = found["PyTorch"]
    for name, way in found.items():
        print(f"{name}:")
        for what, part, count in (("prompt", "prompt", options.context), ("generation", "token", 1)):
            seconds = statistics.median(way[part])
            print(f"    {what:10} {count / seconds:8.1f} tokens/s, {statistics.median(before[part]) / seconds:.2f} times PyTorch's")
    print("libattn.torch.stats():", libattn.torch.stats())
    for name, way in found.items():
        if way["tokens"] != before["tokens"]:
            raise SystemExit(f"{name}: WRONG, it generates other tokens")
    print(f"verified: all generate the same {len(before['tokens'])} tokens")


if __name__ == "__main__":
    main()
