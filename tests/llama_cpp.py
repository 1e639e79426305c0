"""llama.cpp itself as the reference: its server in this process (`xllamacpp`), and tiny models around a vocabulary.

    from tests.llama_cpp import start, write_tiny_model

    with start(path) as server:
        server.tokenize("text", add_special=True, parse_special=True)

Only tests use it; it is the only reference here that is not written in Python.
"""

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_HIDDEN, _FF = 32, 32


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

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def start(model_path: str | Path, **options: Any) -> Iterator[LlamaServer]:
    """A server on the GGUF at `model_path`. Options are attributes of `xllamacpp.CommonParams` (`n_ctx=512` ...)."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_path)
    settings = {"n_ctx": 256, "n_parallel": 1, "warmup": False, "n_threads_http": 1, "port": 0, "verbosity": -1}
    for name, value in (settings | options).items():
        setattr(params, name, value)
    server = LlamaServer(xllamacpp.Server(params))
    try:
        yield server
    finally:
        server.close()


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


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool | np.bool_):
        writer.add_bool(key, bool(value))
    elif isinstance(value, int | np.integer):
        writer.add_uint32(key, int(value))
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        values = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if values and isinstance(values[0], str):
            values = [text.encode("utf-8", "surrogateescape") for text in values]
        writer.add_array(key, values)
