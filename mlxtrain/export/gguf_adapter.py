"""Adapters in llama.cpp's LoRA format: a GGUF with `<tensor>.lora_a` (rank, in) and `<tensor>.lora_b` (out, rank).

Format: `llama_adapter_lora_init` in llama.cpp. The delta is `alpha / rank * B A`, rank being that of the tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxtrain import __version__
from mlxtrain.errors import UserError
from mlxtrain.files import replacing, sampled_sha256
from mlxtrain.gguf.blocks import DECODABLE, decode
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.lora import TARGETS, Projection


@dataclass(frozen=True, kw_only=True)
class LoadedAdapter:
    """An adapter read back: parameters by name, the matrices they belong to, and the factor of their contribution."""

    path: Path
    warning: str | None  # where it says that it was made for another file
    params: dict[str, mx.array]
    projections: list[Projection]
    scale: float


def write_adapter(
    path: Path, params: Mapping[str, mx.array], *, scale: float, base: GGUF, provenance: Mapping[str, str | int]
) -> None:
    """Write `params` (names as in the format, fp32) so that llama.cpp loads them on `base`. The file appears whole.

    `provenance` goes into the metadata under `mlxtrain.`: the base's digest, the recipe, the data's digest.
    """
    from gguf import GGUFWriter  # takes a quarter of a second to import

    rank = next(a.shape[0] for name, a in params.items() if name.endswith(".lora_a"))
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, base.architecture)
        writer.add_string("general.type", "adapter")
        writer.add_string("general.name", f"{base.path.stem} LoRA")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", scale * rank)
        writer.add_string("mlxtrain.version", __version__)
        for key, value in provenance.items():
            (writer.add_uint64 if isinstance(value, int) else writer.add_string)(f"mlxtrain.{key}", value)
        for name, value in params.items():
            writer.add_tensor(name, np.array(value.astype(mx.float32)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def read_adapter(path: str | Path, base: GGUF) -> LoadedAdapter:
    """Read a LoRA adapter for `base`, whoever wrote it.

    Raises UserError for a file that is no LoRA adapter, is for another architecture, or does not fit the base's
    tensors.
    """
    file = GGUF(path)
    kind = file.key("adapter.type", str, "missing")
    if file.key("general.type", str, "model") != "adapter" or kind != "lora":
        raise UserError(f"{path}: is not a LoRA adapter (general.type {file.key('general.type', str, 'model')!r})")
    if file.architecture != base.architecture:
        raise UserError(f"{path}: is an adapter for {file.architecture}, but {base.path} is {base.architecture}")
    names = sorted({name.rsplit(".lora_", 1)[0] for name in file.tensors})
    params: dict[str, mx.array] = {}
    projections, ranks = [], set()
    for name in names:
        projection = _projection(file, base, name)
        for part in ("lora_a", "lora_b"):
            tensor = file.tensors[f"{name}.{part}"]
            if tensor.type.name not in DECODABLE:
                raise UserError(
                    f"{path}: tensor {tensor.name!r} has block type {tensor.type.name}, which is not supported"
                )
            params[tensor.name] = decode(mx.array(tensor.raw), tensor.type.name).reshape(tensor.shape)
        projections.append(projection)
        ranks.add(params[f"{name}.lora_a"].shape[0])
    if not projections:
        raise UserError(f"{path}: holds no lora_a and lora_b tensors")
    if len(ranks) > 1:
        # One factor serves all: fold the difference into B.
        first = min(ranks)
        for p in projections:
            rank = params[f"{p.tensor}.lora_a"].shape[0]
            params[f"{p.tensor}.lora_b"] = params[f"{p.tensor}.lora_b"] * (first / rank)
    mx.eval(params)
    alpha = file.key("adapter.lora.alpha", float, 0.0)
    return LoadedAdapter(
        path=file.path,
        warning=_mismatch(file, base),
        params=params,
        projections=projections,
        scale=alpha / min(ranks) if alpha else 1.0,
    )


def _mismatch(file: GGUF, base: GGUF) -> str | None:
    made_for = file.key("mlxtrain.base.sample", str, None)
    if made_for in (None, sampled_sha256(base.paths)):
        return None
    name = file.key("mlxtrain.base.name", str, "another file")
    return f"{file.path}: was trained on {name}, whose content is not that of {base.path}; results may be poor"


def _projection(file: GGUF, base: GGUF, name: str) -> Projection:
    """The base's matrix that a pair adapts, with every shape checked."""
    parts = name.split(".")
    a, b = file.tensors.get(f"{name}.lora_a"), file.tensors.get(f"{name}.lora_b")
    if a is None or b is None:
        raise UserError(f"{file.path}: {name!r} has only one of lora_a and lora_b")
    if (
        len(parts) != 4
        or parts[0] != "blk"
        or parts[2] not in {*TARGETS.values(), "attn_qkv"}
        or name not in base.tensors
    ):
        raise UserError(f"{file.path}: adapts {name!r}, which is not an adaptable matrix of {base.path}")
    out, inner = base.tensors[name].shape
    if len(a.shape) != 2 or len(b.shape) != 2 or (a.shape[1], b.shape[0]) != (inner, out) or a.shape[0] != b.shape[1]:
        raise UserError(
            f"{file.path}: {name!r} has lora_a {list(a.shape)} and lora_b {list(b.shape)}, expected [r, {inner}] and "
            f"[{out}, r] for {base.path}"
        )
    return Projection(layer=int(parts[1]), name=parts[2], shape=(out, inner))
