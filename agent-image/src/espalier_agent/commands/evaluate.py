"""`espalier agent evaluate`: rank what a policy chooses."""

from __future__ import annotations

import json
from pathlib import Path

import click
import torch

from espalier_agent.commands.console import print_evaluation
from espalier_agent.commands.learn import USER_ERRORS, gather_tables, outcomes_option
from espalier_agent.evaluation.evaluate import evaluate as evaluate_policy
from espalier_agent.policies.files import open_policy
from espalier_core.console import SEEDS, CommandError


@click.command()
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
