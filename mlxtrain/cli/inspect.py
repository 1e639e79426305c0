"""mlxtrain inspect"""

from pathlib import Path
from typing import Any

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.options import gguf_option, given, json_option


@click.command("inspect")
@gguf_option
@click.option("--targets", help="cost of adapting these projections [default: q]")
@click.option("--rank", type=int, help="cost of this rank [default: 8]")
@click.option("--batch-size", type=int, help="cost of this many rows a step [default: 4]")
@click.option("--seq-len", type=int, help="cost of rows of this many tokens [default: 512]")
@click.option("--weights", is_flag=True, help="decode every tensor too, and refuse NaN and infinity")
@click.option("--metadata", is_flag=True, help="print every metadata key")
@json_option
def command(gguf: Path, weights: bool, metadata: bool, as_json: bool, **options: Any) -> None:
    """What is in a GGUF, whether it is sound, what a LoRA run on it would cost. Exits 2 for a file that is not
    sound."""
    from mlxtrain.config import LoraConfig, from_table
    from mlxtrain.recipes.inspection import inspect

    found = inspect(gguf, from_table(LoraConfig, given(options), "options"), metadata=metadata, weights=weights)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    title = "".join(f", {found[key]}" for key in ("name", "license") if found[key])
    click.echo(f"{found['files'][0]}: sound GGUF v{found['version']}, {found['bytes'] / 1e6:,.0f} MB{title}")
    click.echo(f"{found['architecture']}: {found['parameters']:,} parameters in {found['tensors']} tensors")
    for kind, of in found["types"].items():
        size = f"{of['bytes'] / 1e6:>10,.1f} MB"
        click.echo(f"  {kind:8} {of['tensors']:5} tensors {of['weights']:>15,} weights {size}")
    if tokenizer := found.get("tokenizer"):
        click.echo("tokenizer: " + ", ".join(f"{key} {value}" for key, value in tokenizer.items()))
    if run := found.get("run"):
        _print_run(run)
    for key, value in found.get("adapter", {}).items():
        click.echo(f"  {key} = " + str(value).strip().replace("\n", "\n    "))
    for reason in found.get("reasons", ()):
        click.echo(f"trainable: no: {reason}")
    if found.get("trainable"):
        click.echo("trainable: yes")
    if "trainable" not in found:
        click.echo(f"trainable: no: it is {'an adapter' if 'adapter' in found else 'a vocabulary without tensors'}")
    for key, value in found.get("metadata", {}).items():
        click.echo(f"  {key} = {str(value)[:100]!r}")


def _print_run(run: dict[str, Any]) -> None:
    click.echo(
        f"{run['layers']} layers ({run['sliding_layers']} sliding), hidden {run['hidden']}, ffn {run['ffn']}, "
        f"{run['heads']} heads over {run['kv_heads']} of {run['head_dim']}, vocabulary {run['vocab']:,}, "
        f"context {run['context']:,}"
    )
    options = ", ".join(f"{key} {value}" for key, value in run["options"].items())
    click.echo(
        f"a LoRA run ({options}): {run['trainable']:,} trainable parameters, "
        f"{run['adapter_bytes'] / 1e6:.1f} MB adapter, about {run['peak_bytes'] / 1e9:.2f} GB of memory"
    )
