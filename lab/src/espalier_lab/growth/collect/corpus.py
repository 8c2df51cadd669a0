"""`espalier agent collect --corpus`: the decisions of many models, written into one file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from espalier_cli.errors import InputError
from espalier_core.growth.block import ADD_BLOCK
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_lab.growth.progress_line import ProgressLine

if TYPE_CHECKING:
    from espalier_lab.growth.judge.deciding import Setting


class Way(StrEnum):
    """The state in which a model comes to the decisions of a record."""

    PLAIN = "plain"
    """The model has never grown, and its steps keep their speed."""
    GROWN = "grown"
    """The model has grown at the first moment."""
    FASTER = "faster"
    """From each decision on, more workers make its steps faster, whether it grows or not."""
    INSERTED = "inserted"
    """The model has never grown, and may add only whole blocks: exact, scaled, or unfolding."""
    EVERY = "every"
    """As `PLAIN`, and whole blocks are also inserted scaled and unfolding."""
    AGAIN = "again"
    """As `EVERY`, but the model has grown at the first moment, whole blocks in one of these ways."""
    WIDENED = "widened"
    """The model has never grown, and may only widen. Where blocks may be added, those of a run must stay equal, so that
    channels within one are not widened, such as those of the MLPs of transformers."""


_USUAL: Final = (Way.PLAIN, Way.GROWN, Way.FASTER)


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """Options of the collection."""

    name: str
    """Name of a set of families, or of a Python file with `cases()`."""
    moments: tuple[float, ...]
    """Shares of the budget, ascending."""
    most: int
    """Maximum number of growths tried on a model, and again as many that widen."""
    ways: Sequence[Way]
    """Ways to collect; empty: all of `_USUAL` that these moments allow."""
    speed: float
    """Speed-up for `Way.FASTER`."""
    seeds: Sequence[int]
    part: tuple[int, int] = (1, 1)
    """Number of the part, from 1, and number of parts of the cases."""

    def chosen(self) -> list[Way]:
        """Return the ways; raise `InputError` if the moments do not allow a requested one."""
        wanted = set(self.ways or _USUAL)
        if len(self.moments) == 1:
            for way in {Way.GROWN, Way.AGAIN} & {*self.ways}:
                raise InputError(f"--way {way}: needs two --moments, one to grow at and one to decide at; name two")
            wanted.discard(Way.GROWN)
        return [way for way in Way if way in wanted]

    def source(self) -> str:
        """Return the command that makes the same corpus with one seed."""
        moments = ",".join(f"{share * 100:g}%" for share in self.moments)
        return " ".join(
            (
                f"espalier agent collect --corpus {Path(self.name).name} --moments {moments} --most {self.most}",
                *(f"--way {way}" for way in self.chosen()),
                f"--throughput {self.speed:g}",
                *(["--part {}/{}".format(*self.part)] if self.part[1] > 1 else []),
            )
        )


def collect_corpus(
    options: CorpusOptions, parallel: int, work_dir: Path | None, output: Path, *, restart: bool = False
) -> None:
    """Train all arms of all cases in all ways, seed by seed, and write the corpus.

    Finished runs are kept in the work folder, and used unless `restart` is set; a file of cases has a folder for its
    contents, as a changed file has other cases. The corpus is written after each seed, so that a part can be used
    already. Raise `InputError`.
    """
    from espalier_core.types.outcomes import GrowthCorpus, write_corpus
    from espalier_lab.growth.corpus.families import SETS
    from espalier_lab.growth.judge.case import CaseError, CaseFile, Cases
    from espalier_lab.growth.judge.judging import made
    from espalier_lab.growth.judge.running import Runner
    from espalier_lab.growth.judge.tasks import Arms

    name = options.name
    if name not in SETS and not name.endswith(".py"):
        raise InputError(f"--corpus {name!r}: no such set of families ({', '.join(SETS)}), and no file of Python")
    if not output.absolute().parent.is_dir():
        raise InputError(f"{output}: there is no folder {output.absolute().parent}")
    settings = _settings(options)
    folder = work_dir or output.with_name(f"{output.name}.work")
    records = []
    try:
        make: Cases = SETS.get(name) or CaseFile(name)
        if isinstance(make, CaseFile):
            folder /= make.digest()[:12]
        cases = made(make)
        if restart:
            for done in folder.glob("*.json"):
                done.unlink()
        number, parts = options.part
        if parts > len(cases):
            raise InputError(f"--part {number}/{parts}: there are {len(cases)} cases; name as many parts at most")
        places = range(number - 1, len(cases), parts)
        with Runner(make, cases, folder, parallel) as runner:
            for seed in options.seeds:
                tasks = [Arms(place, seed, setting) for setting in settings for place in places]
                found = runner.run(tasks, ProgressLine(f"cases of seed {seed}"), time.monotonic)
                records += [record for record in found if record.moments]
                if not records:
                    raise InputError(
                        f"--corpus {name}: no model in it can grow as asked, so there is nothing to decide"
                    )
                corpus = GrowthCorpus(name=Path(name).stem, source=options.source(), cases=tuple(records))
                write_corpus(corpus, output)
    except (CaseError, OSError) as error:
        raise InputError(str(error)) from error
    families = len({record.family for record in records})
    click.echo(f"{output}: {len(records)} records of {families} families, {output.stat().st_size / 1024:.0f} KiB")


def _settings(options: CorpusOptions) -> list[Setting]:
    from espalier_core.types.job import Insertion
    from espalier_lab.growth.judge.deciding import OPERATIONS, Setting

    plain = Setting(options.moments, (*OPERATIONS, WIDEN.name), options.most)
    inexact = (Insertion.SCALED, Insertion.UNFOLD)
    known = {
        Way.PLAIN: plain,
        Way.GROWN: replace(plain, grown=True),
        Way.FASTER: replace(plain, speed=options.speed),
        Way.INSERTED: replace(plain, inserted=inexact, only=ADD_BLOCK.name),
        Way.EVERY: replace(plain, inserted=inexact),
        Way.AGAIN: replace(plain, inserted=inexact, grown=True),
        Way.WIDENED: replace(plain, operations=(DEEPEN.name, WIDEN.name), only=WIDEN.name),
    }
    return [known[way] for way in options.chosen()]


def part_of(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, int]:
    """Return the part in a text like `2/8`."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise click.BadParameter(f"{text!r} is not a part; write 2/8 for the second of eight")
    return int(number), int(parts)
