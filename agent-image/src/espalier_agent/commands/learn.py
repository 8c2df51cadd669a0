"""`espalier agent learn`, and the inputs that it shares with `evaluate` and `promote`."""

from __future__ import annotations

import errno
import os
from math import isnan
from pathlib import Path

import click
import pydantic

from espalier_agent.commands.agent import ProgressLines, print_evaluation
from espalier_agent.data import carried_corpus, carried_tables, corpus_names, table_sets
from espalier_agent.evaluation.evaluate import evaluate as evaluate_policy
from espalier_agent.history import decisions, history_files
from espalier_agent.history.episodes import Gathered, gather
from espalier_agent.history.schema import StoreError
from espalier_agent.learners.growths import GrowthsLearner
from espalier_agent.learners.learning import (
    DEFAULT_LEARNER,
    LEARNERS,
    LearningError,
    LearningProgress,
    ProgressCallback,
)
from espalier_agent.policies.network import ENCODERS
from espalier_agent.policies.policy import PolicyError, load_policy, save_policy
from espalier_agent.tables.tree import TableError, read_playable, table_digest
from espalier_core.base import Record
from espalier_core.console import SEEDS, CommandError, RealRange, output_file
from espalier_core.files.documents import DocumentError
from espalier_core.registry import RegistryError
from espalier_core.types.outcomes import GrowthCorpus, OutcomeTable, read_corpus, table_files

USER_ERRORS = (DocumentError, PolicyError, TableError, LearningError, StoreError, RegistryError, OSError)


def gather_tables(sources: tuple[str, ...]) -> tuple[OutcomeTable, ...]:
    """Read tables: included sets by name, folders (`*.json` in each), and single files.

    An included set hides a folder of the same name, which can be given as `./NAME`. Raise `DocumentError` for a missing
    or damaged table, `TableError` for one that cannot be played; both name the file.
    """
    tables: list[OutcomeTable] = []
    for source in sources:
        path = Path(source)
        if source in table_sets():
            tables.extend(carried_tables(source))
        elif path.is_dir():
            tables.extend(read_playable(each) for each in table_files(path))
        elif path.is_file():
            tables.append(read_playable(path))
        else:
            raise DocumentError(
                f"{source}: no such file or folder, and not an included set ({', '.join(table_sets())})"
            )
    return tuple(tables)


outcomes_option = click.option(
    "--outcomes",
    "sources",
    multiple=True,
    default=("lamelas",),
    show_default=True,
    metavar="SET|DIR|FILE",
    help="Outcome tables: an included set (lamelas: the paper's six), a folder or a file. Repeatable.",
)

history_option = click.option(
    "--from-history",
    "histories",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Database of `serve --explore SHARE --outcomes-db FILE`, or a folder of them (*.db), with decisions and their "
    "outcomes. Repeatable.",
)


corpus_option = click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME|FILE",
    help="For trees and graph-gains: a corpus of growth, an included one (growth) or a file of `collect --corpus`. "
    "Repeatable.",
)


def gather_corpora(sources: tuple[str, ...]) -> tuple[GrowthCorpus, ...]:
    """Read corpora: included ones by name, and files; raise `DocumentError`."""
    return tuple(carried_corpus(one) if one in corpus_names() else read_corpus(Path(one)) for one in sources)


def read_history(sources: tuple[Path, ...]) -> Gathered:
    """Read a history and print on stderr which part of it can be used. Raise `StoreError` if it cannot be read."""
    history = gather(decisions(*sources))
    click.echo(
        f"history: {len(history.episodes)} jobs with {history.decisions} decisions; left out: "
        f"{history.without_outcome} decisions without outcome, {history.certain} jobs with a choice that was certain, "
        f"{history.alone} jobs alone of their kind",
        err=True,
    )
    if history.tried:
        click.echo(f"trials: {len(history.tried)} decisions, each with the results of its arms", err=True)
    if history.certain and not history.episodes and not history.tried:
        click.echo(
            "warning: the service always took its best action, so the effect of other actions is unknown; "
            "`agent serve --explore SHARE` explores them",
            err=True,
        )
    return history


def _split(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, sign, _ in pairs:
        if not (name and sign):
            raise click.BadParameter(f"{name!r} is not FIELD=VALUE")
    return {name: value for name, _, value in pairs}


@click.command()
@outcomes_option
@click.option("--without-tables", is_flag=True, help="Learn from --from-history and --corpus alone.")
@click.option(
    "--held-out",
    "held_out",
    multiple=True,
    metavar="SET|DIR|FILE",
    help="Tables to exclude from learning although --outcomes names them, so that `promote` can use them. Repeatable.",
)
@corpus_option
@history_option
@output_file("Folder for the policy.", click.Path(path_type=Path))
@click.option("--seed", type=SEEDS, default=0, show_default=True)
@click.option("--name", help="Name of the policy; default: the name of the output folder.")
@click.option("--learner", type=click.Choice(LEARNERS.names()), default=DEFAULT_LEARNER, show_default=True)
@click.option(
    "--encoder",
    type=click.Choice(ENCODERS.names()),
    help="Encoder of models; default: that of the learner, lstm (the paper's) for reinforce and graph for the others.",
)
@click.option(
    "--recipe",
    help="Configuration of the learner: fit or smooth (expected), paper or batched (reinforce), default (the others). "
    "Default: the first one.",
)
@click.option(
    "--set",
    "fields",
    multiple=True,
    callback=_split,
    metavar="FIELD=VALUE",
    help="Change a field of the recipe. Repeatable.",
)
@click.option("--episodes", type=click.IntRange(min=1), help="For reinforce: override the recipe's number.")
@click.option("--learning-rate", type=RealRange(min=0, min_open=True), help="Override the recipe's.")
@click.option(
    "--temperature",
    type=RealRange(min=1),
    help="For reinforce: initial softmax temperature (paper: 10, 100, 1000).",
)
@click.option(
    "--curriculum",
    metavar="SCENARIO-SCENARIO-...",
    help="For reinforce: learn the tables one after the other, by scenario, e.g. early-late-middle.",
)
@click.option("--from", "parent_path", type=click.Path(path_type=Path), help="Continue from this policy.")
def learn(
    sources: tuple[str, ...],
    without_tables: bool,
    held_out: tuple[str, ...],
    corpora: tuple[str, ...],
    histories: tuple[Path, ...],
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

    expected follows the exact gradient of the expected return over all sequences of all tables; distilled teaches one
    network the average of several such runs; reinforce is the paper's learner; ppo and dqn play episodes; trees learns
    regression trees, from a --corpus too, and graph-gains a graph network of the same gains. With --from-history,
    expected continues with the outcomes of real advice and trials, and these two learn from them, too; a quarter of the
    jobs is held out for `promote` (--set held_out_share=0.25).
    """
    options = {"episodes": episodes, "learning_rate": learning_rate, "temperature": temperature}
    changes: dict[str, object] = {key: value for key, value in options.items() if value is not None}
    try:
        chosen = LEARNERS.load(learner)
        tables = _not_held_out(gather_tables(() if without_tables else sources), gather_tables(held_out))
        if curriculum is not None:
            tables = in_curriculum(tables, curriculum)
            changes["order"] = "curriculum"
        if corpora:
            if not isinstance(chosen, GrowthsLearner):
                raise LearningError(f"learner {learner} does not learn from a corpus; trees and graph-gains do")
            chosen = chosen.with_corpora(gather_corpora(corpora))
        if histories:
            files = tuple(path.name for path in history_files(histories))
            remember = chosen.remembering if isinstance(chosen, GrowthsLearner) else chosen.with_history
            if remember is None:
                raise LearningError(
                    f"learner {learner} does not learn from a history; {DEFAULT_LEARNER}, trees and graph-gains do"
                )
            chosen = remember(read_history(histories), files)
        config = changed(chosen.recipe(recipe), learner, {**changes, **fields})
        parent = None if parent_path is None else load_policy(parent_path)
        _require_folder(output)
        policy = chosen.learn(
            tables,
            config=config,
            encoder=encoder,
            seed=seed,
            name=name or output.resolve().name,
            parent=parent,
            progress=learning_lines(),
        )
        save_policy(policy, output)
        evaluation = evaluate_policy(policy, tables)
    except USER_ERRORS as error:
        raise CommandError(str(error)) from error
    click.echo(f"policy {policy.name}@{policy.version} written to {output}", err=True)
    if tables:
        print_evaluation(evaluation)


def _require_folder(output: Path) -> None:
    """Create the policy's folder; raise `CommandError` if that or writing into it fails, before minutes of learning."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not os.access(output, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CommandError(f"--output: {output}: cannot be written: {error.strerror}") from error


def _not_held_out(tables: tuple[OutcomeTable, ...], held_out: tuple[OutcomeTable, ...]) -> tuple[OutcomeTable, ...]:
    kept = {table_digest(table) for table in held_out}
    return tuple(table for table in tables if table_digest(table) not in kept)


def in_curriculum(tables: tuple[OutcomeTable, ...], curriculum: str) -> tuple[OutcomeTable, ...]:
    """Order tables by scenario, e.g. `early-late-middle`; raise `LearningError` if the tables do not match it."""
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


def learning_lines() -> ProgressCallback:
    """Return a callback that prints the progress of learning."""
    lines = ProgressLines()

    def tell(progress: LearningProgress) -> None:
        done, total = progress.episodes, progress.total_episodes
        figures = {"objective": progress.objective, "mean accuracy": progress.mean_accuracy}
        known = "".join(f", {name} {value:.4f}" for name, value in figures.items() if not isnan(value))
        lines.tell(done, total, lambda since: f"{done}/{total} episodes, {done / max(since, 1e-9):.0f} a second{known}")

    return tell
