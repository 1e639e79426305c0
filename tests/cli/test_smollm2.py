"""The main job on a real model and real chats: SmolLM2-135M-Instruct Q4_1 and chitchat-dataset."""

import json
import time

import pytest

from tests.llama_cpp import start_exact

pytestmark = pytest.mark.real
PROMPT = "<|im_start|>user\nhey, what are you up to?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def few_chats(chitchat_jsonl, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    path.write_text("".join(chitchat_jsonl.read_text().splitlines(keepends=True)[:400]))
    return path


def test_the_first_step_begins_within_five_seconds(run, smollm2_gguf, few_chats, environment, tmp_path):
    environment["TMPDIR"] = str(tmp_path)  # an empty kernel cache
    began = time.time()
    result = run("lora", "--gguf", smollm2_gguf, "--data", few_chats, "--steps", 1, "--batch-size", 1, "--seq-len", 64)
    assert result.returncode == 0, result.stderr
    first = json.loads((run.directory / "runs/lora-1/events.jsonl").read_text().splitlines()[0])
    assert first["event"] == "run_start" and first["time"] - began < 5


def test_sixty_steps_lower_the_held_out_loss_and_llama_cpp_loads_the_adapter(run, smollm2_gguf, few_chats):
    arguments = ("--batch-size", 1, "--seq-len", 256, "--steps", 60, "--val-rows", 8, "--eval-every", 0, "--out", "r")
    result = run("lora", "--gguf", smollm2_gguf, "--data", few_chats, *arguments, "--json", timeout=1200)
    assert result.returncode == 0, result.stderr
    held_out = json.loads(result.stdout)["held_out"]
    # 0.3 or more where it was measured; what another order of sums changes is far below 0.01.
    assert held_out["60"] < held_out["0"] - 0.2
    adapter = run.directory / "r" / "adapter.gguf"

    answers = []
    for lora in (None, adapter):
        with start_exact(smollm2_gguf, lora) as server:
            body = {"prompt": PROMPT, "n_predict": 16, "temperature": 0, "cache_prompt": False}
            answers.append(server.post("/completion", body)["content"])
    assert answers[0] != answers[1], answers
