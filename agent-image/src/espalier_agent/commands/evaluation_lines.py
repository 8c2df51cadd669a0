"""An evaluation as lines for people."""

from __future__ import annotations

import click

from espalier_agent.evaluation.evaluate import Evaluation
from espalier_agent.evaluation.rank_noise import ResultNoise


def print_evaluation(evaluation: Evaluation) -> None:
    """Print an evaluation for people; how sure ranks and regrets are, where tables hold several seeds."""
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
