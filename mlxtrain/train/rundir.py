"""The run directory: what a run leaves behind.

config.toml      the options as they were resolved, and the versions that ran them
events.jsonl     one JSON object a line
checkpoints/     step-N directories and `latest`
adapter.gguf     the result
"""

import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxtrain import __version__
from mlxtrain.config import to_toml, toml_string
from mlxtrain.errors import UserError
from mlxtrain.files import write_text

_NUMBERED = re.compile(r"^lora-(\d+)$")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run. Nothing is created before `open`."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        return self.path / "adapter.gguf"

    def open(self, config: Any) -> None:
        """Create the directory and write the configuration. UserError where it cannot be written."""
        versions = {"mlxtrain": __version__, "mlx": _version("mlx"), "python": platform.python_version()}
        table = "".join(f"{key} = {toml_string(value)}\n" for key, value in versions.items())
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.config, f"{to_toml(config)}\n[versions]\n{table}")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another --out") from None

    def forget_after(self, step: int) -> None:
        """Drop events of steps after `step`, which a resumed run does again."""
        if not self.events.exists():
            return
        kept = []
        for line in self.events.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was killed while it wrote
            if event.get("step", 0) <= step and event["event"] != "run_end":
                kept.append(line + "\n")
        write_text(self.events, "".join(kept))


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def choose(out: Path | None, resume: bool, root: Path = Path("runs")) -> RunDirectory:
    """The run directory that the options mean. Without --out: the newest of runs/lora-N to resume, else the next free
    one.

    Raises UserError where there is nothing to resume, or a run already where a new one would start.
    """
    numbers = [int(m[1]) for p in root.glob("lora-*") if (m := _NUMBERED.match(p.name))] if root.is_dir() else []
    if out is None:
        if resume and not numbers:
            raise UserError(f"--resume: there is no run under {root}; give its directory by --out")
        out = root / f"lora-{max(numbers) if resume else max(numbers, default=0) + 1}"
    run = RunDirectory(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file, expected a run directory; choose another --out")
    if resume and not run.config.exists():
        raise UserError(f"{out}: holds no run to resume (config.toml is missing)")
    if not resume and run.events.exists():
        raise UserError(f"{out}: already holds a run; go on with it by --resume, or choose another --out")
    return run
