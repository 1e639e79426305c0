"""The run directory: what a run leaves behind.

config.toml      the options as they were resolved, and the versions that ran them
events.jsonl     one JSON object a line
checkpoints/     step-N directories and `latest`
adapter.gguf     the result
"""

import contextlib
import fcntl
import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlxtrain import __version__
from mlxtrain.config import to_toml, toml_string
from mlxtrain.errors import UserError
from mlxtrain.files import write_text
from mlxtrain.train.checkpoint import latest_checkpoint

_NUMBERED = re.compile(r"^lora-(\d+)$")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run. Nothing is created before `claim`."""

    path: Path
    numbered: bool = False  # a new one of runs/lora-N, whose number was free when it was chosen

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

    def claim(self) -> "RunDirectory":
        """Make the directory and take it for this process, until it ends. Where another process was faster to a
        numbered one, the next is taken. UserError where it cannot be written or another process is running in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=not self.numbered)
            fcntl.flock(os.open(self.path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # left open on purpose
        except FileExistsError:
            stem, number = self.path.name.split("-")
            return RunDirectory(self.path.with_name(f"{stem}-{int(number) + 1}"), numbered=True).claim()
        except BlockingIOError:
            raise UserError(f"{self.path}: another process is running in it; choose another --out") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another --out") from None
        return self

    def write_config(self, config: Any) -> None:
        """Write the options as they were resolved, with the versions that run them."""
        versions = {"mlxtrain": __version__, "mlx": version("mlx"), "python": platform.python_version()}
        table = "".join(f"{key} = {toml_string(value)}\n" for key, value in versions.items())
        try:
            write_text(self.config, f'recipe = "lora"\n{to_toml(config)}\n[versions]\n{table}')
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another --out") from None

    def has_base_loss(self) -> bool:
        """Whether the events hold the held-out loss of step 0."""
        return self.events.exists() and any(e["event"] == "eval" and e["step"] == 0 for _, e in self._read())

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in self.events.read_text(encoding="utf-8").splitlines(keepends=True):
            with contextlib.suppress(json.JSONDecodeError):  # the last line of a run that was killed while it wrote
                yield line, json.loads(line)

    def forget_after(self, step: int) -> None:
        """Drop events of steps after `step`, which a resumed run does again."""
        if not self.events.exists():
            return
        kept = [line for line, e in self._read() if e.get("step", 0) <= step and e["event"] != "run_end"]
        write_text(self.events, "".join(kept))


def choose(out: Path | None, resume: bool, root: Path = Path("runs")) -> RunDirectory:
    """The run directory that the options mean. Without --out: the newest of runs/lora-N to resume, else the next free
    one.

    Raises UserError where there is nothing to resume, or a run already where a new one would start.
    """
    numbers = [int(m[1]) for p in root.glob("lora-*") if (m := _NUMBERED.match(p.name))] if root.is_dir() else []
    if resume:
        numbers = [n for n in numbers if latest_checkpoint(root / f"lora-{n}" / "checkpoints")]
    if out is None:
        if resume and not numbers:
            raise UserError(f"--resume: there is no run with a checkpoint under {root}; give its directory by --out")
        out = root / f"lora-{max(numbers) if resume else max(numbers, default=0) + 1}"
        run = RunDirectory(out, numbered=not resume)
    else:
        run = RunDirectory(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file, expected a run directory; choose another --out")
    if resume and not run.config.exists():
        raise UserError(f"{out}: holds no run to resume (config.toml is missing)")
    if not resume and latest_checkpoint(run.checkpoints):
        raise UserError(f"{out}: already holds a run; go on with it by --resume, or choose another --out")
    return run
