"""`espalier simulate --shadow`: a policy's decisions compared with an operator's, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from espalier_cli.cluster.output import print_table
from espalier_cli.errors import InputError
from espalier_lab.commands.simulation_sources import AUDIT
from espalier_lab.simulator.shadow import ShadowComparison, shadow_of
from espalier_operator.policies.settings import configured_here

SHOWN: Final = 20
"""Number of differences in the table; JSON has all."""
_NOTHING: Final = "nothing"

Shadows = Sequence[tuple[str, str, ShadowComparison]]
"""Folder, shadow policy, and its decisions."""


def shadows_of(traces: Sequence[str], form: str, policy: str) -> Shadows:
    """Return a policy's decisions at the plans of each audit log. Raise `ValueError`."""
    if form != AUDIT:
        raise InputError(f"--shadow {policy}: only an audit log has recorded decisions; add --format {AUDIT}")
    return [(trace, policy, shadow_of(Path(trace), configured_here(policy), policy)) for trace in traces]


def policies_with(shadow: str, shadows: Shadows, given: Sequence[str]) -> tuple[str, ...]:
    """Return the policies to simulate: the given ones, else the operators'; and the shadow policy."""
    found = list(given)
    if not given:
        for _, _, compared in shadows:
            try:
                configured_here(compared.policy or "")
            except ValueError as error:
                click.echo(f"the operator's policy is not simulated: {error}", err=True)
            else:
                found.append(compared.policy or "")
    return tuple(dict.fromkeys([*found, shadow]))


def print_shadows(shadows: Shadows) -> None:
    """Print the policy's deviating decisions."""
    for trace, policy, shadow in shadows:
        click.echo(
            f"\n{trace}: of {shadow.plans} recorded plans, {policy} decides {shadow.same} like the operator"
            f" ({shadow.policy or 'its policy is not known'})."
            + (f" The snapshots of {shadow.left_out} others were removed." if shadow.left_out else "")
        )
        if shadow.differences:
            rows = [
                (_time(each.at), each.job, _listed(each.did), _listed(each.would))
                for each in shadow.differences[:SHOWN]
            ]
            print_table(("TIME", "JOB", "OPERATOR", "SHADOW"), rows)
            if (more := len(shadow.differences) - SHOWN) > 0:
                click.echo(f"{more} more differences; --json lists all.")


def documents_of(shadows: Shadows) -> list[dict[str, Any]]:
    """Return the same in plain JSON types."""
    return [
        {
            "trace": trace,
            "policy": policy,
            "operatorPolicy": shadow.policy,
            "plans": shadow.plans,
            "same": shadow.same,
            "withoutSnapshot": shadow.left_out,
            "differences": [
                {"at": each.at, "job": each.job, "operator": list(each.did), "shadow": list(each.would)}
                for each in shadow.differences
            ],
        }
        for trace, policy, shadow in shadows
    ]


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _listed(actions: Sequence[str]) -> str:
    return ", ".join(actions) or _NOTHING
