"""Scripts with a loop of their own, run by real processes: what they have printed, and who has joined."""

from __future__ import annotations

import re

from espalier_trainer.user_loop.joining import WATCH
from trainer_processes import Workplace, members, of, until

OWN = """
import atexit, runpy
os.chdir({folder!r})
sys.argv = ["script", *{arguments!r}]
try:
    runpy.run_path({script!r}, run_name="__main__")
except Exception as error:
    sys.last_value = error  # as the interpreter itself has it at its end
    raise
finally:
    atexit._run_exitfuncs()  # a process of multiprocessing does not run them
"""


def another_process() -> None:
    """Let a loop join in this process, where another one may have done so before: a script's process joins once."""
    WATCH.joined = False


def epochs(log: str) -> dict[int, str]:
    """Return what was printed at the end of each epoch, the last time it ended."""
    return {int(number): said for number, said in re.findall(r"^epoch (\d+): (.*)\n", log, re.M)}


def shared(place: Workplace, interrupted: int | None = None) -> list[int]:
    """Return the epochs that both the leader and extra worker 0 saw to the end; they hold the same bits then.

    One that was `interrupted` ends in the worker when it is back, with the state of then.
    """
    ours, theirs = epochs(place.log), epochs(place.logs(0))
    both = sorted(ours.keys() & theirs.keys() - {interrupted})
    assert {number: ours[number] for number in both} == {number: theirs[number] for number in both}
    return both


def goes_on_together(place: Workplace, workers: int) -> None:
    """Wait until all workers have trained some epochs, after whatever is over, and hold the same bits."""
    come = max([0, *epochs(place.log)]) + 1  # of that, one may have seen a part

    def later(log: str) -> dict[int, str]:
        return {number: said for number, said in epochs(log).items() if number > come}

    until(lambda: members(place)[-1:] == [workers] and len(later(place.log)) > 2, place)
    for extra in range(workers - 1):
        until(lambda: len(later(place.logs(extra))) > 2, place)  # noqa: B023
        ours, theirs = later(place.log), later(place.logs(extra))
        both = sorted(ours.keys() & theirs.keys())
        assert both
        assert [ours[number] for number in both] == [theirs[number] for number in both]
    assert not any(event.reason == "MembersDiffer" for event in of(place, "Warned"))
