"""What a leader knows of workers outside of its group: who waits for a place, who leaves, who carries out an order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable

from espalier_trainer.elastic.membership import Arrival, Plan, chosen
from espalier_trainer.elastic.rendezvous import RendezvousServer
from espalier_trainer.process.settings import Rendezvous

logger = logging.getLogger(__name__)


class Arrivals:
    """Reads the rendezvous, and answers there."""

    def __init__(self, rendezvous: Rendezvous, clock: Callable[[], float]) -> None:
        """Open the rendezvous; raises `RendezvousError`."""
        self.rendezvous, self._clock = RendezvousServer(rendezvous), clock
        self.waiting: dict[str, Arrival] = {}
        self.listened = 0.0
        """When it was last read, by `clock`."""
        self._leaving: set[str] = set()
        self._apart: dict[str, str] = {}
        """The results of workers that carry out an order, or have ('' until it is known): they take no part."""

    def listen(self) -> None:
        """Read what workers have written."""
        self.listened = self._clock()
        for arrival in self.rendezvous.listen():
            if arrival.leaving:
                self._leaving.add(arrival.worker)
                self.waiting.pop(arrival.worker, None)
                self._apart.pop(arrival.worker, None)
                logger.info("%s leaves", arrival.name)
            else:
                self.waiting[arrival.worker] = arrival
                if arrival.worker in self._apart:
                    self._apart[arrival.worker] = arrival.result

    def chosen(self, candidates: Iterable[Arrival], replicas: int, out: Collection[str]) -> tuple[Arrival, ...]:
        """Return the members for a job of `replicas` workers; those in `out` are excluded."""
        gone = self._leaving | self.rendezvous.silent() | self._apart.keys() | set(out)
        present = {each.worker: each for each in candidates if each.worker not in gone}
        return chosen(present.values(), replicas)

    def gather(self, expected: set[str], seconds: float) -> None:
        """Wait until all `expected` that do not leave have arrived, or until the time is over."""
        deadline = self._clock() + seconds
        expected = expected - self._leaving
        while not expected <= self.waiting.keys() and self._clock() < deadline:
            time.sleep(0.001)
            self.listen()
            expected -= self._leaving

    def answer(self, plan: Plan, before: Iterable[str]) -> None:
        """Send a plan to its members, and to those of the generation `before` that wait in vain."""
        let_go = [name for name in before if name in self.waiting and name not in plan.members]
        for name in (*plan.members[1:], *let_go):
            self.waiting.pop(name, None)
            self.rendezvous.answer(name, plan)
        self._leaving.clear()

    # ---- orders

    def begin_orders(self, workers: Iterable[str]) -> None:
        """Prepare for what these workers will tell of their orders."""
        for worker in workers:
            self.rendezvous.begin_order(worker)

    def ordered(self, workers: Iterable[str]) -> None:
        """Take note that these workers carry out an order each."""
        self._apart = dict.fromkeys(workers, "")

    def results(self) -> dict[str, str]:
        """Return by worker what came of the orders that have been carried out."""
        self.listen()
        return {worker: result for worker, result in self._apart.items() if result}

    def reported(self) -> dict[str, str]:
        """Return by worker how far the orders are that are being carried out, as far as they have reported."""
        found = {worker: self.rendezvous.reported(worker) for worker, result in self._apart.items() if not result}
        return {worker: text for worker, text in found.items() if text}

    def dismiss(self, worker: str) -> None:
        """Let a worker break its order off."""
        if self._apart.pop(worker, None) == "":
            self.rendezvous.dismiss(worker)

    def dismiss_all(self) -> None:
        """Let all workers break their orders off."""
        for worker in list(self._apart):
            self.dismiss(worker)
