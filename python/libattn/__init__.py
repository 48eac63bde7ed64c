"""libattn: scaled dot-product attention for NumPy, PyTorch and JAX arrays, with every intermediate in float32.

    import libattn
    out = libattn.attention(q, k, v, causal="bottom-right")

libattn.torch has PyTorch's own function, libattn.transformers registers an attention implementation, libattn.onnx has the ONNX operator."""
from ._attention import Explanation, attention, explain, info
from ._merge import merge
from ._native import StatusError

__all__ = ["Explanation", "StatusError", "attention", "explain", "info", "merge"]


def __getattr__(name):
    if name == "__version__":
        from ._native import library
        return library().version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
