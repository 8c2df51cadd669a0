"""Reloads the policy while the service runs: a thread checks the policy's folder every second.

What is looked at is the identity of the files, links followed: a folder that is written again, a renamed file and a
volume of Kubernetes whose link is switched are all noticed. A new policy is read, checked and asked once before it
takes the old one's place, which is one assignment; one that cannot be used is refused and the old one continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from espalier_agent.data import named_architecture
from espalier_agent.policies.advice import decide
from espalier_agent.policies.files import POLICY_FILE, PolicyError, load_policy
from espalier_agent.policies.policy import Policy
from espalier_core.types.advice import AdviceRequest

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 60.0
"""A refused policy is tried again after this time, even if unchanged: its disk may have been unavailable."""

Signature = tuple[tuple[str, int, int, int, int], ...]


class PolicyWatch:
    """Holds the latest usable policy of a folder. Without a folder it keeps the first one."""

    def __init__(
        self,
        policy: Policy,
        folder: Path | None,
        *,
        look_seconds: float = LOOK_SECONDS,
        switched: Callable[[Policy, Policy], None] = lambda old, new: None,
        refused: Callable[[PolicyError], None] = lambda error: None,
    ) -> None:
        """`policy` may have been read from the folder some time ago: the first look reads it again.

        `switched` receives the old and the new policy, `refused` why one was not used; both in the watch's thread.
        """
        self.current = policy
        """Read it once per request."""
        self.folder = folder
        self._look_seconds = look_seconds
        self._switched = switched
        self._refused = refused
        self._seen: Signature | None = None
        self._tried = 0.0
        self._in_use = True
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="policy-watch", daemon=True)

    def start(self) -> None:
        """Start checking."""
        if self.folder is not None:
            self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop; waits for at most this many seconds for a running check."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def look(self) -> None:
        """Use the folder's policy if it has changed and is usable."""
        if self.folder is None:
            return
        # Before it is read: what changes meanwhile is noticed at the next look.
        signature = _signature(self.folder)
        now = time.monotonic()
        known = signature == self._seen
        if known and (self._in_use or now - self._tried < AGAIN_SECONDS):
            return
        self._seen, self._tried = signature, now
        try:
            policy = _sound(self.folder)
        except PolicyError as error:
            self._in_use = False
            if not known:
                logger.error(
                    "a policy is refused, %s@%s stays in service: %s", self.current.name, self.current.version, error
                )
                self._refused(error)
            return
        self._in_use = True
        old = self.current
        if (policy.identity, policy.lineage) != (old.identity, old.lineage):
            self.current = policy
            logger.info("policy %s@%s replaces %s@%s", policy.name, policy.version, old.name, old.version)
            self._switched(old, policy)

    def _watch(self) -> None:
        # torch's number of threads is set for each thread.
        torch.set_num_threads(1)
        self._look_safely()
        while not self._stop.wait(self._look_seconds):
            self._look_safely()

    def _look_safely(self) -> None:
        """Check the folder; a fault of the disk is logged once until a check succeeds, and ends nothing."""
        try:
            self.look()
        except OSError as error:
            if not self._failing:
                logger.error("%s: cannot be checked (%s); retrying", self.folder, error)
            self._failing = True
        else:
            self._failing = False


def _signature(folder: Path) -> Signature:
    """Return a key that distinguishes the files of a policy from others: not their contents, which would be read every
    second.

    Unreadable files are left out: reading the policy reports why.
    """
    found = []
    try:
        weights = sorted(folder.glob("*.safetensors"))
    except OSError:  # Unavailable or unreadable: some versions of Python raise it, others do not.
        weights = []
    for path in (folder / POLICY_FILE, *weights):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path.name, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _sound(folder: Path) -> Policy:
    """Read a policy and test it with a known request; raises `PolicyError` on any failure."""
    request = AdviceRequest(
        job="trial", architecture=named_architecture("cnn1"), time_left_seconds=50.0, time_budget_seconds=100.0
    )
    try:
        policy = load_policy(folder)
        decide(policy, request)
    except PolicyError:
        raise
    except Exception as error:  # Any error: it must not end the thread, and would have failed a job's request.
        raise PolicyError(f"{folder}: the policy fails at a test request ({type(error).__name__}: {error})") from error
    return policy
