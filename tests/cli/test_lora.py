"""`mlxtrain lora` end to end: what it leaves behind, stopping and going on, and wrong input."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mlxtrain.gguf.reader import GGUF
from tests.tiny import write_tiny

FAST = ("--batch-size", 2, "--seq-len", 32, "--dropout", 0.1)


def events(path) -> list[dict]:
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def adapter(path) -> dict[str, np.ndarray]:
    return {name: t.raw.copy() for name, t in GGUF(path / "adapter.gguf").tensors.items()}


def start(run, environment, model, data, steps, *more, before=()) -> subprocess.Popen:
    """A run that goes on beside the test, in the directory of `run`."""
    command = [
        *before,
        sys.executable,
        "-m",
        "mlxtrain",
        "lora",
        "--gguf",
        model,
        "--data",
        data,
        "--steps",
        steps,
        *more,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([str(part) for part in command], cwd=run.directory, env=environment, **pipes)


def wait_for_step(process: subprocess.Popen, log: Path, step: int) -> None:
    while not log.exists() or f'"step": {step},' not in log.read_text():
        assert process.poll() is None
        time.sleep(0.01)


def test_a_run_leaves_what_the_documents_say(run, tiny_llama, texts):
    result = run(
        "lora",
        "--gguf",
        tiny_llama,
        "--data",
        texts,
        "--steps",
        8,
        "--out",
        "r",
        "--lr",
        0.01,
        "--eval-every",
        2,
        *FAST,
    )
    assert result.returncode == 0, result.stderr
    directory = run.directory / "r"
    assert sorted(p.name for p in directory.iterdir()) == ["adapter.gguf", "checkpoints", "config.toml", "events.jsonl"]
    config = tomllib.loads((directory / "config.toml").read_text())
    assert config["steps"] == 8 and config["lr"] == 0.01 and config["versions"]["mlxtrain"]

    log = events(directory)
    assert log[0]["event"] == "run_start" and log[-1]["event"] == "run_end" and log[-1]["reason"] == "done"
    steps = [e for e in log if e["event"] == "step"]
    assert [e["step"] for e in steps] == list(range(1, 9))
    keys = {"event", "step", "loss", "lr", "grad_norm", "tokens", "tokens_per_s", "peak_memory", "time"}
    assert all(e.keys() == keys for e in steps)
    held_out = [e["loss"] for e in log if e["event"] == "eval"]
    assert len(held_out) == 5 and held_out[-1] < held_out[0]
    assert (directory / "checkpoints" / "latest").read_text() == "step-000008\n"
    assert len(list((directory / "checkpoints").glob("step-*"))) == 2  # --keep

    metadata = GGUF(directory / "adapter.gguf").metadata
    assert metadata["general.type"] == "adapter" and metadata["adapter.lora.alpha"] == 16
    digest = subprocess.run(["sha256sum", tiny_llama], capture_output=True, text=True).stdout.split()[0]
    assert metadata["mlxtrain.base.sha256"] == digest and metadata["mlxtrain.base.size"] == tiny_llama.stat().st_size
    assert tomllib.loads(metadata["mlxtrain.recipe"])["lr"] == 0.01
    assert len(metadata["mlxtrain.data.sha256"]) == 64


def test_the_same_run_twice_gives_the_same_bytes_and_another_seed_does_not(run, tiny_llama, texts):
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert (
            run(
                "lora", "--gguf", tiny_llama, "--data", texts, "--steps", 4, "--out", out, "--seed", seed, *FAST
            ).returncode
            == 0
        )
    a, b, c = (adapter(run.directory / out) for out in "abc")
    assert all(np.array_equal(a[n], b[n]) for n in a)
    assert not any(np.array_equal(a[n], c[n]) for n in a)


def test_a_stopped_run_goes_on_to_the_same_bytes(run, tiny_llama, texts, environment):
    whole = run("lora", "--gguf", tiny_llama, "--data", texts, "--steps", 400, "--out", "whole", *FAST)
    assert whole.returncode == 0, whole.stderr
    process = start(run, environment, tiny_llama, texts, 400, "--out", "part", *FAST)
    log = run.directory / "part" / "events.jsonl"
    wait_for_step(process, log, 5)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130 and "--resume" in output
    done = events(log.parent)[-1]
    assert done["event"] == "run_end" and done["reason"] == f"signal {int(signal.SIGINT)}" and 5 <= done["step"] < 400

    resumed = run("lora", "--resume", "--out", "part")
    assert resumed.returncode == 0, resumed.stderr
    a, b = adapter(run.directory / "whole"), adapter(run.directory / "part")
    assert all(np.array_equal(a[n], b[n]) for n in a)
    losses = [[e["loss"] for e in events(run.directory / out) if e["event"] == "step"] for out in ("whole", "part")]
    assert losses[0] == losses[1] and len(losses[0]) == 400


def test_a_killed_run_goes_on_from_its_last_checkpoint(run, tiny_llama, texts, environment):
    assert run("lora", "--gguf", tiny_llama, "--data", texts, "--steps", 300, "--out", "whole", *FAST).returncode == 0
    process = start(run, environment, tiny_llama, texts, 300, "--out", "part", "--save-every", 3, *FAST)
    log = run.directory / "part" / "events.jsonl"
    wait_for_step(process, log, 8)
    process.kill()
    process.wait()
    assert run("lora", "--resume", "--out", "part").returncode == 0
    a, b = adapter(run.directory / "whole"), adapter(run.directory / "part")
    assert all(np.array_equal(a[n], b[n]) for n in a)
    assert [e["step"] for e in events(log.parent) if e["event"] == "step"] == list(range(1, 301))


def test_a_run_killed_before_its_first_checkpoint_starts_again_in_place(run, tiny_llama, texts):
    arguments = ("lora", "--gguf", tiny_llama, "--data", texts, "--steps", 2, "--out", "r", *FAST)
    (run.directory / "r").mkdir()
    (run.directory / "r" / "events.jsonl").write_text('{"event": "step", "step": 1, "time": 0}\n{"event": "st')
    (run.directory / "r" / "config.toml").write_text("steps = 2\n")
    result = run("lora", "--resume", "--out", "r", *arguments[1:5])
    assert result.returncode == 2 and "holds no checkpoint yet" in result.stderr
    assert run(*arguments).returncode == 0
    assert [e["step"] for e in events(run.directory / "r") if e["event"] == "step"] == [1, 2]
    damaged = run.directory / "r" / "checkpoints" / "step-000002" / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    result = run("lora", "--resume", "--out", "r")
    assert result.returncode == 2 and "step-000002: is damaged" in result.stderr and "Traceback" not in result.stderr


def test_resume_refuses_what_would_be_another_run(run, tiny_llama, texts):
    assert run("lora", "--gguf", tiny_llama, "--data", texts, "--steps", 2, "--out", "r", *FAST).returncode == 0
    result = run("lora", "--resume", "--out", "r", "--lr", 0.5)
    assert result.returncode == 2 and "lr was 0.001, now 0.5" in result.stderr
    result = run("lora", "--gguf", tiny_llama, "--data", texts, "--out", "r")
    assert result.returncode == 2 and "already holds a run" in result.stderr
    other = run.directory / "other.gguf"  # another fine-tune of the same size
    other.write_bytes(write_tiny(run.directory / "w.gguf", architecture="llama", seed=1).read_bytes())
    assert other.stat().st_size == tiny_llama.stat().st_size
    result = run("lora", "--resume", "--out", "r", "--gguf", other)
    assert result.returncode == 2 and "the model's content has changed" in result.stderr
    changed = run.directory / "changed.jsonl"
    changed.write_text(texts.read_text().replace("fox", "cat"))
    result = run("lora", "--resume", "--out", "r", "--data", changed)
    assert result.returncode == 2 and "the rows, or how they are tokenised, have changed" in result.stderr
    result = run("lora", "--resume", "--out", "elsewhere")
    assert result.returncode == 2 and "no run to resume" in result.stderr


def test_a_finished_run_can_be_resumed_and_is_left_as_it_is(run, tiny_llama, texts):
    assert run("lora", "--gguf", tiny_llama, "--data", texts, "--steps", 2, "--out", "r", *FAST).returncode == 0
    before = adapter(run.directory / "r")
    assert run("lora", "--resume", "--out", "r").returncode == 0
    assert all(np.array_equal(before[n], a) for n, a in adapter(run.directory / "r").items())
    assert (run.directory / "r" / "checkpoints" / "step-000002" / "state.json").exists()


def test_two_runs_at_once_take_two_directories_and_one_is_not_shared(run, tiny_llama, texts, environment):
    both = [start(run, environment, tiny_llama, texts, 40) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    logs = [events(run.directory / "runs" / name) for name in ("lora-1", "lora-2")]
    assert [[e["step"] for e in log if e["event"] == "step"] for log in logs] == [list(range(1, 41))] * 2


def test_nohup_keeps_a_run_alive(run, tiny_llama, texts, environment):
    process = start(run, environment, tiny_llama, texts, 150, "--out", "r", before=("nohup",))
    log = run.directory / "r" / "events.jsonl"
    wait_for_step(process, log, 3)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=120) == 0 and events(log.parent)[-1]["reason"] == "done"


def test_numbered_directories_and_toml(run, tiny_llama, texts):
    toml = run.directory / "run.toml"
    toml.write_text(f'recipe = "lora"\ngguf = "{tiny_llama}"\ndata = "{texts}"\nsteps = 1\nseq_len = 16\n')
    assert run("run", "run.toml").returncode == 0 and run("run", "run.toml").returncode == 0
    assert sorted(p.name for p in (run.directory / "runs").iterdir()) == ["lora-1", "lora-2"]
    toml.write_text('recipe = "lora"\nout = 3\n')
    result = run("run", "run.toml")
    assert result.returncode == 2 and "out is 3, expected path" in result.stderr
    toml.write_text('recipe = "lora"\nstepz = 3\n')
    result = run("run", "run.toml")
    assert result.returncode == 2 and "unknown key 'stepz'" in result.stderr


def bad_inputs(tmp_path, model, texts) -> dict[str, tuple[list, str]]:
    """Everything a person can get wrong: arguments, and what the one line must say."""

    def file(name: str, content: bytes):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    sound = model.read_bytes()
    on = ["--gguf", model, "--data"]
    return {
        "missing model": (["--gguf", tmp_path / "none.gguf", "--data", texts], "no such file"),
        "truncated model": (["--gguf", file("cut.gguf", sound[:-1000]), "--data", texts], "needs bytes"),
        "empty model": (["--gguf", file("empty.gguf", b""), "--data", texts], "0 bytes"),
        "wrong magic": (["--gguf", file("magic.gguf", b"ABCD" + sound[4:]), "--data", texts], "not a GGUF"),
        "wrong version": (["--gguf", file("v9.gguf", sound[:4] + b"\x09" + sound[5:]), "--data", texts], "version 9"),
        "no GGUF": (["--gguf", texts, "--data", texts], "not a GGUF"),
        "no data": (["--gguf", model], "--data is missing"),
        "no model": (["--data", texts], "--gguf is missing"),
        "longer warm-up than the run": ([*on, texts, "--warmup", 50], "--warmup 50: expected at most"),
        "rank beyond the matrices": ([*on, texts, "--rank", 5000], "--rank 5000: expected at most"),
        "missing data": ([*on, tmp_path / "none.jsonl"], "no such file"),
        "empty data": ([*on, file("empty.jsonl", b"")], "is empty"),
        "row without its key": ([*on, file("key.jsonl", b'{"text": "fine"}\n{"txt": "x"}\n')], "key.jsonl:2: has no"),
        "row of invalid UTF-8": ([*on, file("utf.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n')], "utf.jsonl:2:"),
        "chat without a template": (
            [*on, file("chat.jsonl", b'{"messages": [{"role": "user", "content": "x"}]}\n')],
            "no chat template",
        ),
        "nothing to learn": ([*on, file("one.jsonl", b'{"text": "a"}\n')], "no row to train on"),
        "too long": ([*on, texts, "--seq-len", 100000], "the model's context is 256"),
        "unknown target": ([*on, texts, "--targets", "q,z"], "'z' is no projection"),
        "layers out of range": ([*on, texts, "--layers", "0-99"], "--layers '0-99'"),
        "eps that fp32 has not": ([*on, texts, "--eps", 1e-50], "--eps 1e-50: expected at least"),
        "two splits": ([*on, texts, "--val-data", texts, "--val-rows", 3], "give one of them"),
        "no such date": ([*on, texts, "--date", "yesterday"], "--date 'yesterday'"),
        "rank zero": ([*on, texts, "--rank", 0], "--rank 0: expected at least 1"),
        "all rows held out": ([*on, texts, "--val-rows", 12], "--val-rows"),
        "unwritable": ([*on, texts, "--out", "/proc/nothing"], "cannot be written"),
        "unknown flag": ([*on, texts, "--stepz", 3], "No such option"),
    }


CASES = [
    "missing model",
    "truncated model",
    "empty model",
    "wrong magic",
    "wrong version",
    "no GGUF",
    "no data",
    "no model",
    "longer warm-up than the run",
    "rank beyond the matrices",
    "missing data",
    "empty data",
    "row without its key",
    "row of invalid UTF-8",
    "chat without a template",
    "nothing to learn",
    "too long",
    "unknown target",
    "layers out of range",
    "eps that fp32 has not",
    "two splits",
    "no such date",
    "rank zero",
    "all rows held out",
    "unwritable",
    "unknown flag",
]


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_one_line_and_leaves_nothing(run, tmp_path, tiny_llama, texts, case):
    inputs = bad_inputs(tmp_path, tiny_llama, texts)
    assert set(inputs) == set(CASES)
    arguments, message = inputs[case]
    result = run("lora", "--steps", 2, *arguments)
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if "rror" in line]
    assert len(lines) == 1 and message in lines[0], result.stderr
    assert "Traceback" not in result.stderr
    assert list(run.directory.iterdir()) == []


def test_a_loss_that_is_not_finite_stops_the_run_with_the_weights_from_before(run, tiny_llama, texts):
    result = run(
        "lora", "--gguf", tiny_llama, "--data", texts, "--steps", 50, "--lr", 3e38, "--warmup", 0, "--out", "r", *FAST
    )
    assert result.returncode == 1 and "nothing was updated" in result.stderr and "Traceback" not in result.stderr
    assert events(run.directory / "r")[-1]["reason"] == "failed"
    assert not (run.directory / "r" / "adapter.gguf").exists()


def test_help_answers_at_once(environment):
    command = [sys.executable, "-m", "mlxtrain", "--help"]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert (
            "Train the file you run" in subprocess.run(command, env=environment, capture_output=True, text=True).stdout
        )
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5, seconds
