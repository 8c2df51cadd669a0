"""What stands in for kubelets and trainers ends cleanly, whatever it is at."""

from __future__ import annotations

import gc
import time

from apiserver import ApiServer
from fake_kubelet import FakeKubelet
from trainers import Trainers

import sweeps


def test_ended_at_any_moment_they_leave_no_connection_open(cluster: ApiServer) -> None:
    """Some of these moments lie within a TLS handshake; a socket that is left open is a warning, which is an error."""
    for moment in sweeps.sample("moments at which stand-ins end", range(20)):
        with FakeKubelet(cluster), Trainers(cluster):
            time.sleep(moment * 0.003)
        gc.collect()
