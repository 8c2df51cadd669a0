"""`espalier agent ...`, also `python -m espalier_agent ...`: stdout is data, stderr is progress."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import torch

from espalier_agent.command_errors import CommandError
from espalier_agent.data import carried_tables, table_sets
from espalier_agent.evaluate import Evaluation
from espalier_agent.evaluate import evaluate as evaluate_policy
from espalier_agent.learners.learning import LearningError, Progress
from espalier_agent.learners.reinforce import BATCHED, PAPER, Order, ReinforceConfig
from espalier_agent.learners.reinforce import learn as learn_policy
from espalier_agent.outcome_commands import outcomes
from espalier_agent.policy import Policy
from espalier_agent.policy_files import PolicyError, default_policy, load_policy, save_policy
from espalier_agent.serve_command import serve
from espalier_agent.service import create_app
from espalier_agent.tree import TableError
from espalier_api.documents import DocumentError
from espalier_api.outcomes import OutcomeTable, read_table, read_tables

RECIPES = {"batched": BATCHED, "paper": PAPER}

USER_ERRORS = (DocumentError, PolicyError, TableError, LearningError, OSError)


def gather_tables(sources: tuple[str, ...]) -> tuple[OutcomeTable, ...]:
    """Read tables: of sets that are carried, by name, of folders (`*.json` in each) and of single files.

    A carried set hides a folder of its name, which is still reached as `./NAME`. Raises `DocumentError` for what is
    missing or damaged.
    """
    tables: list[OutcomeTable] = []
    for source in sources:
        path = Path(source)
        if source in table_sets():
            tables.extend(carried_tables(source))
        elif path.is_dir():
            tables.extend(read_tables(path))
        elif path.is_file():
            tables.append(read_table(path))
        else:
            raise DocumentError(f"{source}: no such file or folder, and not a carried set ({', '.join(table_sets())})")
    return tuple(tables)


def open_policy(path: Path | None) -> Policy:
    """Return the policy in this folder, or the shipped one; raises `PolicyError`."""
    return default_policy() if path is None else load_policy(path)


outcomes_option = click.option(
    "--outcomes",
    "sources",
    multiple=True,
    default=("lamelas",),
    show_default=True,
    metavar="SET|DIR|FILE",
    help="Outcome tables: a carried set (lamelas: the paper's six), a folder or a file. May be repeated.",
)


@click.group(name="agent")
def agent() -> None:
    """The policy that advises how models grow: learn it, judge it, serve it.

    Exit codes: 0 done, 1 an input cannot be used, 2 the command was not understood.
    """


agent.add_command(serve)
agent.add_command(outcomes)


@agent.command()
@outcomes_option
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Folder for the policy.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--name", help="The policy's name; default: the output folder's.")
@click.option(
    "--recipe",
    type=click.Choice(sorted(RECIPES)),
    default="batched",
    show_default=True,
    help="paper: algorithm 3 to the letter. batched: many episodes an update, standardised returns.",
)
@click.option("--episodes", type=click.IntRange(min=1), help="Instead of the recipe's number.")
@click.option("--order", type=click.Choice([order.value for order in Order]), help="Instead of the recipe's order.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Instead of the recipe's.")
@click.option("--temperature", type=click.FloatRange(min=1), help="Initial softmax temperature (paper: 10, 100, 1000).")
@click.option("--from", "parent_path", type=click.Path(path_type=Path), help="Go on from this policy.")
def learn(
    sources: tuple[str, ...],
    output: Path,
    seed: int,
    name: str | None,
    recipe: str,
    episodes: int | None,
    order: str | None,
    learning_rate: float | None,
    temperature: float | None,
    parent_path: Path | None,
) -> None:
    """Learn a policy from outcome tables (REINFORCE). The same command with the same seed gives the same policy."""
    changes = {"episodes": episodes, "order": order, "learning_rate": learning_rate, "temperature": temperature}
    given = {key: value for key, value in changes.items() if value is not None}
    config = ReinforceConfig.model_validate({**RECIPES[recipe].model_dump(), **given})
    try:
        tables = gather_tables(sources)
        parent = None if parent_path is None else load_policy(parent_path)
        policy = learn_policy(
            tables,
            config=config,
            seed=seed,
            name=name or output.resolve().name,
            parent=parent,
            progress=_ProgressLines(),
        )
        save_policy(policy, output)
        evaluation = evaluate_policy(policy, tables)
    except USER_ERRORS as error:
        raise CommandError(str(error)) from error
    click.echo(f"policy {policy.name}@{policy.version} written to {output}", err=True)
    _print_evaluation(evaluation)


@agent.command()
@outcomes_option
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="Policy folder; default: the shipped one."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(sources: tuple[str, ...], policy_path: Path | None, as_json: bool) -> None:
    """Rank a policy's greedy sequence among all sequences of each table."""
    torch.set_num_threads(1)
    try:
        evaluation = evaluate_policy(open_policy(policy_path), gather_tables(sources))
    except USER_ERRORS as error:
        raise CommandError(str(error)) from error
    if as_json:
        click.echo(json.dumps(evaluation.to_json(), indent=1))
    else:
        _print_evaluation(evaluation)


@agent.command()
def openapi() -> None:
    """Print the service's OpenAPI description; `docs/openapi/agent.json` is this output."""
    click.echo(json.dumps(create_app().openapi(), indent=1))


class _ProgressLines:
    """A line on stderr every few seconds."""

    EVERY_SECONDS = 5.0

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last = self._started

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < self.EVERY_SECONDS and progress.episodes < progress.total_episodes:
            return
        self._last = now
        speed = progress.episodes / max(now - self._started, 1e-9)
        click.echo(
            f"{progress.episodes}/{progress.total_episodes} episodes, {speed:.0f} a second, "
            f"objective {progress.objective:.3f}, mean accuracy {progress.mean_accuracy:.4f}",
            err=True,
        )


def _print_evaluation(evaluation: Evaluation) -> None:
    click.echo(
        f"{'table':<20} {'rank':>8} {'accuracy':>8} {'regret':>7} {'none':>7} {'random':>7} {'best':>7}  actions"
    )
    for result in evaluation.tables:
        click.echo(
            f"{result.table:<20} {result.rank:>3} /{result.sequences:>3} {result.accuracy:>8.4f} {result.regret:>7.4f} "
            f"{result.none.accuracy:>7.4f} {result.random_mean_accuracy:>7.4f} {result.best.accuracy:>7.4f}  "
            + ", ".join(result.actions)
        )
    click.echo(f"mean regret {evaluation.mean_regret:.4f}, policy {evaluation.policy}@{evaluation.version}")
