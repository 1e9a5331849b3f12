"""The command line: a roof over the Python functions, with their errors as sentences.

Commands live in ``romsim.commands.*``; this module only knows their names, so that ``--help`` is
fast.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import click

from romsim_models.errors import RomsimError

__all__ = ["INTERNAL_ERROR", "app", "main"]

_COMMANDS = {
    "models": (
        "romsim.commands.models",
        "list the models known by name; `models get NAME` fetches",
    ),
    "targets": ("romsim.commands.targets", "list the built-in targets, or print one"),
    "compile": ("romsim.commands.compile", "compile a model into a chip description"),
    "audit": ("romsim.commands.audit", "read every code back from the ROM images and compare"),
    "simulate": ("romsim.commands.simulate", "text out of the simulated chip; tokens/s"),
    "sample": ("romsim.commands.sample", "several answers to a prompt, KV pages shared"),
    "session": ("romsim.commands.session", "prompts in turn; known prefixes are not computed"),
    "rtl": ("romsim.commands.rtl", "write the chip as Verilog with its ROM images"),
    "logic-rom": ("romsim.commands.logic_rom", "area of the weights as standard-cell logic"),
    "synth": ("romsim.commands.synth", "area and clock of the chip's own RTL by synthesis"),
    "verify": ("romsim.commands.verify", "compare the machines value by value"),
    "mutate": ("romsim.commands.mutate", "inject faults; how many does verification find?"),
    "report": ("romsim.commands.report", "area, speed, energy, memory: page, tables, pictures"),
    "perplexity": ("romsim.commands.perplexity", "measure what arithmetic and formats cost"),
    "kv-capacity": ("romsim.commands.kv_capacity", "room and tokens/s of KV-cache configurations"),
    "kv-eval": ("romsim.commands.kv_eval", "perplexity and room of KV-cache configurations"),
    "compare": ("romsim.commands.compare", "the chip against GPUs: rates, joules, area, cost"),
    "published": ("romsim.commands.published", "published chips beside ours, with what was fitted"),
    "kv-check": ("romsim.commands.kv_check", "recompute what articles say about KV caches"),
    "doctor": ("romsim.commands.doctor", "say which tools are here and what is missing"),
}


class _ReaderGoneError(Exception):
    """Whoever read standard output has closed it."""


class _LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end with 1, which says here that values differ
            raise _ReaderGoneError from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(
                f"Command must be one of {', '.join(_COMMANDS)}, not {name!r}{hint}"
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="romsim")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def app(debug: bool) -> None:
    """Compile a language model into a ROM-based chip, simulate it, and prove it right."""


INTERNAL_ERROR = 70
"""Exit code of a fault of our own (EX_SOFTWARE of sysexits.h), neither 1 nor 2."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Exit codes: 0 done; 1 a comparison found differences; 2 an error of the user's making, told in
    one sentence; 70 a fault of this program; 130 interrupted; 141 standard output was closed.
    """
    args = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in args
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        _run(args, debug)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    """Let SIGTERM unwind as Ctrl-C does, so that half-made folders go."""
    raise KeyboardInterrupt


def _run(args: list[str], debug: bool) -> None:
    try:
        _run_clean(args)
    except RomsimError as error:
        if debug:
            raise
        click.echo(f"romsim: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("romsim: interrupted; nothing half-made is left behind", err=True)
        sys.exit(130)
    except _ReaderGoneError:
        # Python flushes what is left when it ends: into nothing, without a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a file that vanished, a full disk: nothing a command foresaw
        if debug:
            raise
        click.echo(f"romsim: {error}; check the file and the space on its disk", err=True)
        sys.exit(2)
    except Exception as error:
        if debug:
            raise
        click.echo(
            f"romsim: internal error ({type(error).__name__}: {error}); this is a fault of romsim, "
            f"not yours: run `romsim --debug ...` and report what it prints",
            err=True,
        )
        sys.exit(INTERNAL_ERROR)


def _run_clean(args: list[str]) -> None:
    """Run a command; whatever ends it, no line of progress stays on the terminal."""
    try:
        app.main(args=args, standalone_mode=False, prog_name="romsim")
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


if __name__ == "__main__":
    main()
