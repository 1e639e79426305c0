"""A decoder's configuration, read from GGUF metadata and checked against the tensors of the file.

Keys and their defaults: llama.cpp's `load_arch_hparams` of each architecture. What an architecture does differently is
data in `ARCHITECTURES`; the block that runs it all is `models/decoder.py`.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from mlxtrain.errors import Unsupported, UserError
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.rope import RopeConfig


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What sets one `general.architecture` apart from llama."""

    traditional_rope: bool = False
    activation: str = "silu"  # silu or gelu (the tanh approximation)
    scaled_embedding: bool = False  # input embeddings times sqrt(hidden)
    qk_norm: bool = False
    post_norms: bool = False  # a norm after attention and after the feed-forward as well
    attention_softcap: bool = False
    window: int | None = None  # default where the file names none
    window_pattern: int = 0  # layer i slides where i % pattern < pattern - 1; 0: no layer does
    large_layers: int = 0  # the depth whose query scale is 1/sqrt(hidden / heads), not 1/sqrt(head_dim)
    biases: tuple[str, ...] = ()  # tensors that may carry one


_QKV = ("attn_q", "attn_k", "attn_v", "attn_qkv")
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(traditional_rope=True, biases=(*_QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down")),
    "qwen2": Architecture(biases=(*_QKV, "attn_output")),
    "qwen3": Architecture(qk_norm=True, biases=_QKV),
    "gemma": Architecture(activation="gelu", scaled_embedding=True),
    "gemma2": Architecture(
        activation="gelu",
        scaled_embedding=True,
        post_norms=True,
        attention_softcap=True,
        window=4096,
        window_pattern=2,
        large_layers=46,
    ),
    "gemma3": Architecture(
        activation="gelu", scaled_embedding=True, qk_norm=True, post_norms=True, window_pattern=6, large_layers=62
    ),
    # llama.cpp runs phi3 without its sliding window, so that is how the adapter will be served.
    "phi3": Architecture(biases=_QKV),
}


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Everything the decoder needs to know besides its weights. Lengths in elements."""

    architecture: str
    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    activation: str
    embedding_scale: float
    attention_scale: float
    attention_softcap: float  # 0: none
    final_softcap: float  # 0: none
    ropes: tuple[RopeConfig, ...]  # the global one, then that of sliding layers where it differs
    rope_factors: str | None  # tensor that divides the frequencies
    windows: tuple[int | None, ...]  # per layer; None: full attention
    qk_norm: bool
    post_norms: bool
    tied: bool
    biases: tuple[str, ...] = field(default=())

    def rope_of(self, layer: int) -> int:
        return 1 if self.windows[layer] is not None and len(self.ropes) > 1 else 0


def decoder_config(gguf: GGUF, seq_len: int | None = None) -> DecoderConfig:
    """Read and check the configuration. `seq_len` chooses LongRoPE's short or long factors (default: short).

    Raises UserError for an unsupported architecture or feature, a missing key, or sizes that cannot be.
    """
    if gguf.key("general.type", str, "model") == "adapter":
        raise UserError(f"{gguf.path}: is an adapter; give it by --adapter, and the model it was made for by --gguf")
    name = gguf.architecture
    arch = ARCHITECTURES.get(name)
    if arch is None:
        raise Unsupported(
            f"{gguf.path}: architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    if gguf.key(f"{name}.expert_count", int, 0):
        raise Unsupported(f"{gguf.path}: {name} with experts (mixture of experts) is not supported")

    hidden = gguf.key(f"{name}.embedding_length", int)
    layers = gguf.key(f"{name}.block_count", int)
    heads = gguf.key(f"{name}.attention.head_count", int)
    kv_heads = gguf.key(f"{name}.attention.head_count_kv", int, heads)
    if layers > len(gguf.tensors):
        raise UserError(f"{gguf.path}: block_count is {layers}, but there are {len(gguf.tensors)} tensors in all")
    _positive(gguf, {"embedding_length": hidden, "block_count": layers, "head_count": heads, "head_count_kv": kv_heads})
    head_dim = gguf.key(f"{name}.attention.key_length", int, hidden // heads)
    if heads % kv_heads or gguf.key(f"{name}.attention.value_length", int, head_dim) != head_dim:
        raise UserError(
            f"{gguf.path}: {heads} heads over {kv_heads} key/value heads of {head_dim} and "
            f"{gguf.key(f'{name}.attention.value_length', int, head_dim)}: expected whole groups and equal lengths"
        )
    context = gguf.key(f"{name}.context_length", int)
    windows = _windows(gguf, arch, layers)
    query_dim = hidden / heads if layers == arch.large_layers else head_dim
    scaled = math.sqrt(hidden) if arch.scaled_embedding else 1.0
    vocab = gguf.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in gguf.tensors else 0
    if not vocab:
        raise UserError(f"{gguf.path}: tensor 'token_embd.weight' is missing; a vocabulary-only file cannot be run")
    factors = _rope_factors(gguf, seq_len)
    return DecoderConfig(
        architecture=name,
        vocab=vocab,
        hidden=hidden,
        ffn=gguf.key(f"{name}.feed_forward_length", int),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        norm_eps=gguf.key(f"{name}.attention.layer_norm_rms_epsilon", float),
        activation=arch.activation,
        embedding_scale=scaled,
        attention_scale=1 / math.sqrt(query_dim),
        attention_softcap=gguf.key(f"{name}.attn_logit_softcapping", float, 50.0) if arch.attention_softcap else 0.0,
        final_softcap=_final_softcap(gguf, name),
        ropes=_ropes(gguf, arch, head_dim, context, any(windows)),
        rope_factors=factors,
        windows=windows,
        qk_norm=arch.qk_norm,
        post_norms=arch.post_norms,
        tied="output.weight" not in gguf.tensors,
        biases=arch.biases,
    )


def _positive(gguf: GGUF, sizes: dict[str, int]) -> None:
    for key, value in sizes.items():
        if value <= 0:
            raise UserError(f"{gguf.path}: {key} is {value}, expected a positive number")


def _final_softcap(gguf: GGUF, name: str) -> float:
    default = 30.0 if name == "gemma2" else 0.0
    return gguf.key(f"{name}.final_logit_softcapping", float, default) if name in ("gemma2", "gemma3") else 0.0


def _windows(gguf: GGUF, arch: Architecture, layers: int) -> tuple[int | None, ...]:
    name = gguf.architecture
    window = gguf.key(f"{name}.attention.sliding_window", int, arch.window or 0)
    if not window or not arch.window_pattern:
        return (None,) * layers
    pattern = gguf.metadata.get(f"{name}.attention.sliding_window_pattern", arch.window_pattern)
    if isinstance(pattern, np.ndarray):
        if len(pattern) != layers:
            raise UserError(f"{gguf.path}: sliding_window_pattern has {len(pattern)} entries, expected {layers} layers")
        return tuple(window if slides else None for slides in pattern)
    return tuple(window if pattern == 0 or i % pattern < pattern - 1 else None for i in range(layers))


def _ropes(gguf: GGUF, arch: Architecture, head_dim: int, context: int, slides: bool) -> tuple[RopeConfig, ...]:
    name = gguf.architecture
    dims = gguf.key(f"{name}.rope.dimension_count", int, head_dim)
    if dims <= 0 or dims % 2 or dims > head_dim:
        raise UserError(f"{gguf.path}: rope.dimension_count is {dims}, expected an even number up to {head_dim}")
    scaling = gguf.key(f"{name}.rope.scaling.type", str, "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise Unsupported(
            f"{gguf.path}: RoPE scaling {scaling!r} is not supported; supported are linear, yarn, longrope"
        )
    factor = gguf.key(f"{name}.rope.scaling.factor", float, 0.0) or gguf.key(f"{name}.rope.scale_linear", float, 0.0)
    rope = RopeConfig(
        dims=dims,
        base=gguf.key(f"{name}.rope.freq_base", float, 10000.0),
        traditional=arch.traditional_rope,
        scaling=scaling,
        factor=1.0 if scaling == "none" or not factor else factor,
        original_context=gguf.key(f"{name}.rope.scaling.original_context_length", int, context),
        magnitude=gguf.key(f"{name}.rope.scaling.attn_factor", float, 1.0),
    )
    for key, value in (("rope.freq_base", rope.base), ("rope.scaling.factor", rope.factor)):
        if not 0 < value < math.inf:
            raise UserError(f"{gguf.path}: {key} is {value}, expected a positive number")
    if rope.scaling == "yarn" and rope.original_context <= 0:
        raise UserError(
            f"{gguf.path}: rope.scaling.original_context_length is {rope.original_context}, expected more than 0"
        )
    if not slides:
        return (rope,)
    if name == "gemma3":  # sliding layers are never scaled
        base, factor = gguf.key(f"{name}.rope.freq_base_swa", float, 10000.0), 1.0
    else:
        base, factor = gguf.key(f"{name}.rope.freq_base_swa", float, rope.base), rope.factor
    local = RopeConfig(
        dims=dims,
        base=base,
        traditional=rope.traditional,
        scaling=scaling,
        factor=factor,
        original_context=rope.original_context,
        magnitude=rope.magnitude,
    )
    return (rope,) if local == rope else (rope, local)


def _rope_factors(gguf: GGUF, seq_len: int | None) -> str | None:
    """The tensor that divides the rotary frequencies. llama.cpp takes the long factors for a context beyond the
    original."""
    if "rope_freqs.weight" in gguf.tensors:
        return "rope_freqs.weight"
    name = gguf.architecture
    original = gguf.key(f"{name}.rope.scaling.original_context_length", int, gguf.key(f"{name}.context_length", int))
    chosen = "rope_factors_long.weight" if (seq_len or 0) > original else "rope_factors_short.weight"
    return chosen if chosen in gguf.tensors else None
