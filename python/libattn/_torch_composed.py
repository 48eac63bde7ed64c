"""Attention out of PyTorch's own operations, with softcap, window and sinks: what autograd can record, and any device and dtype can do."""
import math

import torch


def composed(query, key, value, mask, causal, scale, gqa, dropout=0.0, softcap=0.0, window=None, sinks=None):
    """[..., heads, L, Ev]. sinks [heads] or [..., heads, L, 1]. Where PyTorch's own function can say it, that one computes it."""
    if not softcap and sinks is None and window is None and not (causal and mask is not None):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=gqa)
    if gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ key.transpose(-2, -1)).to(torch.promote_types(query.dtype, torch.float32)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal or window is not None:
        row = torch.arange(query.shape[-2], device=query.device)[:, None]
        ahead = torch.arange(key.shape[-2], device=query.device) - row
        if causal:
            scores = scores.masked_fill(ahead > 0, -math.inf)
        if window is not None:
            scores = scores.masked_fill(ahead <= -window, -math.inf)
    if sinks is not None:
        sink = sinks.to(scores.dtype) if sinks.dim() > 1 else sinks.to(scores.dtype).reshape(-1, 1, 1)
        scores = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), -1)
    hidden = scores.amax(-1, keepdim=True) == -math.inf
    weights = torch.softmax(scores.masked_fill(hidden, 0.0), -1).masked_fill(hidden, 0.0)
    if sinks is not None:
        weights = weights[..., :-1]
    weights = torch.nn.functional.dropout(weights, dropout) if dropout else weights
    return weights.to(value.dtype) @ value
