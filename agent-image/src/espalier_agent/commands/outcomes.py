"""`espalier agent outcomes`: the stored decisions and outcomes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import click

from espalier_agent.history import HistoryDecision, decisions
from espalier_agent.history.schema import StoreError
from espalier_core.console import CommandError
from espalier_core.growth import operation, operation_names


@dataclass
class HistoryCounts:
    """The outcomes of one policy's decisions."""

    decisions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    accuracies: list[float] = field(default_factory=list)
    shadowed: int = 0
    agreed: int = 0

    def take(self, decision: HistoryDecision) -> None:
        """Count a decision."""
        self.decisions += 1
        self.kinds[decision.action.kind] += 1
        if decision.final_accuracy is not None:
            self.accuracies.append(decision.final_accuracy)
        self.shadowed += len(decision.shadows)
        self.agreed += sum(shadow.agreed for shadow in decision.shadows)

    def to_json(self) -> dict[str, object]:
        """Return the figures; a mean or a share without data is null."""
        return {
            "decisions": self.decisions,
            **{operation(name).participle: self.kinds[name] for name in operation_names()},
            "outcomes": len(self.accuracies),
            "meanAccuracy": sum(self.accuracies) / len(self.accuracies) if self.accuracies else None,
            "shadowed": self.shadowed,
            "agreement": self.agreed / self.shadowed if self.shadowed else None,
        }


def tally(history: Iterable[HistoryDecision]) -> dict[tuple[str, str], HistoryCounts]:
    """Count decisions by name and version of the policy that made them, in the order of its first decision."""
    by_policy: dict[tuple[str, str], HistoryCounts] = defaultdict(HistoryCounts)
    for decision in history:
        by_policy[decision.policy.name, decision.policy.version].take(decision)
    return dict(by_policy)


@click.command()
@click.option(
    "--db",
    "sources",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Database of `agent serve --outcomes-db`, or a folder of them (*.db). Repeatable; databases are joined.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def outcomes(sources: tuple[Path, ...], as_json: bool) -> None:
    """Count the decisions that the service stored, by policy, with their outcomes.

    The accuracy is the mean over decisions whose outcome is known. Do not use it to compare policies that advised
    different jobs, or at different times.
    """
    try:
        found = tally(decisions(*sources))
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from error
    if as_json:
        lines = [{"policy": name, "version": version, **each.to_json()} for (name, version), each in found.items()]
        click.echo(json.dumps({"policies": lines}, indent=1))
        return
    grown = {name: operation(name).participle for name in operation_names()}
    grown_heads = " ".join(f"{head:>{len(head)}}" for head in grown.values())
    click.echo(f"{'policy':<32} {'decisions':>9} {grown_heads} {'outcomes':>8} {'accuracy':>8} {'agreement':>9}")
    for (name, version), each in found.items():
        figures = each.to_json()
        click.echo(
            f"{f'{name}@{version}':<32} {each.decisions:>9} "
            f"{' '.join(f'{each.kinds[name]:>{len(head)}}' for name, head in grown.items())} "
            f"{len(each.accuracies):>8} "
            f"{_figure(figures['meanAccuracy']):>8} {_figure(figures['agreement']):>9}"
        )


def _figure(value: object) -> str:
    return "-" if value is None else f"{value:.4f}"
