"""Which tensors a decoder layer is made of: looked up, shape-checked, and described by a hashable `LayerSpec`.

Every `blk.N.*` tensor of the file must be known: a tensor ignored in silence would be another model than the one
served.
"""

import re
from dataclasses import dataclass

import mlx.core as mx

from mlxtrain.errors import Unsupported, UserError
from mlxtrain.gguf.blocks import DECODABLE, decode
from mlxtrain.gguf.mapped import MappedTensors
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import DecoderConfig

_LAYER = re.compile(r"^blk\.(\d+)\.(.+)$")
_GLOBAL = {
    "token_embd.weight",
    "output_norm.weight",
    "output.weight",
    "output.bias",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
}


@dataclass(frozen=True)
class Stored:
    """How one tensor of a layer is stored: its name within the layer, block type and shape."""

    suffix: str  # attn_q.weight
    type: str  # Q4_1
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What selects the code that runs a layer. Layers with equal specs share one baked function."""

    tensors: tuple[Stored, ...]
    window: int | None
    rope: int  # which rotary table

    def has(self, suffix: str) -> bool:
        return any(t.suffix == suffix for t in self.tensors)

    def decode(self, raw: dict[str, mx.array], dtype: mx.Dtype) -> dict[str, mx.array]:
        """Dense weights from blocks: matrices in `dtype`, norms and biases (one-dimensional) in fp32."""
        dense = {}
        for t in self.tensors:
            array = decode(raw[t.suffix], t.type, dtype if len(t.shape) > 1 else mx.float32)
            dense[t.suffix] = array.reshape(t.shape)
        return dense


def _expected_shapes(config: DecoderConfig, present: set[str]) -> dict[str, tuple[int, ...]]:
    q, kv, hidden, ffn = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.hidden, config.ffn
    shapes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    if "attn_qkv.weight" in present:
        shapes["attn_qkv.weight"] = (q + 2 * kv, hidden)
    else:
        shapes |= {"attn_q.weight": (q, hidden), "attn_k.weight": (kv, hidden), "attn_v.weight": (kv, hidden)}
    shapes["attn_output.weight"] = (hidden, q)
    if config.qk_norm:
        shapes |= {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}
    if config.post_norms:
        shapes |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    if "ffn_gate.weight" in present:
        shapes |= {"ffn_gate.weight": (ffn, hidden), "ffn_up.weight": (ffn, hidden)}
    else:  # phi3: gate rows first, then up rows, in one tensor
        shapes["ffn_up.weight"] = (2 * ffn, hidden)
    shapes["ffn_down.weight"] = (hidden, ffn)
    for name in config.biases:
        if f"{name}.bias" in present:
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    return shapes


def _check(gguf: GGUF, name: str, shape: tuple[int, ...]) -> None:
    tensor = gguf.tensors.get(name)
    if tensor is None:
        raise UserError(
            f"{gguf.path}: tensor {name!r} is missing, expected shape {list(shape)}; the file is incomplete"
        )
    if tensor.shape != shape:
        raise UserError(f"{gguf.path}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(shape)}")
    if tensor.type.name not in DECODABLE:
        raise Unsupported(
            f"{gguf.path}: tensor {name!r} has block type {tensor.type.name}, which is not supported; supported are "
            f"{', '.join(sorted(DECODABLE))}"
        )


def layer_specs(gguf: GGUF, config: DecoderConfig) -> list[LayerSpec]:
    """Describe and check every tensor of the model. Raises UserError for one that is missing, misshapen, of a block
    type without a codec, or unknown to this architecture."""
    found: list[set[str]] = [set() for _ in range(config.layers)]
    for name in gguf.tensors:
        match = _LAYER.match(name)
        if match and match[2] == "rope_freqs.weight":
            raise Unsupported(
                f"{gguf.path}: per-layer {name!r} is not supported; convert the model with a newer llama.cpp"
            )
        if match and int(match[1]) < config.layers:
            found[int(match[1])].add(match[2])
        elif name not in _GLOBAL:
            raise Unsupported(
                f"{gguf.path}: tensor {name!r} is not part of {config.architecture} as it is supported here"
            )
    specs = []
    for index, present in enumerate(found):
        shapes = _expected_shapes(config, present)
        unknown = present - shapes.keys()
        if unknown:
            raise Unsupported(
                f"{gguf.path}: tensor 'blk.{index}.{min(unknown)}' is not part of {config.architecture} as it is "
                "supported here; leaving it out would train another model than the one served"
            )
        for suffix, shape in shapes.items():
            _check(gguf, f"blk.{index}.{suffix}", shape)
        stored = tuple(Stored(s, gguf.tensors[f"blk.{index}.{s}"].type.name, shapes[s]) for s in shapes)
        specs.append(LayerSpec(tensors=stored, window=config.windows[index], rope=config.rope_of(index)))
    _check(gguf, "token_embd.weight", (config.vocab, config.hidden))
    _check(gguf, "output_norm.weight", (config.hidden,))
    if not config.tied:
        _check(gguf, "output.weight", (config.vocab, config.hidden))
    if "output.bias" in gguf.tensors:
        _check(gguf, "output.bias", (config.vocab,))
    if config.rope_factors:
        _check(gguf, config.rope_factors, (config.ropes[0].dims // 2,))
    return specs


class Weights:
    """The frozen base: blocks by layer, straight from the mapped file."""

    def __init__(self, gguf: GGUF, config: DecoderConfig):
        self.gguf, self.config = gguf, config
        self.specs = layer_specs(gguf, config)
        self._mapped = MappedTensors(gguf.tensors)

    def layer(self, index: int) -> dict[str, mx.array]:
        """The blocks of one layer, by name within the layer: uint8, (rows, bytes per row)."""
        return {t.suffix: self._mapped[f"blk.{index}.{t.suffix}"] for t in self.specs[index].tensors}

    def blocks(self, name: str) -> mx.array:
        """The blocks of one tensor: uint8, (rows, bytes per row)."""
        return self._mapped[name]

    def type_of(self, name: str) -> str:
        return self.gguf.tensors[name].type.name

    def dense(self, name: str, dtype: mx.Dtype = mx.float32) -> mx.array:
        """One tensor decoded."""
        tensor = self.gguf.tensors[name]
        return decode(self._mapped[name], tensor.type.name, dtype).reshape(tensor.shape)

    def embedding_rows(self, ids, dtype: mx.Dtype = mx.float32) -> mx.array:
        """Rows of the embedding for token ids (NumPy integers of any shape): only the rows asked for are decoded."""
        name = "token_embd.weight"
        return decode(self._mapped.rows(name, ids), self.type_of(name), dtype)

    @property
    def head_name(self) -> str:
        return "token_embd.weight" if self.config.tied else "output.weight"
