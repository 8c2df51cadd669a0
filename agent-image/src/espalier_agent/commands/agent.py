"""`espalier agent ...`, also `python -m espalier_agent ...`: stdout is data, stderr is progress.

Below the group: the output of its commands for people, progress and evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

import click

from espalier_core.console import LazyGroup

if TYPE_CHECKING:
    from espalier_agent.evaluation.evaluate import PolicyEvaluation, ResultNoise


COMMANDS: Final = {
    "evaluate": "espalier_agent.commands.evaluate:evaluate",
    "learn": "espalier_agent.commands.learn:learn",
    "openapi": "espalier_agent.commands.serve:openapi",
    "outcomes": "espalier_agent.commands.outcomes:outcomes",
    "promote": "espalier_agent.commands.evaluate:promote",
    "serve": "espalier_agent.commands.serve:serve",
}
HELP: Final = """Learn, judge and serve the policy that advises how models grow.

Exit codes: 0 success, 1 an internal error, 2 an input cannot be used, 3 a policy is not promoted, 130 interrupted.
"""

agent: Final = LazyGroup(name="agent", help=HELP, elsewhere=COMMANDS)


class ProgressLines:
    """Prints progress at intervals, and at the end."""

    EVERY_SECONDS: ClassVar[float] = 5.0

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def tell(self, done: int, of: int, line: Callable[[float], str]) -> None:
        """Print `line(seconds since the start)`, unless the last line is recent."""
        now = time.monotonic()
        if now - self._last < self.EVERY_SECONDS and done < of:
            return
        self._last = now
        click.echo(line(now - self._began), err=True)


def print_evaluation(evaluation: PolicyEvaluation) -> None:
    """Print an evaluation for people, with the uncertainty of ranks and regrets if tables contain several seeds."""
    noisy = any(result.noise is not None for result in evaluation.tables)
    click.echo(
        f"{'table':<20} {'rank':>8} "
        + (f"{'90 %':>7} " if noisy else "")
        + f"{'accuracy':>8} {'regret':>7} "
        + (f"{'errors':>6} " if noisy else "")
        + f"{'none':>7} {'random':>7} {'average':>7} {'best':>7}  actions"
    )
    for result in evaluation.tables:
        average = "-" if result.best_on_average is None else f"{result.best_on_average.accuracy:.4f}"
        interval, errors = _noise_columns(result.noise)
        click.echo(
            f"{result.table:<20} {result.rank:>3} /{result.sequences:>3} "
            + (f"{interval:>7} " if noisy else "")
            + f"{result.accuracy:>8.4f} {result.regret:>7.4f} "
            + (f"{errors:>6} " if noisy else "")
            + f"{result.none.accuracy:>7.4f} {result.random_mean_accuracy:>7.4f} {average:>7} "
            f"{result.best.accuracy:>7.4f}  " + ", ".join(result.actions)
        )
    click.echo(f"mean regret {evaluation.mean_regret:.4f}, policy {evaluation.policy}@{evaluation.version}")
    if noisy:
        click.echo("90 %: interval of the rank; errors: regret in standard errors of a difference, over the seeds")


def _noise_columns(noise: ResultNoise | None) -> tuple[str, str]:
    if noise is None:
        return "-", "-"
    errors = "-" if noise.regret_in_errors is None else f"{noise.regret_in_errors:.1f}"
    return f"{noise.rank_low}-{noise.rank_high}", errors
