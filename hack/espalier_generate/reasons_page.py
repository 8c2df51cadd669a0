"""The page of all reasons, generated from their sentences and remedies.

`python -m espalier_generate.reasons_page` prints it; with a path, it writes it there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from espalier_cli.cluster.remedies import remedy_for
from espalier_core.files.documents import print_or_write
from espalier_core.types.reasons import SENTENCES, Reason

_HEAD: Final = """\
# Reasons, and what to do

<!-- Written by `make docs` from core/src/espalier_core/types/reasons.py and cli/src/espalier_cli/cluster/remedies.py;
change it there. -->

Espalier explains the state of a job with one of these reasons. You find them in the job's conditions and Events, in
the label `reason` of metrics, in the column REASON of `espalier list`, and in `espalier explain JOB`, which adds the
job's own figures and names. In the commands on this page, NAME is the job, NAMESPACE its namespace, LEADER the pod of
its leader, and QUEUE its queue.
"""


def page() -> str:
    """Return the page: each reason with its sentence, what would change it, and the commands to run."""
    return "\n".join([_HEAD, *(line for reason in Reason for line in _section(reason))])


def _section(reason: Reason) -> Iterator[str]:
    remedy = remedy_for(reason, name="NAME", namespace="NAMESPACE", leader="LEADER", queue="QUEUE")
    sentence = SENTENCES[reason]
    yield f"## {reason}\n"
    yield f"{sentence[0].upper()}{sentence[1:]}.\n"
    yield f"**What would change it** {remedy.text}\n"
    if remedy.commands:
        yield "\n".join(["```sh", *remedy.commands, "```\n"])


def main(arguments: Sequence[str]) -> None:
    """Print the page, or write it to the given path."""
    print_or_write(page(), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
