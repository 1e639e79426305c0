"""eval, generate, tokenize, inspect, data check and doctor, as processes of their own."""

import json
import math
import struct

import mlx.core as mx
import numpy as np
import pytest

from mlxtrain.base import Base
from mlxtrain.data.batches import collate
from mlxtrain.data.examples import Window
from mlxtrain.engine.streamed import StreamedDecoder
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import decoder_config
from mlxtrain.models.weights import Weights
from tests.tiny import write_tiny


def reference_loss(model, texts: list[str], seq_len: int) -> tuple[float, int]:
    """The contract of `eval`, by hand: windows that overlap by one token, every token after the first scored once."""
    base = Base(model)
    decoder = StreamedDecoder(Weights(base.gguf, decoder_config(base.gguf)))
    total, count = 0.0, 0
    for text in texts:
        ids = np.array(base.tokenizer.encode(text), np.int32)
        for start in range(0, len(ids) - 1, seq_len):
            window, targets = ids[start : start + seq_len], ids[start + 1 : start + seq_len + 1]
            window = window[: len(targets)]
            logits = decoder.logits(collate([Window(ids=window, labels=targets, line=1)]), {})
            z = np.array(logits[0, : len(targets)].astype(mx.float32)).astype(np.float64)
            total += (np.log(np.exp(z).sum(-1)) - z[np.arange(len(targets)), targets]).sum()
            count += len(targets)
    return total / count, count


@pytest.mark.parametrize("seq_len", [16, 64])
def test_eval_prints_the_contract(run, tiny_llama, texts, seq_len):
    rows = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    result = run("eval", "--gguf", tiny_llama, "--data", texts, "--seq-len", seq_len, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    loss, tokens = reference_loss(tiny_llama, rows, seq_len)
    assert found.keys() == {"loss", "perplexity", "tokens"} and found["tokens"] == tokens
    # fp32 against double: each logit carries some 1e-6
    assert found["loss"] == pytest.approx(loss, abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    again = run("eval", "--gguf", tiny_llama, "--data", texts, "--seq-len", seq_len, "--batch-size", 1, "--json")
    assert json.loads(again.stdout)["loss"] == pytest.approx(found["loss"], abs=1e-5)


def test_an_adapter_changes_eval_and_generate_and_is_checked_against_the_base(run, tiny_llama, texts):
    assert (
        run(
            "lora", "--gguf", tiny_llama, "--data", texts, "--steps", 30, "--lr", 0.02, "--targets", "all", "--out", "r"
        ).returncode
        == 0
    )
    adapter = run.directory / "r" / "adapter.gguf"
    base, tuned = (
        json.loads(run("eval", "--gguf", tiny_llama, "--data", texts, "--json", *extra).stdout)["loss"]
        for extra in ((), ("--adapter", adapter))
    )
    assert tuned < base - 0.1
    prompt = ("--raw", "--prompt", "the quick", "--max-tokens", 12, "--json")
    one, two = (
        json.loads(run("generate", "--gguf", tiny_llama, *prompt, *extra).stdout)["ids"]
        for extra in ((), ("--adapter", adapter))
    )
    assert one != two
    result = run("generate", "--gguf", tiny_llama, "--adapter", tiny_llama, *prompt)
    assert result.returncode == 2 and "is not a LoRA adapter" in result.stderr
    other = write_tiny(run.directory / "other.gguf", architecture="llama", seed=1)
    result = run("eval", "--gguf", other, "--adapter", adapter, "--data", texts, "--json")
    assert result.returncode == 0 and "was trained on tiny.gguf, whose content is not that of" in result.stderr
    result = run("lora", "--gguf", adapter, "--data", texts)
    assert result.returncode == 2 and "is an adapter; give it by --adapter" in result.stderr
    shown = json.loads(run("inspect", "--gguf", adapter, "--json").stdout)
    assert shown["adapter"]["adapter.type"] == "lora"


def test_generate_is_deterministic_and_sampling_follows_its_seed(run, tiny_llama):
    def ids(*arguments):
        result = run(
            "generate", "--gguf", tiny_llama, "--raw", "--prompt", "abc", "--max-tokens", 20, "--json", *arguments
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["ids"]

    assert ids() == ids() == ids("--temp", 1, "--top-p", 1e-9)
    assert ids("--temp", 1, "--seed", 1) == ids("--temp", 1, "--seed", 1) != ids("--temp", 1, "--seed", 2)


def test_tokenize(run, tiny_llama):
    tokenizer = Base(tiny_llama).tokenizer
    rows = run.directory / "t.jsonl"
    rows.write_text('{"text": "abc <|end|>"}\n\n{"text": ""}\n')
    result = run("tokenize", "--gguf", tiny_llama, "--file", rows, "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"ids": tokenizer.encode("abc <|end|>")},
        {"ids": []},
    ]
    plain = json.loads(
        run("tokenize", "--gguf", tiny_llama, "--file", rows, "--no-special", "--json").stdout.split("\n")[0]
    )
    assert plain["ids"] == tokenizer.encode("abc <|end|>", parse_special=False, add_special=False)
    assert 319 not in plain["ids"]  # the control token's text was read as text
    rows.write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    result = run("tokenize", "--gguf", tiny_llama, "--file", rows)
    assert result.returncode == 2 and "t.jsonl:2: " in result.stderr and result.stdout == ""


def test_inspect_tells_contents_cost_and_what_is_not_sound(run, tiny_llama):
    found = json.loads(run("inspect", "--gguf", tiny_llama, "--json", "--rank", 4).stdout)
    assert found["sound"] and found["trainable"] and found["architecture"] == "llama"
    assert found["bytes"] == tiny_llama.stat().st_size and found["types"]["F32"]["tensors"] == found["tensors"]
    layers, hidden = found["run"]["layers"], found["run"]["hidden"]
    assert found["run"]["trainable"] == layers * 4 * (hidden + found["run"]["heads"] * found["run"]["head_dim"])
    cut = run.directory / "cut.gguf"
    cut.write_bytes(tiny_llama.read_bytes()[:-32])
    result = run("inspect", "--gguf", cut, "--json")
    assert result.returncode == 2 and "needs bytes" in result.stderr and result.stdout == ""


def test_inspect_and_lora_refuse_by_name_what_is_not_supported(run, tiny_llama, texts):
    data = tiny_llama.read_bytes()
    strange = run.directory / "strange.gguf"
    strange.write_bytes(data.replace(b"llama", b"zebra"))
    found = json.loads(run("inspect", "--gguf", strange, "--json").stdout)
    assert found["sound"] and not found["trainable"] and "'zebra' is not supported" in found["reasons"][0]
    result = run("lora", "--gguf", strange, "--data", texts)
    assert result.returncode == 2 and "supported are llama, qwen2, qwen3" in result.stderr
    strange.write_bytes(data.replace(b"blk.1.attn_q.weight", b"blk.1.attn_z.weight"))
    result = run("lora", "--gguf", strange, "--data", texts)
    assert result.returncode == 2 and "blk.1.attn_z.weight" in result.stderr


def test_data_check_names_each_bad_row(run, tiny_llama):
    data = run.directory / "d.jsonl"
    data.write_text('{"text": "abc def"}\n{"txt": 1}\n{"text": "ghi"}\nnot json\n')
    result = run("data", "check", data, "--gguf", tiny_llama, "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 2 and found["rows"] == 2
    assert [fault.split(": ")[0].rsplit(":", 1)[1] for fault in found["faults"]] == ["2", "4"]
    data.write_text('{"text": "abc def"}\n')
    result = run("data", "check", data, "--gguf", tiny_llama, "--show", 1)
    assert result.returncode == 0 and "1 rows" in result.stdout and "[[" in result.stdout


def test_doctor(run):
    found = json.loads(run("doctor", "--json").stdout)
    assert found["product_gflops"]["mlx"] > 0 and found["backend"] in ("cpu", "metal", "cuda") and found["blas"]["name"]


def test_a_file_that_contradicts_itself_is_not_sound(run, tiny_llama):
    data = tiny_llama.read_bytes()
    broken = run.directory / "broken.gguf"
    # One layer more than there are tensors for.
    key = b"llama.block_count" + struct.pack("<I", 4)
    broken.write_bytes(data.replace(key + struct.pack("<I", 3), key + struct.pack("<I", 4)))
    result = run("inspect", "--gguf", broken)
    assert result.returncode == 2 and "tensor 'blk.3.attn_norm.weight' is missing" in result.stderr
    # A weight that is NaN: only `--weights` reads them.
    tensor = GGUF(tiny_llama).tensors["blk.1.ffn_up.weight"]
    at = tensor.offset + 4 * 777
    broken.write_bytes(data[:at] + struct.pack("<f", math.nan) + data[at + 4 :])
    assert run("inspect", "--gguf", broken).returncode == 0
    result = run("inspect", "--gguf", broken, "--weights")
    assert result.returncode == 2 and "'blk.1.ffn_up.weight' has weights that are not finite" in result.stderr
    assert run("inspect", "--gguf", tiny_llama, "--weights").returncode == 0
