"""`espalier agent ...`, also `python -m espalier_agent ...`: stdout is data, stderr is progress."""

from __future__ import annotations

import json
from pathlib import Path

import click
import torch

from espalier_agent.commands.console import CommandError, print_evaluation
from espalier_agent.commands.learn import (
    SEEDS,
    USER_ERRORS,
    gather_tables,
    learn,
    open_policy,
    outcomes_option,
)
from espalier_agent.commands.outcomes import outcomes
from espalier_agent.commands.promote import promote
from espalier_agent.commands.serve import serve
from espalier_agent.evaluation.evaluate import evaluate as evaluate_policy
from espalier_agent.service.app import create_app


@click.group(name="agent")
def agent() -> None:
    """Learn, judge and serve the policy that advises how models grow.

    Exit codes: 0 success, 1 an input cannot be used, 2 usage error, 3 a policy is not promoted.
    """


agent.add_command(serve)
agent.add_command(outcomes)
agent.add_command(learn)
agent.add_command(promote)


@agent.command()
@outcomes_option
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="Policy folder; default: the shipped one."
)
@click.option(
    "--seed", type=SEEDS, default=0, show_default=True, help="Seed of the ten random sequences for comparison."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(sources: tuple[str, ...], policy_path: Path | None, seed: int, as_json: bool) -> None:
    """Rank a policy's greedy sequence among all sequences of each table."""
    torch.set_num_threads(1)
    try:
        evaluation = evaluate_policy(open_policy(policy_path), gather_tables(sources), seed=seed)
    except USER_ERRORS as error:
        raise CommandError(str(error)) from error
    if as_json:
        click.echo(json.dumps(evaluation.to_json(), indent=1))
    else:
        print_evaluation(evaluation)


@agent.command()
def openapi() -> None:
    """Print the service's OpenAPI description; `docs/openapi/agent.json` is this output."""
    click.echo(json.dumps(create_app().openapi(), indent=1))
