"""A command."""

import click


@click.command()
def greet() -> None:
    """Greet."""
    click.echo("hello")
