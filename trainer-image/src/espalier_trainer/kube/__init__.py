"""The trainer on Kubernetes: the leader watches its own job and patches its own report.

Importing this package imports the Kubernetes client, so the trainer does it only in a cluster.
"""

from espalier_core.k8s.client import NoAccessError
from espalier_trainer.kube.reporter import ConfigMapReporter
from espalier_trainer.kube.watch import JobWatch, connect

__all__ = ["ConfigMapReporter", "JobWatch", "NoAccessError", "connect"]
