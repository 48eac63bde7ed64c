"""ONNX Runtime on the CPU: the standard's Attention, and GroupQueryAttention with a cache that the keys already lie in."""
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import arrays

NAMES = ["ORT Attention", "ORT GQA"]
VERSION = onnxruntime.__version__
TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def session(nodes, inputs, outputs, threads):
    graph = helper.make_graph(nodes, "peer", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Peer:
    def __init__(self, which, tensors, name, causal, copies, threads):
        self.tensors, self.name, self.type, self.note = tensors, name, TYPES[name], ""
        self.batch, self.heads, self.rows, self.dim = tensors["q"].shape
        _, self.heads_kv, self.keys, self.dim_v = tensors["v"].shape
        make = self.attention if which == "ORT Attention" else self.grouped
        self.keep, self.bindings = [], []
        make(causal, copies, threads)

    def value(self, array, type=None):
        array = np.array(array, order="C")  # a copy of its own
        self.keep.append(array)  # the runtime points at it
        if self.name == "bf16" and type is None:
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)

    def info(self, name, shape, type=None):
        return helper.make_tensor_value_info(name, type or self.type, shape)

    def bind(self, inputs, outputs):
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        self.bindings.append(binding)

    def attention(self, causal, copies, threads):
        if causal == "bottom-right" and self.rows != self.keys and self.rows != 1:
            raise NotImplementedError("its causal band without a cache is aligned top-left")
        node = helper.make_node("Attention", ["q", "k", "v"], ["out"], is_causal=int(bool(causal) and self.rows > 1))
        shapes = {key: self.tensors[key].shape for key in "qkv"}
        self.shape = (self.batch, self.heads, self.rows, self.dim_v)
        self.session = session([node], [self.info(key, shapes[key]) for key in "qkv"], [self.info("out", self.shape)], threads)
        q, self.out = self.value(self.tensors["q"]), self.value(np.zeros(self.shape, self.tensors["q"].dtype))
        for _ in range(copies):
            self.bind({"q": q, "k": self.value(self.tensors["k"]), "v": self.value(self.tensors["v"])}, {"out": self.out})

    def grouped(self, causal, copies, threads):
        """Its band is always causal and bottom-right. The new rows' keys are written into the cache where the same numbers already are."""
        rows, keys = self.rows, self.keys
        if not (rows == 1 or (causal and rows == keys)) or self.dim != self.dim_v:
            raise NotImplementedError("its band is always causal, aligned bottom-right")
        flat = lambda array: np.swapaxes(array, 1, 2).reshape(self.batch, array.shape[2], -1)
        q, k, v = (self.value(flat(self.tensors[key][:, :, -rows:])) for key in "qkv")
        cache = (self.batch, self.heads_kv, keys, self.dim)
        node = helper.make_node("GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "lengths", "total"], ["out", "new_k", "new_v"],
                                domain="com.microsoft", num_heads=self.heads, kv_num_heads=self.heads_kv)
        width, width_kv = self.heads * self.dim, self.heads_kv * self.dim
        inputs = [self.info("q", (self.batch, rows, width)), self.info("k", (self.batch, rows, width_kv)), self.info("v", (self.batch, rows, width_kv)),
                  self.info("past_k", cache), self.info("past_v", cache), self.info("lengths", (self.batch,), TensorProto.INT32),
                  self.info("total", (1,), TensorProto.INT32)]
        outputs = [self.info("out", (self.batch, rows, width)), self.info("new_k", cache), self.info("new_v", cache)]
        self.session = session([node], inputs, outputs, threads)
        self.shape = None
        self.out = self.value(np.zeros((self.batch, rows, width), self.tensors["q"].dtype))
        lengths, total = self.value(np.full(self.batch, keys - 1, np.int32), "int"), self.value(np.array([keys], np.int32), "int")
        for _ in range(copies):
            past_k, past_v = self.value(self.tensors["k"]), self.value(self.tensors["v"])
            self.bind({"q": q, "k": k, "v": v, "past_k": past_k, "past_v": past_v, "lengths": lengths, "total": total},
                      {"out": self.out, "new_k": past_k, "new_v": past_v})

    def run(self, i):
        self.session.run_with_iobinding(self.bindings[i % len(self.bindings)])

    def result(self):
        out = arrays.to_float64(self.out.numpy(), self.name)
        return out if self.shape else np.swapaxes(out.reshape(self.batch, self.rows, self.heads, self.dim), 1, 2)
