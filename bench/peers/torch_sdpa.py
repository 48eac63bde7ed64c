"""PyTorch's scaled_dot_product_attention on the CPU, grouped heads by enable_gqa."""
import numpy as np
import torch

import arrays

NAMES = ["PyTorch SDPA"]
VERSION = torch.__version__
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Peer:
    def __init__(self, which, tensors, name, causal, copies, threads):
        torch.set_num_threads(threads)
        self.name, self.note = name, "enable_gqa" if tensors["q"].shape[1] != tensors["k"].shape[1] else ""
        make = lambda array: torch.from_numpy(array.copy()).view(TYPES[name]) if name == "bf16" else torch.from_numpy(array.copy())
        self.q = make(tensors["q"])
        self.pairs = [(make(tensors["k"]), make(tensors["v"])) for _ in range(copies)]
        rows, keys = self.q.shape[2], tensors["k"].shape[2]
        if causal == "bottom-right" and rows != keys and rows != 1:
            raise NotImplementedError("its causal band is aligned top-left")
        self.options = {"is_causal": bool(causal) and not (causal == "bottom-right" and rows == 1),
                        "enable_gqa": self.q.shape[1] != tensors["k"].shape[1]}

    def run(self, i):
        k, v = self.pairs[i % len(self.pairs)]
        with torch.inference_mode():
            self.out = torch.nn.functional.scaled_dot_product_attention(self.q, k, v, **self.options)

    def result(self):
        return self.out.to(torch.float64).numpy()
