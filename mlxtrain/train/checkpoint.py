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

from mlxtrain.errors import RunError, UserError
from mlxtrain.files import fsync_directory, write_text
from mlxtrain.train.state import TrainState

_GROUPS = ("params", "m", "v")
_VALID = "state.json"
_SPOKEN = {"base": "the model's content has changed", "tokens": "the rows, or how they are tokenised, have changed"}


def save_checkpoint(directory: Path, state: TrainState, config: dict, keep: int) -> Path:
    """Write `state` under `directory`, then drop all but the newest `keep`. Returns the checkpoint's path. A step that
    is saved already is left as it is: a run gives the same state at the same step.

    Raises RunError, with nothing half-written left, where the disk does not take it.
    """
    final = directory / f"step-{state.step:06d}"
    if (final / _VALID).exists():
        return final
    temporary = directory / f".{final.name}.tmp"
    try:
        _write(temporary, state, config)
    except (OSError, RuntimeError) as error:  # MLX's own writer raises the latter
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"{final}: cannot be written ({error}); free some space, then go on by --resume") from None
    _remove(final)
    temporary.rename(final)
    fsync_directory(directory)
    write_text(directory / "latest", final.name + "\n")
    for old in _valid(directory)[:-keep]:
        _remove(old)
    return final


def _write(temporary: Path, state: TrainState, config: dict) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fsync_directory(temporary.parent.parent)
    arrays = {f"{group}/{name}": a for group in _GROUPS for name, a in getattr(state, group).items()}
    mx.save_safetensors(str(temporary / "state.safetensors"), arrays)
    _sync(temporary / "state.safetensors")
    (temporary / _VALID).write_text(json.dumps({"step": state.step, "config": config}, indent=1))
    _sync(temporary / _VALID)
    fsync_directory(temporary)


def _remove(checkpoint: Path) -> None:
    """Out of sight first, so that half of it is never taken for a checkpoint."""
    if checkpoint.exists():
        hidden = checkpoint.with_name(f".{checkpoint.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        checkpoint.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _valid(directory: Path) -> list[Path]:
    """Valid checkpoints, the newest last."""
    found = [p for p in directory.glob("step-*") if (p / _VALID).exists()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest valid checkpoint, if there is one."""
    found = _valid(directory)
    return found[-1] if found else None


def load_checkpoint(path: Path, state: TrainState, config: dict) -> None:
    """Restore `state` in place. UserError where the checkpoint is of a run with other options, naming each."""
    damaged = UserError(f"{path}: is damaged; delete it to go on from the checkpoint before it")
    try:
        saved = json.loads((path / _VALID).read_text())
        before, step = saved["config"], saved["step"]
        arrays = mx.load(str(path / "state.safetensors"))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        raise damaged from None
    differing = [
        _SPOKEN.get(key, f"{key} was {before.get(key)!r}, now {config.get(key)!r}")
        for key in sorted(before.keys() | config.keys())
        if before.get(key) != config.get(key)
    ]
    if differing:
        raise UserError(f"{path}: --resume would not continue the same run: {'; '.join(differing)}")
    expected = {f"{group}/{name}" for group in _GROUPS for name in state.params}
    if arrays.keys() != expected:
        raise UserError(f"{path}: holds other adapters than this run's; it belongs to another run")
    for group in _GROUPS:
        setattr(state, group, {name: arrays[f"{group}/{name}"] for name in state.params})
    state.step = step
