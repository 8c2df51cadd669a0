"""`espalier agent evaluate` and `espalier agent promote`: rank a policy's choices; replace the one in service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click
import torch

from espalier_agent.commands.agent import print_evaluation
from espalier_agent.commands.learn import USER_ERRORS, gather_tables, history_option, outcomes_option, read_history
from espalier_agent.evaluation.evaluate import evaluate as evaluate_policy
from espalier_agent.evaluation.gate import GateError, GateTerms, Judgement, OnHistory, judge
from espalier_agent.history.off_policy import Unit
from espalier_agent.policies.policy import load_policy, open_policy, save_policy
from espalier_core.console import SEEDS, CommandError, RealRange

REFUSED: Final = 3
"""Exit code: the policy in service was kept."""


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


@click.command()
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), required=True, help="Folder of the new policy."
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the policy in service (`serve --policy`). It is replaced at once; the service notices in a second.",
)
@click.option(
    "--outcomes",
    "sources",
    multiple=True,
    metavar="SET|DIR|FILE",
    help="Outcome tables to judge by, without those that the new policy has learned from. Repeatable.",
)
@history_option
@click.option(
    "--by",
    "unit",
    type=click.Choice([unit.value for unit in Unit]),
    default=Unit.DECISION.value,
    show_default=True,
    help="For the history: weight single decisions, or whole episodes, which needs many more jobs.",
)
@click.option(
    "--margin",
    type=RealRange(min=0, max=1),
    default=0.01,
    show_default=True,
    help="For the history: allowed loss of accuracy, at the lower end of the 95 % interval.",
)
@click.option(
    "--least-effective",
    type=RealRange(min=1),
    default=10.0,
    show_default=True,
    help="For the history: minimum effective number of jobs, also for the changed decisions alone. At least two.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def promote(
    policy_path: Path,
    folder: Path,
    sources: tuple[str, ...],
    histories: tuple[Path, ...],
    unit: str,
    margin: float,
    least_effective: float,
    as_json: bool,
) -> None:
    """Replace the policy in service by a new one, if that is not worse on data that it has not learned from.

    From a history, this uses the part that was held out when the policy was learned (its lineage names it), or all of
    it if the policy was learned from tables alone. Exits with 3, and changes nothing, if the new policy is worse or
    there is too little data to decide.
    """
    if not sources and not histories:
        raise click.UsageError("no data to compare the policies on: set --outcomes, --from-history or both")
    torch.set_num_threads(1)
    terms = GateTerms(margin=margin, least_effective=least_effective, unit=Unit(unit))
    try:
        policy, in_service = load_policy(policy_path), load_policy(folder)
        history = read_history(histories) if histories else None
        judgement = judge(policy, in_service, terms, tables=gather_tables(sources), history=history)
        if not judgement.refusals:
            save_policy(policy, folder, instead_of=in_service.identity)
    except (GateError, *USER_ERRORS) as error:
        raise CommandError(str(error)) from error
    if as_json:
        click.echo(json.dumps(judgement.to_json(), indent=1))
    else:
        _print(judgement)
    for refusal in judgement.refusals:
        click.echo(f"refused: {refusal}", err=True)
    if judgement.refusals:
        click.echo(f"{folder}: {in_service.name}@{in_service.version} stays in service", err=True)
        sys.exit(REFUSED)
    click.echo(f"{folder}: {policy.name}@{policy.version} takes the place of {in_service.name}", err=True)


def _print(judgement: Judgement) -> None:
    if (found := judgement.tables) is not None:
        click.echo(f"tables   {len(found.tables)} held out ({', '.join(found.tables)})")
        click.echo(f"         mean regret {found.regret:.4f}, in service {found.regret_in_service:.4f}")
    if judgement.history is not None:
        _print_history(judgement.history)
    if (shown := judgement.trials) is not None:
        click.echo(
            f"trials   {shown.decisions} held out, {shown.changed} would change; {shown.untold} more did not try what "
            "one of the policies would choose"
        )
        if shown.difference is not None:
            click.echo(f"         gain {shown.difference:+.4f} ({_interval(shown.low, shown.high)})")


def _print_history(found: OnHistory) -> None:
    click.echo(
        f"history  {found.episodes} jobs held out, {found.changed} of their {found.decisions} decisions would change; "
        f"effective number of jobs {found.effective:.1f}, in service {found.effective_in_service:.1f}"
        + ("" if found.effective_changed is None else f", of what would change {found.effective_changed:.1f}")
    )
    if found.difference is not None:
        click.echo(f"         accuracy {found.difference:+.4f} ({_interval(found.low, found.high)})")


def _interval(low: float | None, high: float | None) -> str:
    # One job does not show how much jobs differ.
    return "too few jobs for an interval" if low is None else f"95 % {low:+.4f} to {high:+.4f}"
