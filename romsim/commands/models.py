"""``romsim models``."""

from __future__ import annotations

import click

from romsim.commands.output import emit_json, json_option, say

__all__ = ["command"]


@click.group("models", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the models that can be compiled by name."""
    if ctx.invoked_subcommand is not None:
        return
    from romsim_models.registry import named_models

    models = named_models()
    if as_json:
        emit_json(
            {
                name: {"kind": m.kind, "summary": m.summary, "layers": m.spec.n_layers}
                for name, m in models.items()
            }
        )
        return
    for name, model in models.items():
        say(f"{name:16} {model.kind:10} {model.summary}")
    say("\nA GGUF file or a Hugging Face folder can be compiled too.")


@command.command("get")
@click.argument("name")
@json_option
@click.pass_context
def _get(ctx: click.Context, name: str, as_json: bool) -> None:
    """Fetch a model's file into the cache, digest checked."""
    from romsim_models.registry import fetch

    path = fetch(name)
    if as_json or (ctx.parent is not None and ctx.parent.params["as_json"]):
        emit_json({"name": name, "file": path.name, "bytes": path.stat().st_size})
    else:
        say(f"{name}: {path.name}, {path.stat().st_size} bytes, digest checked")
