"""llama.cpp itself as the reference: its server in this process (`xllamacpp`), and tiny models around a vocabulary.

    from tests.llama_cpp import start, write_tiny_model

    with start(path) as server:
        server.tokenize("text", add_special=True, parse_special=True)
    with start_exact(path, adapter=adapter_path) as server:
        server.continuation([1, 2, 3], count=200, top=10, adapter_scale=1.0).logprobs

Only tests use it; it is the only reference here that is not written in Python.
"""

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mlxtrain.gguf.blocks import decode
from mlxtrain.gguf.mapped import blocks
from mlxtrain.gguf.reader import GGUF

_HIDDEN, _FF = 32, 32


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What llama.cpp made of a prompt: N tokens, and the K likeliest of each position with their log-probabilities in
    nats (of the model itself, before any sampler). `tokens` is (N,), `ids` and `logprobs` are (N, K)."""

    tokens: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray


class LlamaServer:
    """A running llama.cpp server. `post` takes any of its endpoints."""

    def __init__(self, server: Any):
        self._server = server  # the model lives as long as this
        address = server.listening_address.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=600)

    def post(self, endpoint: str, body: Mapping[str, Any]) -> Any:
        data = json.dumps(body).encode()
        self._connection.request("POST", endpoint, data, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{endpoint}: {response.status} {answer[:500]!r}")
        return json.loads(answer)

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        return self.post("/tokenize", body)["tokens"]

    def tokenize_many(
        self, texts: Sequence[str], *, add_special: bool = False, parse_special: bool = True
    ) -> list[list[int]]:
        return [self.tokenize(text, add_special=add_special, parse_special=parse_special) for text in texts]

    def continuation(
        self, prompt: Sequence[int], *, count: int, top: int, adapter_scale: float | None = None
    ) -> Continuation:
        """`count` tokens after `prompt`, the likeliest each time, whether or not they end the text. `adapter_scale` is
        for the adapter that the server was started with: 0 leaves it out."""
        body = {"prompt": list(prompt), "n_predict": count, "n_probs": top, "temperature": 0.0, "ignore_eos": True}
        body |= {"samplers": ["temperature"], "cache_prompt": False, "return_tokens": True}
        if adapter_scale is not None:
            body["lora"] = [{"id": 0, "scale": adapter_scale}]
        answer = self.post("/completion", body)
        tokens, steps = answer["tokens"], answer["completion_probabilities"]
        # It keeps back the probabilities of a token that ends within a character.
        if len(tokens) != count or [step["id"] for step in steps] != tokens:
            raise RuntimeError(f"llama.cpp gave {len(tokens)} tokens and {len(steps)} distributions, expected {count}")
        best = [step["top_logprobs"] for step in steps]
        return Continuation(
            tokens=np.array(tokens, np.int32),
            ids=np.array([[entry["id"] for entry in row] for row in best], np.int32),
            logprobs=np.array([[entry["logprob"] for entry in row] for row in best]),
        )

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def start(model_path: str | Path, **options: Any) -> Iterator[LlamaServer]:
    """A server on the GGUF at `model_path`. Options are attributes of `xllamacpp.CommonParams` (`n_ctx=512` ...).
    It computes on one thread: its workers spin, which beside other jobs is many times slower than waiting."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_path)
    settings = {"n_ctx": 256, "n_parallel": 1, "warmup": False, "n_threads_http": 1, "port": 0, "verbosity": -1}
    for name, value in (settings | options).items():
        setattr(params, name, value)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = LlamaServer(xllamacpp.Server(params))
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def start_exact(model_path: str | Path, adapter: Path | None = None, n_ctx: int = 256) -> Iterator[LlamaServer]:
    """A server whose arithmetic is fp32: its cache of keys and values too, and no flash attention, which rounds."""
    import xllamacpp

    fp32 = xllamacpp.ggml_type.GGML_TYPE_F32
    off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)] if adapter else []
    with start(
        model_path, n_ctx=n_ctx, cache_type_k=fp32, cache_type_v=fp32, flash_attn_type=off, lora_adapters=adapters
    ) as server:
        yield server


def write_tiny_model(path: str | Path, metadata: Mapping[str, Any]) -> Path:
    """A one-layer llama model of hidden size 32 with the tokenizer in `metadata` (its `tokenizer.*` keys and
    `general.name`), weights zero: enough for llama.cpp to load the vocabulary and answer."""
    writer = gguf.GGUFWriter(str(path), "llama")
    vocab = len(metadata["tokenizer.ggml.tokens"])
    for name, value in {
        "context_length": 256,
        "embedding_length": _HIDDEN,
        "block_count": 1,
        "feed_forward_length": _FF,
        "attention.head_count": 1,
    }.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in metadata.items():
        if key == "general.name" or key.startswith("tokenizer.ggml."):
            _add(writer, key, value)
    shapes = {"token_embd": (vocab, _HIDDEN), "output_norm": (_HIDDEN,)}
    for part in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{part}"] = (_HIDDEN,)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{part}"] = (_HIDDEN, _HIDDEN)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float16 if name == "token_embd" else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def write_as_f32(source: GGUF, path: Path) -> Path:
    """The same model with every weight decoded to fp32, metadata kept: llama.cpp rounds activations where weights are
    quantised, and does not where they are F32."""
    writer = gguf.GGUFWriter(str(path), source.architecture)
    for key in source.metadata:
        if not key.startswith(("general.architecture", "general.file_type", "general.quantization_version")):
            _add(writer, key, source.metadata[key])
    for name, tensor in source.tensors.items():
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), tensor.weights * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in source.tensors.values():  # one at a time
        writer.write_tensor_data(np.array(decode(blocks(tensor), tensor.type.name)).reshape(tensor.shape))
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool | np.bool_):
        writer.add_bool(key, bool(value))
    elif isinstance(value, int | np.integer):
        writer.add_uint32(key, int(value))
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        values = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if values and isinstance(values[0], str):
            values = [text.encode("utf-8", "surrogateescape") for text in values]
        writer.add_array(key, values)
