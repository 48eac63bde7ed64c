"""libattn as an attention implementation of Hugging Face Transformers.

    libattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="libattn")

Query heads may share key heads (GQA), caches may be dynamic or static, batches padded on either side; sliding windows, softcaps, attention
sinks, position biases and the keys that an indexer chose are used where a model passes them. What libattn cannot do (training, other
devices) PyTorch computes; see libattn.torch.stats()."""
import logging

from ._extras import extra

with extra("transformers", __name__):
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface  # 4.53; before, some models made no mask for such a name
    from transformers.masking_utils import sdpa_mask

from .torch import extended

__all__ = ["NAME", "attention", "register"]

NAME = "libattn"
log = logging.getLogger("libattn")
said = set()


def mask_of(*arguments, config=None, **options):
    """What Transformers calls to make a mask: bool [batch, 1, L, S], or None where attention() knows without one.

    In models whose last layers share keys, those layers may keep the last rows alone (Gemma 4). Which rows these are only a mask tells."""
    if getattr(config, "num_kv_shared_layers", 0):
        options["allow_is_causal_skip"] = False
    return sdpa_mask(*arguments, **options)


def with_bias(mask, bias):
    """A position bias, hidden where the mask hides."""
    if mask is None:
        return bias
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else bias + mask


def with_choice(mask, indices, keys):
    """The mask, which hides from all heads what indices [batch, L, chosen] does not name too."""
    chosen = torch.zeros((*indices.shape[:2], keys), dtype=torch.bool, device=indices.device).scatter(-1, indices.long(), True)[:, None]
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, -torch.inf)


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, softcap=None, sliding_window=None,
              s_aux=None, sinks=None, position_bias=None, indices=None, block_indices=None, **others):
    """What Transformers calls an attention function.

    query [batch, heads, L, E]; key, value [batch, heads_kv, S, ..]; attention_mask bool or additive, or None: causal from the top left
    for more than one row (unless is_causal, or else the module, says it is not), and for one row all keys, or the last sliding_window.
    s_aux [heads] or sinks [batch, heads, L, 1]: attention sinks. indices [batch, L, chosen]: the keys that an indexer chose for each row;
    block_indices is the same in blocks of a size that only the model knows, and a ValueError. Returns ([batch, L, heads, Ev], None):
    there are no weights to return."""
    if block_indices is not None:
        raise ValueError('block_indices: blocks of keys chosen by an indexer are not known to attn_implementation="libattn"; use "sdpa"')
    if others.get("output_attentions") and "weights" not in said:
        said.add("weights")
        log.warning('attn_implementation="libattn" gives no attention weights; "eager" does')
    rows = query.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(rows > 1 and attention_mask is None and is_causal)  # what a static cache has not filled yet lies behind the diagonal
    windowed = attention_mask is None and is_causal and sliding_window is not None and key.shape[2] > sliding_window
    mask = attention_mask if indices is None else with_choice(attention_mask, indices, key.shape[2])
    mask = mask if position_bias is None else with_bias(mask, position_bias)
    if windowed and rows == 1:
        key, value = key[:, :, -sliding_window:], value[:, :, -sliding_window:]
        mask = None if mask is None else mask[..., -sliding_window:]
    out = extended(query, key, value, mask, causal, scaling, query.shape[1] != key.shape[1], dropout, softcap or 0.0,
                   sliding_window if windowed and causal else None, sinks if s_aux is None else s_aux)
    return out.transpose(1, 2).contiguous(), None


def register(name=NAME):
    """Makes attn_implementation=name known to Transformers. Twice is once."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_of)
