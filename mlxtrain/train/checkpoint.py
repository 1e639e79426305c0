"""Checkpoints: a directory that is whole or absent.

checkpoints/step-000060/state.safetensors   weights and moments, fp32
checkpoints/step-000060/state.json          step and configuration; written last, it makes the checkpoint valid
checkpoints/latest                          the name of the newest
"""

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx

from mlxtrain.errors import UserError
from mlxtrain.files import fsync_directory, write_text
from mlxtrain.train.state import TrainState

_GROUPS = ("params", "m", "v")


def save_checkpoint(directory: Path, state: TrainState, config: dict, keep: int) -> Path:
    """Write `state` under `directory`, then drop all but the newest `keep`. Returns the checkpoint's path."""
    final = directory / f"step-{state.step:06d}"
    temporary = directory / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    arrays = {f"{group}/{name}": a for group in _GROUPS for name, a in getattr(state, group).items()}
    mx.save_safetensors(str(temporary / "state.safetensors"), arrays)
    _sync(temporary / "state.safetensors")
    (temporary / "state.json").write_text(json.dumps({"step": state.step, "config": config}, indent=1))
    _sync(temporary / "state.json")
    fsync_directory(temporary)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    fsync_directory(directory)
    write_text(directory / "latest", final.name + "\n")
    for old in sorted(directory.glob("step-*"))[:-keep]:
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest valid checkpoint, if there is one."""
    found = [p for p in directory.glob("step-*") if (p / "state.json").exists()]
    return max(found, default=None, key=lambda p: p.name)


def load_checkpoint(path: Path, state: TrainState, config: dict) -> None:
    """Restore `state` in place. UserError where the checkpoint is of a run with other options, naming each."""
    saved = json.loads((path / "state.json").read_text())
    differing = [
        f"{key} was {saved['config'].get(key)!r}, now {config.get(key)!r}"
        for key in sorted(saved["config"].keys() | config.keys())
        if saved["config"].get(key) != config.get(key)
    ]
    if differing:
        raise UserError(f"{path}: --resume would not continue the same run: {'; '.join(differing)}")
    arrays = mx.load(str(path / "state.safetensors"))
    expected = {f"{group}/{name}" for group in _GROUPS for name in state.params}
    if arrays.keys() != expected:
        raise UserError(f"{path}: holds other adapters than this run's; it belongs to another run")
    for group in _GROUPS:
        setattr(state, group, {name: arrays[f"{group}/{name}"] for name in state.params})
    state.step = saved["step"]
