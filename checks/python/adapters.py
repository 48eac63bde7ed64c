"""Other libraries' attention functions in libattn's terms: their argument names, layouts and conventions, each in a few lines."""
import numpy as np

import libattn


def mlx_attention(q, k, v, *, scale, mask=None, sinks=None):
    """mx.fast.scaled_dot_product_attention: (B, H, L, D); "causal" is bottom-right; masks and sinks must promote to the type of q."""
    causal = False
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f'mask: must be "causal" or an array, not {mask!r}')
        causal, mask = "bottom-right", None
    for name, x in (("mask", mask), ("sinks", sinks)):
        if x is not None and x.dtype != bool and np.promote_types(x.dtype, q.dtype) != q.dtype:
            raise ValueError(f"{name}: its type {x.dtype} does not promote to {q.dtype}")
    return libattn.attention(q, k, v, scale=scale, mask=mask, causal=causal, sinks=sinks)


def flash_band(len_q, len_k, causal, window_size):
    """FlashAttention's diagonal is bottom-right, with and without causal; -1 is no limit."""
    left, right = (None if side < 0 else int(side) for side in window_size)
    if causal:
        return {"causal": "bottom-right", "window": (left, 0)}
    return {"offset": len_k - len_q, "window": (left, right)}


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """(B, L, H, D); slopes [heads] or [batch, heads]."""
    if dropout_p:
        raise NotImplementedError("dropout_p: libattn has no dropout")
    options = {"layout": "blhd", "scale": softmax_scale, "softcap": softcap, **flash_band(q.shape[1], k.shape[1], causal, window_size)}
    if alibi_slopes is None or alibi_slopes.ndim == 1:
        return libattn.attention(q, k, v, alibi_slopes=alibi_slopes, **options)
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    for b in range(q.shape[0]):
        libattn.attention(q[b:b + 1], k[b:b + 1], v[b:b + 1], alibi_slopes=alibi_slopes[b], out=out[b:b + 1], **options)
    return out


def flash_attn_qkvpacked_func(qkv, *args, **options):
    return flash_attn_func(*qkv.unbind(2), *args, **options)


def flash_attn_kvpacked_func(q, kv, *args, **options):
    return flash_attn_func(q, *kv.unbind(2), *args, **options)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *args, alibi_slopes=None, **options):
    """Sequences one after the other: (total, H, D), beginning at cu_seqlens. One call for each."""
    out = q.new_empty((*q.shape[:2], v.shape[2]))
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(int(cu[b]), int(cu[b + 1])) for cu in (cu_seqlens_q, cu_seqlens_k))
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.ndim == 1 else alibi_slopes[b]
        out[rows] = flash_attn_func(q[None, rows], k[None, keys], v[None, keys], *args, alibi_slopes=slopes, **options)[0]
    return out


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None,
                            softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, num_splits=0):
    """New keys are written behind those in the cache; then each sequence sees its own keys from cache_leftpad on. How the work is split
    (num_splits) is the library's own decision."""
    batch, new = q.shape[0], 0 if k is None else k.shape[1]
    entries = range(batch) if cache_batch_idx is None else cache_batch_idx.tolist()
    filled = [int(n) for n in cache_seqlens]
    for b, entry in enumerate(entries if new else ()):
        k_cache[entry, filled[b]:filled[b] + new], v_cache[entry, filled[b]:filled[b] + new] = k[b], v[b]
    ends = [n + new for n in filled]
    options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    unbounded = causal or max(window_size) < 0
    if unbounded and cache_batch_idx is None and cache_leftpad is None and (alibi_slopes is None or alibi_slopes.ndim == 1 and causal):
        return libattn.attention(q, k_cache, v_cache, layout="blhd", scale=softmax_scale, softcap=softcap, len_kv=ends,
                                 alibi_slopes=alibi_slopes, **({"causal": "bottom-right", "window": (window_size[0], 0)} if causal else {}))
    out = q.new_empty((*q.shape[:3], v_cache.shape[3]))
    for b, entry in enumerate(entries):
        keys = slice(0 if cache_leftpad is None else int(cache_leftpad[b]), ends[b])
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.ndim == 1 else alibi_slopes[b]
        out[b:b + 1] = flash_attn_func(q[b:b + 1], k_cache[entry, None, keys], v_cache[entry, None, keys], alibi_slopes=slopes, **options)
    return out
