"""`espalier policies learn`: imitation of a rule, then learning from its own decisions; the result is a policy file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from espalier_cli.errors import InputError
from espalier_lab.commands.policies.options import cluster_sizes, require_folder, type_indices, write
from espalier_lab.scheduling.allocation.judging import NODES
from espalier_lab.scheduling.allocation.learning import learn_slots
from espalier_lab.scheduling.allocation.rules import RULES
from espalier_lab.scheduling.learners.learner import LEARNERS, LearnerSettings

_DEFAULTS = LearnerSettings()


@click.command()
@click.option(
    "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Write the policy into this file."
)
@click.option("--seed", type=click.IntRange(0, 2000), default=0, show_default=True, help="Seed of traces and weights.")
@click.option(
    "--nodes",
    default=",".join(map(str, NODES)),
    show_default=True,
    metavar="N[,N...]",
    help=f"Learn on clusters with these numbers of nodes, at most {_DEFAULTS.episodes}, equally much on each.",
)
@click.option(
    "--teacher",
    type=click.Choice([*RULES]),
    default=_DEFAULTS.teacher,
    show_default=True,
    help="The rule that is imitated first.",
)
@click.option(
    "--imitated",
    type=click.IntRange(100, 10_000_000),
    default=_DEFAULTS.imitated,
    show_default=True,
    help="Decisions of the teacher to learn from.",
)
@click.option(
    "--decisions",
    type=click.IntRange(0, 100_000_000),
    default=_DEFAULTS.decisions,
    show_default=True,
    help="Decisions of its own to learn from; 0: only imitate.",
)
@click.option(
    "--learner",
    type=click.Choice([*LEARNERS]),
    default=_DEFAULTS.learner,
    show_default=True,
    help="Algorithm for these: masked PPO, or actor-critic with replay, as in the source.",
)
@click.option(
    "--without-type", "without", multiple=True, metavar="NAME", help="Learn without this type of jobs. Repeatable."
)
def learn(
    output: Path,
    seed: int,
    nodes: str,
    teacher: str,
    imitated: int,
    decisions: int,
    learner: str,
    without: tuple[str, ...],
) -> None:
    """Learn to allocate workers and parameter servers to jobs in DL2's simulated cluster.

    First the network imitates a rule, then it improves by its own decisions. The policy is a safetensors file with its
    lineage. It is for this simulated cluster: no operator can be given it, because jobs of Espalier have no parameter
    servers. Progress goes to stderr.
    """
    sizes, kinds = cluster_sizes(nodes), type_indices(without)
    if len(sizes) > _DEFAULTS.episodes:
        raise InputError(
            f"--nodes: {len(sizes)} sizes, where {_DEFAULTS.episodes} clusters are learnt on at a time; name at most "
            f"{_DEFAULTS.episodes}"
        )
    require_folder(output)
    settings = replace(_DEFAULTS, teacher=teacher, imitated=imitated, decisions=decisions, learner=learner)
    policy = learn_slots(seed, settings, nodes=sizes, kinds=kinds, progress=lambda line: click.echo(line, err=True))
    write(policy, output)
    click.echo(f"{output}: {policy.lineage.name}@{policy.version}, {policy.lineage.algorithm}")
