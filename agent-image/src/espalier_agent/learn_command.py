"""`espalier agent learn`, and what it shares with `evaluate`: where tables come from, how results are printed."""

from __future__ import annotations

import time
from pathlib import Path

import click
import pydantic

from espalier_agent.command_errors import CommandError
from espalier_agent.data import carried_tables, table_sets
from espalier_agent.evaluate import Evaluation
from espalier_agent.evaluate import evaluate as evaluate_policy
from espalier_agent.learners.learning import LearningError, Progress
from espalier_agent.learners.registry import DEFAULT_LEARNER, LEARNERS
from espalier_agent.policy import Policy
from espalier_agent.policy_files import PolicyError, default_policy, load_policy, save_policy
from espalier_agent.tree import TableError
from espalier_api.base import Record
from espalier_api.documents import DocumentError
from espalier_api.outcomes import OutcomeTable, read_table, read_tables

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


def _split(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, sign, _ in pairs:
        if not (name and sign):
            raise click.BadParameter(f"{name!r} is not FIELD=VALUE")
    return {name: value for name, _, value in pairs}


@click.command()
@outcomes_option
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Folder for the policy.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--name", help="The policy's name; default: the output folder's.")
@click.option("--learner", type=click.Choice(list(LEARNERS)), default=DEFAULT_LEARNER, show_default=True)
@click.option(
    "--encoder",
    type=click.Choice(["graph", "lstm"]),
    help="How models are read; default: lstm, the paper's, for reinforce, and graph for the others.",
)
@click.option(
    "--recipe",
    help="The learner's configuration: fit or smooth (expected), paper or batched (reinforce), default (ppo, dqn). "
    "Default: the first of them.",
)
@click.option(
    "--set", "fields", multiple=True, callback=_split, metavar="FIELD=VALUE", help="Change a field of it. Repeatable."
)
@click.option("--episodes", type=click.IntRange(min=1), help="reinforce: instead of the recipe's number.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Instead of the recipe's.")
@click.option(
    "--temperature", type=click.FloatRange(min=1), help="reinforce: initial softmax temperature (paper: 10, 100, 1000)."
)
@click.option(
    "--curriculum",
    metavar="SCENARIO-SCENARIO-...",
    help="reinforce: learn the tables one after the other, by scenario: early-late-middle.",
)
@click.option("--from", "parent_path", type=click.Path(path_type=Path), help="Go on from this policy.")
def learn(
    sources: tuple[str, ...],
    output: Path,
    seed: int,
    name: str | None,
    learner: str,
    encoder: str | None,
    recipe: str | None,
    fields: dict[str, str],
    episodes: int | None,
    learning_rate: float | None,
    temperature: float | None,
    curriculum: str | None,
    parent_path: Path | None,
) -> None:
    """Learn a policy from outcome tables. The same command with the same seed gives the same policy.

    expected follows the exact gradient of the expected return over all sequences of all tables; reinforce is the
    paper's learner; ppo and dqn play episodes.
    """
    chosen = LEARNERS[learner]
    options = {"episodes": episodes, "learning_rate": learning_rate, "temperature": temperature}
    changes: dict[str, object] = {key: value for key, value in options.items() if value is not None}
    try:
        tables = gather_tables(sources)
        if curriculum is not None:
            tables = in_curriculum(tables, curriculum)
            changes["order"] = "curriculum"
        config = changed(chosen.recipe(recipe), learner, {**changes, **fields})
        policy = chosen.learn(
            tables,
            config=config,
            encoder=encoder or chosen.encoder,
            seed=seed,
            name=name or output.resolve().name,
            parent=None if parent_path is None else load_policy(parent_path),
            progress=ProgressLines(),
        )
        save_policy(policy, output)
        evaluation = evaluate_policy(policy, tables)
    except USER_ERRORS as error:
        raise CommandError(str(error)) from error
    click.echo(f"policy {policy.name}@{policy.version} written to {output}", err=True)
    print_evaluation(evaluation)


def in_curriculum(tables: tuple[OutcomeTable, ...], curriculum: str) -> tuple[OutcomeTable, ...]:
    """Order tables by scenario as `early-late-middle` says; `LearningError` where the two do not fit together."""
    order = curriculum.split("-")
    found = {table.scenario for table in tables}
    if len(set(order)) != len(order) or set(order) != found:
        raise LearningError(
            f"curriculum {curriculum!r} must name each scenario of the tables once: {', '.join(sorted(found))}"
        )
    return tuple(sorted(tables, key=lambda table: order.index(table.scenario)))


def changed(config: Record, learner: str, changes: dict[str, object]) -> Record:
    """Return a configuration with some fields changed; `LearningError` names the field, the value and the reason."""
    known = type(config).model_fields
    for name in changes:
        if name not in known:
            raise LearningError(f"learner {learner} has no field {name!r}; its fields: {', '.join(known)}")
    try:
        return type(config).model_validate({**config.model_dump(), **changes}, strict=False)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise LearningError(f"{place}={first['input']}: {first['msg']}") from error


class ProgressLines:
    """A line on stderr every few seconds."""

    EVERY_SECONDS = 5.0

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last = self._started

    def __call__(self, progress: Progress) -> None:
        """Print, where it is time to or the end is reached."""
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


def print_evaluation(evaluation: Evaluation) -> None:
    """Print an evaluation for people."""
    click.echo(
        f"{'table':<20} {'rank':>8} {'accuracy':>8} {'regret':>7} {'none':>7} {'random':>7} {'average':>7} {'best':>7}"
        "  actions"
    )
    for result in evaluation.tables:
        average = "-" if result.best_on_average is None else f"{result.best_on_average.accuracy:.4f}"
        click.echo(
            f"{result.table:<20} {result.rank:>3} /{result.sequences:>3} {result.accuracy:>8.4f} {result.regret:>7.4f} "
            f"{result.none.accuracy:>7.4f} {result.random_mean_accuracy:>7.4f} {average:>7} "
            f"{result.best.accuracy:>7.4f}  " + ", ".join(result.actions)
        )
    click.echo(f"mean regret {evaluation.mean_regret:.4f}, policy {evaluation.policy}@{evaluation.version}")
