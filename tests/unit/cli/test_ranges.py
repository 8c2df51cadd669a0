"""The numbers that options of all commands accept."""

from __future__ import annotations

import click
import pytest

from espalier_core.console import RealRange
from espalier_generate.pages import commands

REALS = [
    pytest.param(option.type, id=f"{context.command_path} {option.opts[0]}")
    for context in commands()
    for option in context.command.params
    if isinstance(option.type, click.FloatRange)
]


def test_there_are_options_with_a_range_of_numbers() -> None:
    assert len(REALS) >= 10


@pytest.mark.parametrize("accepted", REALS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "NaN", "1e999"])
def test_no_option_accepts_what_is_not_a_finite_number(accepted: click.FloatRange, value: str) -> None:
    with pytest.raises(click.BadParameter):
        accepted.convert(value, None, None)


def test_the_message_names_the_value() -> None:
    with pytest.raises(click.BadParameter, match="inf is not a finite number"):
        RealRange(min=0).convert("inf", None, None)
