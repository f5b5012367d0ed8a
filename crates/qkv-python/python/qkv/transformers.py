"""``attn_implementation="qkv"`` for Transformers: the engine computes the attention of its models.

::

    import qkv.transformers

    qkv.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="qkv")

``register`` adds two functions. ``qkv_attention_forward`` computes; ``qkv_mask`` says which query may attend
which key. Without the second, Transformers would give the first no mask at all, neither causal order nor
padding. Causal order, padding, windows, chunks and packed sequences, together or alone, are a few numbers for
each position. Any other mask function of a model becomes a dense mask, made by Transformers' ``sdpa_mask``.

``record`` writes the queries, keys and values of all layers of one forward pass to a file, whatever the
model's own ``attn_implementation``.

Left to Transformers: models, caches and outputs. Left to ``qkv.scaled_dot_product_attention``: all
computation, and the checks of shapes, types and devices.

Limits:

- Gradients go through the output, not through the weights of ``output_attentions``, which are from before
  dropout; a loss that depends on them, and gradients of gradients, raise ``NotImplementedError`` on the way
  back. So does ``torch.jit.trace``, at once.
- ``output_attentions=True`` as an argument of a call, of ``generate`` too, gives the weights of that very
  call. In the configuration, Transformers refuses it beside any attention but its eager one: when a
  configuration is made, loaded or saved with both, and when it is set after ``attn_implementation``. Set
  before, it works as in a call.
- A query that may attend nothing, such as one of left padding, gives 0, and weights of 0, as sdpa does; eager
  attention gives the mean of all values.
- With attention sinks, the weights are what the sinks leave to the keys, as in GPT-OSS. The eager attention
  of GraniteSWA returns weights without its sinks.
- A model that computes with its mask raises ``NotImplementedError``: DeepSeek-V4, and models that do not use
  the attention interface, such as BLOOM and MPT. So do sparse indices (DeepSeek-V3.2) and sinks for each
  query (Inkling 2). A model that uses neither the interface nor these masks computes as it always did.
- Under ``torch.autocast``, models mix the types of queries and values, which raises ``TypeError``.
- ``torch.compile`` breaks its graph at each mask and each attention.
"""

try:
    from transformers import AttentionInterface, AttentionMaskInterface

    from qkv._attention import qkv_attention_forward
    from qkv._masks import Mask, qkv_mask
    from qkv._record import record
except ImportError as error:
    message = "qkv.transformers needs torch, and transformers from 5.24 on: pip install qkv[transformers]"
    raise ImportError(message) from error

__all__ = ["Mask", "qkv_attention_forward", "qkv_mask", "record", "register"]


def register() -> None:
    """Makes ``attn_implementation="qkv"`` known to Transformers, in this process."""
    AttentionInterface.register("qkv", qkv_attention_forward)
    AttentionMaskInterface.register("qkv", qkv_mask)
