"""`espalier policies retrain`: a policy file for the policy `learned`, from the history of a cluster."""

from __future__ import annotations

import time
from pathlib import Path

import click

from espalier_cli.cluster.output import print_table
from espalier_cli.errors import InputError
from espalier_core.console import SEEDS
from espalier_lab.commands.policies.options import require_folder, write
from espalier_lab.intervals import Interval
from espalier_lab.scheduling.learned.files import MAX_NAME, AllocationLineage, Serves
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.product.history import workload_of
from espalier_lab.scheduling.product.learning import ImitationSettings, learn, mean_seconds, with_placement
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.errors import TraceError
from espalier_operator.policies.settings import configured

BASELINES = ("fair", "optimus", "goodput")
"""Rules for comparison with the file."""
CLUSTERS, QUICK_CLUSTERS = 20, 2
"""Numbers of simulated clusters for learning a placement prior."""
QUICK = ImitationSettings(imitated=1, epochs=3, generations=1, candidates=3, best=2, searched=1, chosen=1)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="AUDIT_DIR")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write, .safetensors.",
)
@click.option("--name", default="own", show_default=True, help="Name of the policy.")
@click.option(
    "--seed",
    type=SEEDS,
    default=0,
    show_default=True,
    help="Seed of first weights, order of imitation and search. Episodes and placement prior do not depend on it.",
)
@click.option(
    "--episodes",
    type=click.IntRange(2, 1000),
    default=12,
    show_default=True,
    help="Episodes of later jobs by which the file is judged.",
)
@click.option(
    "--placement", is_flag=True, help="Also learn a placement prior, on simulated clusters: the file then wishes nodes."
)
@click.option("--quick", is_flag=True, help="Learn very little, to try the command.")
def retrain(folder: Path, output: Path, name: str, seed: int, episodes: int, placement: bool, quick: bool) -> None:
    """Learn a policy file from the jobs of the operator's audit log in AUDIT_DIR, and compare it with rules.

    The first jobs of the log are learnt from, and later ones are for the comparison. It takes minutes. The log must
    have at least 20 jobs. Those whose workers train together (elasticBatch), with one GPU each, get faster with more
    workers as their trainers measured it; all others have the workers that they had.
    """
    if output.suffix != ".safetensors":
        raise InputError(f"--output: {output} must end with .safetensors")
    if not name or len(name) > MAX_NAME:
        raise InputError(f"--name: {name!r} has {len(name)} characters; give 1 to {MAX_NAME}")
    if name in BASELINES:
        raise InputError(f"--name: {name} is a rule that the file is compared with; choose another name")
    require_folder(output)
    try:
        workload = workload_of(folder)
    except TraceError as error:
        raise InputError(str(error)) from error
    if not workload.elastic:
        raise InputError(
            f"{folder}: no job of the log gets faster with more workers, as far as was measured: there is nothing to "
            "allocate; use fair, las or gittins"
        )
    gpus = sum(node.gpus for node in workload.nodes)
    lineage = AllocationLineage(
        name=name,
        learnt_from=f"{workload.jobs} jobs of an audit log, {workload.elastic} of them elastic, on {gpus} GPUs",
        algorithm="not learnt yet",
        seed=seed,
        decisions=0,
        serves=Serves(min_gpus=max(1, gpus // 2), max_gpus=2 * gpus, max_jobs=512),
    )
    began = time.monotonic()

    def progress(line: str) -> None:
        click.echo(f"{time.monotonic() - began:5.0f} s  {line}", err=True)

    policy = learn(workload, lineage, QUICK if quick else ImitationSettings(), seed, progress)
    if placement:
        policy = with_placement(policy, progress, QUICK_CLUSTERS if quick else CLUSTERS)
    write(policy, output)
    ours = LearnedAllocation(policy)
    found = {
        title: [mean_seconds(workload, rule, SeedSplit.JUDGE, index) for index in range(episodes)]
        for title, rule in ((name, ours), *((rule, configured(rule)) for rule in BASELINES))
    }
    rows = []
    for title, seconds in found.items():
        less = Interval.of([theirs - mine for theirs, mine in zip(seconds, found[name], strict=True)])
        shown = "" if title == name else f"{less.mean:+,.0f} ({less.low:+,.0f} to {less.high:+,.0f})"
        rows.append((title, f"{sum(seconds) / episodes:,.0f}", shown))
    print_table(("POLICY", "MEAN-JCT", f"MINUS {name}"), rows, right=("MEAN-JCT",))
    click.echo(
        f"{output}: policy {name}@{policy.version}. Simulated seconds on {episodes} episodes of later jobs, with 95 % "
        "intervals (Student's t, paired)."
    )
