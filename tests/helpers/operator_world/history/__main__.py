"""Plays histories, one after the other: `python -m operator_world.history --histories 1000 --steps 500`.

Each is drawn from its own seed, the first from `--seed` and each next one from the number after it. One that breaks a
clause is printed with all that happened in it, and played again by `--seed N --histories 1`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter

import sweeps
from operator_world.history.story import Story


def main() -> int:
    """Return the exit status: 1 where a history breaks a clause."""
    parser = argparse.ArgumentParser(prog="make histories ARGS=", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="things that happen in each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=sweeps.SEED, help="of the first (default: the day)")
    parser.add_argument("--keep-going", action="store_true", help="after a history that breaks a clause")
    asked = parser.parse_args()
    gc.set_threshold(50_000, 50, 50)
    logging.disable(logging.CRITICAL)  # the operator's words about failing calls, which are meant to fail
    print(f"{asked.histories} histories of {asked.steps} steps, from seed {asked.seed}", flush=True)
    checked, broken, said = Counter[str](), list[int](), time.monotonic()
    for number in range(asked.histories):
        story = Story(asked.seed + number)
        try:
            story.run(asked.steps)
        except Exception as error:
            broken.append(story.seed)
            _tell(story, error, asked.steps)
            if not asked.keep_going:
                return 1
        for each in story.operators:
            checked += each.clauses.checked
        if time.monotonic() - said > 30 or number + 1 == asked.histories:
            said = time.monotonic()
            print(f"{number + 1} histories, {len(broken)} broken, {time.process_time():.0f} CPU s", flush=True)
    print("judged: " + ", ".join(f"{what} {count}" for what, count in sorted(checked.items())))
    return 1 if broken else 0


def _tell(story: Story, error: Exception, steps: int) -> None:
    print("\n".join(story.lines))
    for each in story.operators:
        for refusal in each.clauses.plan.refusals.values():
            print(f"refused: {refusal}")
    for name, queue in story.world.queues.items():
        print(f"queue {name}: {queue['spec']}")
    for key, node in story.world.nodes.items():
        print(f"{key}: {node['metadata']['labels']} {node['spec']} {node['status']} holds {story.world.held()[key]}")
    print(f"seed {story.seed}: {type(error).__name__}: {error}")
    print(f"play it again: make histories ARGS='--seed {story.seed} --histories 1 --steps {steps}'", flush=True)


if __name__ == "__main__":
    sys.exit(main())
