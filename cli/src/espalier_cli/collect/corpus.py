"""`espalier agent collect --corpus`: the decisions of many models, written into one file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from espalier_cli.collect.progress_line import ProgressLine
from espalier_cli.errors import InputError


def collect_corpus(
    name: str,
    moments: tuple[float, ...],
    most: int,
    seeds: Sequence[int],
    parallel: int,
    work_dir: Path | None,
    output: Path,
) -> None:
    """Train all arms of all cases, first of one seed, then of the next, and write the corpus.

    What is done is kept in the work folder. The file is written after each seed, so that a part can be used already.
    Raises `InputError`.
    """
    from espalier_api.growth_corpus import GrowthCorpus, write_corpus
    from espalier_cli.corpus.families import SETS
    from espalier_cli.judge.case import CaseError, CaseFile, Cases
    from espalier_cli.judge.deciding import Setting
    from espalier_cli.judge.judging import made
    from espalier_cli.judge.running import Runner
    from espalier_cli.judge.tasks import Arms

    if name not in SETS and not name.endswith(".py"):
        raise InputError(f"--corpus {name!r}: no such set of families ({', '.join(SETS)}), and no file of Python")
    if not output.absolute().parent.is_dir():
        raise InputError(f"{output}: there is no folder {output.absolute().parent}")
    make: Cases = SETS.get(name) or CaseFile(name)
    setting = Setting(moments, most=most)
    folder = work_dir or output.with_name(f"{output.name}.work")
    records = []
    try:
        cases = made(make)
        with Runner(make, cases, folder, parallel) as runner:
            for seed in seeds:
                tasks = [Arms(place, seed, setting) for place in range(len(cases))]
                records += runner.run(tasks, ProgressLine(f"cases of seed {seed}"), time.monotonic)
                told = ",".join(f"{share:.0%}" for share in moments)
                source = f"espalier agent collect --corpus {Path(name).name} --moments {told} --most {most}"
                corpus = GrowthCorpus(name=Path(name).stem, source=source, cases=tuple(records))
                write_corpus(corpus, output)
    except (CaseError, OSError) as error:
        raise InputError(str(error)) from error
    families = len({record.family for record in records})
    click.echo(f"{output}: {len(records)} records of {families} families, {output.stat().st_size / 1024:.0f} KiB")
