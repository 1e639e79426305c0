"""mlxtrain doctor"""

import dataclasses
from typing import Any

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.options import json_option

_MARKS = {True: "ok", False: "FAILED", None: "skipped"}


@click.command("doctor")
@click.option(
    "--check", is_flag=True, help="run the proofs on this machine's backend (up to two minutes), print JSON to paste"
)
@json_option
def command(check: bool, as_json: bool) -> int:
    """What this machine runs on: device, memory, matrix-product rate. --check proves the numbers on it."""
    from mlxtrain.machine import describe

    found = describe()
    if not as_json and not check:
        _print(found)
        return 0
    results = []
    if check:
        from mlxtrain.checks import run_checks

        for result in run_checks():
            results.append(result)
            click.echo(f"{_MARKS[result.passed]:>8}  {result.name} ({result.seconds:.1f} s)", err=True)
        found["checks"] = [dataclasses.asdict(result) for result in results]
    print_json(found)
    return 1 if any(result.passed is False for result in results) else 0


def _print(found: dict[str, Any]) -> None:
    blas, rate = found["blas"], found["product_gflops"]
    lines = {
        "mlxtrain": f"{found['mlxtrain']}, MLX {found['packages']['mlx']}, Python {found['python']}",
        "system": f"{found['system']}, {found['cores']} cores",
        "backend": f"{found['backend']}, functions run {found['functions']}",
        "device": ", ".join(f"{key} {value}" for key, value in found["device"].items()),
        "memory": f"{found['available_bytes'] / 1e9:.1f} GB available",
        "BLAS": f"{blas['name']} ({blas['detail']})",
        "products": f"{rate['mlx']:.0f} GFLOP/s in fp32 through MLX, {rate['numpy']:.0f} through NumPy",
    }
    for name, text in lines.items():
        click.echo(f"{name:9} {text}")
    if not blas["fast"]:
        click.echo(f"slow: {blas['detail']}", err=True)
