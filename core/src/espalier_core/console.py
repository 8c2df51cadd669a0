"""Parts shared by all commands: groups that import on use, errors with a hint, and ranges of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from espalier_core.registry import Registry, RegistryError

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as of a program that SIGINT ends; click would exit with 1, as after an error."""
COMMANDS: Final = "espalier.commands"
"""The group of entry points by which packages add commands to `espalier`; `agent.NAME` adds one to `espalier agent`."""
SEEDS: Final = click.IntRange(0, 2**32 - 1)
"""The range of seeds, also of a job's. torch takes 64 bits, but `distilled` multiplies seeds."""


class CommandError(click.ClickException):
    """An error of one line with the cause, then a hint; unless a subclass differs, it reports unusable input."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: object = None) -> None:
        """Print to stderr."""
        click.echo(f"error: {self.message}", err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", err=True)


def error_in(log: str) -> str:
    """Return the error, with its hint, with which a command has ended, from its output."""
    lines = log.strip().splitlines()
    found = [number for number, line in enumerate(lines) if line.lower().startswith("error: ")]
    return "; ".join(line.partition(": ")[2] for line in lines[found[-1] :]) if found else "\n".join(lines[-20:])


class NotInstalledError(CommandError):
    """A command needs a module that is not installed."""

    def __init__(self, command: str, module: str, hint: str) -> None:
        super().__init__(f"{command} needs {module}, which is not installed", hint)


class RealRange(click.FloatRange):
    """A range of finite numbers: `FloatRange` accepts infinity, and NaN, which is neither below nor above a limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number.

        Raises:
            click.BadParameter: It is not a number, not finite, or outside of the range.
        """
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def output_file(
    help: str, kind: click.Path, default: Path | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option `--output` for a file or a folder; required without a default.

    `-o` is accepted for one more release, with a warning: in all other commands it is a format.
    """
    key = f"{__name__}.output"

    def old(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        if value is not None:
            click.echo("warning: -o names a format in other commands, and soon here too; use --output", err=True)
            ctx.meta[key] = value

    def new(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path:
        found: Path | None = ctx.meta.get(key, default) if value is None else value
        if found is None:
            raise click.MissingParameter(ctx=ctx, param=param)
        return found

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        shown = f"{help}  [{'required' if default is None else f'default: {default}'}]"
        command = click.option("--output", type=kind, callback=new, help=shown)(command)
        # Handled before --output, whichever comes first on the command line.
        old_letter = click.option(
            "-o", "old_output", type=kind, is_eager=True, hidden=True, expose_value=False, callback=old
        )
        return old_letter(command)

    return added


class LazyGroup(click.Group):
    """A group that imports some of its commands on use: torch alone takes seconds.

    `elsewhere` gives for each name the module and the name in it, as `module:name`. Other packages add commands as
    entry points of `group`, whose names begin with `prefix`; they cannot replace any. A command whose imports are not
    installed is listed with `missing`, and ends with that hint and exit code 2. `sections` groups commands under
    headings in the help; all others come under the last one.
    """

    def __init__(
        self,
        *args: Any,
        elsewhere: Mapping[str, str],
        group: str = "",
        prefix: str = "",
        missing: str = "",
        sections: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        """Extend `click.Group`, whose arguments it takes in addition."""
        super().__init__(*args, **settings)
        self._prefix, self._missing = prefix, missing
        self._sections = sections or {"Commands": ()}
        builtin = {prefix + name: where for name, where in elsewhere.items()}
        self._registry = Registry[object]("command", group, builtin)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        names = (name.removeprefix(self._prefix) for name in self._registry.names() if name.startswith(self._prefix))
        return sorted({*super().list_commands(ctx), *(name for name in names if "." not in name)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported if necessary."""
        here, name = super().get_command(ctx, cmd_name), self._prefix + cmd_name
        if here is not None or "." in cmd_name or self._registry.problem(name):
            return here
        try:
            command = self._registry.load(name)
        except RegistryError as error:
            if not self._missing or not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            return _without(cmd_name, error.__cause__.name or "", self._missing)
        if not isinstance(command, click.Command):
            raise TypeError(f"{name} is a {type(command).__name__}, not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; the error for an unknown one suggests a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := get_close_matches(args[0], self.list_commands(ctx), 1):
                raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {near[0]}?", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their first sentences, whole, by section."""
        left = {name: text for name in self.list_commands(ctx) if (text := self._summary(ctx, name)) is not None}
        for heading, names in self._sections.items():
            last = heading == list(self._sections)[-1]
            chosen = [name for name in names if name in left]
            rows = [(name, left.pop(name)) for name in (*chosen, *(sorted(left.keys() - {*chosen}) if last else ()))]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def _summary(self, ctx: click.Context, name: str) -> str | None:
        """Return the first sentence of a command's help; None if it is hidden."""
        try:
            command = self.get_command(ctx, name)
        except RegistryError as error:  # must not break the help of all others
            return str(error)
        return None if command is None or command.hidden else command.get_short_help_str(limit=1000)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; Ctrl-C ends it with `INTERRUPTED`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _without(command: str, module: str, hint: str) -> click.Command:
    """Return a substitute for a command that cannot be imported."""

    def refuse(**_: object) -> None:
        raise NotInstalledError(command, module.partition(".")[0], hint)

    return click.Command(
        command,
        callback=refuse,
        help=f"Not installed: {hint}.",
        params=[click.Argument(["arguments"], nargs=-1)],
        context_settings={"ignore_unknown_options": True},
    )
