"""Flags from a configuration dataclass."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlxtrain.config import field_types, flag


def config_flags(cls: type) -> Callable:
    """Add a flag for each field. A flag that is not given stays out of the keyword arguments' values (it is None), so
    that the dataclass alone knows the defaults."""

    def add(function: Callable) -> Callable:
        kinds = field_types(cls)
        for f in reversed(dataclasses.fields(cls)):
            kind, _ = kinds[f.name]
            text = f.metadata["help"]
            if f.default is not None and kind is not bool:
                text += f" [default: {f.default}]"
            if kind is bool:
                option = click.option(f"{flag(f.name)}/--no-{f.name}", f.name, default=None, help=text)
            else:
                type_ = click.Path(path_type=Path) if kind is Path else kind
                if f.metadata["choices"]:
                    type_ = click.Choice(f.metadata["choices"])
                option = click.option(flag(f.name), f.name, type=type_, default=None, help=text)
            function = option(function)
        return function

    return add


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Only the options that were given."""
    return {key: value for key, value in values.items() if value is not None}


gguf_option = click.option(
    "--gguf", required=True, type=click.Path(path_type=Path), help="the model: a GGUF file (the first of a split one)"
)
adapter_option = click.option(
    "--adapter", type=click.Path(path_type=Path), help="a LoRA adapter in GGUF for this model"
)
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")
template_option = click.option(
    "--chat-template", type=click.Path(path_type=Path), help="a Jinja chat template to use instead of the model's own"
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "f32", "f16", "bf16"]),
    default="auto",
    help="activations: auto is bf16 on a GPU and fp32 on the CPU",
)


def warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def warn_if_slow() -> None:
    """One line where the CPU's matrix products are MLX's own slow ones."""
    import mlx.core as mx

    from mlxtrain import blas_status

    if not blas_status.fast and mx.default_device().type == mx.DeviceType.cpu:
        click.echo(f"slow: {blas_status.detail}", err=True)
