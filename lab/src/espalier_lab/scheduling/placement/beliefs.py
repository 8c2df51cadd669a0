"""A belief about the performance of a cluster: a Gaussian over its parameters, updated by trainers' measurements.

The parameters are logarithms: the slowness of each node, the sensitivity and the pressure of each kind of model
(interference is the product of the two: rank 1), and the bandwidths of network cards and uplinks. A measurement is the
formula of `performance` with noise; the update is an extended Kalman filter's (linear at the present mean; the
measurement is attributed to the slowest node or link at the mean). Parameters drift back to the prior over time (an
Ornstein-Uhlenbeck process), so that it follows a changing cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import GradientExchange, PlacedStepTime, Slowdown, exchange, slowdown
from espalier_lab.scheduling.placement.tasks import KINDS, kinds

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prior:
    """The belief about a cluster before any measurement; nodes are alike."""

    slowness: tuple[float, float]
    """Mean and variance of the logarithm, for each node."""
    rest: Floats
    """Means of sensitivity (kinds), pressure (kinds), and the two bandwidths."""
    covariance: Floats
    """Covariance of these."""

    def mean(self, nodes: int) -> Floats:
        """Return the mean of all parameters."""
        return np.concatenate([np.full(nodes, self.slowness[0]), self.rest])

    def full_covariance(self, nodes: int) -> Floats:
        """Return the covariance of all parameters."""
        size = nodes + len(self.rest)
        full = np.zeros((size, size))
        full[range(nodes), range(nodes)] = self.slowness[1]
        full[nodes:, nodes:] = self.covariance
        return full


def wide_prior() -> Prior:
    """Return the assumption of somebody who has seen no cluster: all kinds alike, with little certainty."""
    rest = np.concatenate([np.full(KINDS, -0.3), np.full(KINDS, -0.3), [np.log(6e9), np.log(6e9)]])
    return Prior((0.15, 0.3**2), rest, np.diag([0.8**2] * (2 * KINDS) + [0.6**2, 0.6**2]))


class Belief:
    """A belief about one cluster; also a `Performance`, of its mean."""

    def __init__(
        self,
        prior: Prior,
        nodes: int,
        *,
        memory_seconds: float = math.inf,
        noise: float = 0.15,
    ) -> None:
        """Begin at `prior`.

        `memory_seconds` is the time after which 1/e of a measurement is left; `noise` is the standard deviation of a
        measurement's logarithm, including the error of the formula.
        """
        self._nodes, self._memory, self._variance = nodes, memory_seconds, noise**2
        self._prior_mean, self._prior_covariance = prior.mean(nodes), prior.full_covariance(nodes)
        self._now = 0.0
        self.mean, self.covariance = self._prior_mean.copy(), self._prior_covariance.copy()
        self._tell()

    # ---- the performance of the mean

    def slowness(self, node: int) -> float:
        """Return the factor on the duration of a step relative to an ideal node."""
        return self._slowness[node]

    def interference(self, kind: int, other: int) -> float:
        """Return the relative slowdown of `kind` if `other` has all GPUs of its node."""
        return self._interference[kind][other]

    def nic_bytes(self) -> float:
        """Return the bytes per second through a network card."""
        return self._bandwidths[0]

    def uplink_bytes(self) -> float:
        """Return the bytes per second through the uplink of a rack."""
        return self._bandwidths[1]

    def _tell(self) -> None:
        nodes = self._nodes
        self._slowness: list[float] = np.exp(self.mean[:nodes]).tolist()
        sensitivity, pressure = self.mean[nodes : nodes + KINDS], self.mean[nodes + KINDS : nodes + 2 * KINDS]
        self._interference: list[list[float]] = np.exp(sensitivity[:, None] + pressure[None, :]).tolist()
        self._bandwidths: list[float] = np.exp(self.mean[-2:]).tolist()

    # ---- learning

    def pass_to(self, now: float) -> None:
        """Let time pass: measurements lose weight."""
        if now > self._now:
            kept = float(np.exp((self._now - now) / self._memory))
            self._now = now
            self.mean = self._prior_mean + kept * (self.mean - self._prior_mean)
            self.covariance = kept**2 * self.covariance + (1 - kept**2) * self._prior_covariance
            self._tell()

    def take_slowness(self, slowness: Floats) -> None:
        """Set the slowness of each node, (nodes) logarithms, for certain."""
        nodes = self._nodes
        self.mean[:nodes] = slowness
        self.covariance[:nodes] = self.covariance[:, :nodes] = 0.0
        self._tell()

    def learn(self, occupancy: Occupancy, name: str, placed: PlacedJob, measured: PlacedStepTime) -> None:
        """Update the belief by the measurement of a job's step."""
        worst = slowdown(self, occupancy, name, placed)
        ratio = measured.compute / kinds()[placed.kind].compute_seconds
        self._update(self.compute_gradient(occupancy, name, placed, worst), float(np.log(ratio / worst.ratio)))
        link = exchange(self, occupancy, placed)
        if link is not None and measured.exchange > 0:
            self._update(self._exchange_gradient(link), float(np.log(measured.exchange / link.seconds)))
        self._tell()

    def _update(self, gradient: Floats, error: float) -> None:
        spread = self.covariance @ gradient
        variance = float(gradient @ spread) + self._variance
        self.mean = self.mean + spread * (error / variance)
        self.covariance = self.covariance - np.outer(spread, spread) / variance

    def compute_gradient(self, occupancy: Occupancy, name: str, placed: PlacedJob, worst: Slowdown) -> Floats:
        """Return the derivative of the slowdown's logarithm with respect to the parameters."""
        gradient = np.zeros(len(self.mean))
        gradient[worst.node] = 1.0
        for other, (theirs, count) in occupancy.on_node[worst.node].items():
            if other != name:
                part = self.interference(placed.kind, theirs) * count / occupancy.node_gpus / (1 + worst.extra)
                gradient[self._nodes + placed.kind] += part
                gradient[self._nodes + KINDS + theirs] += part
        return gradient

    def _exchange_gradient(self, link: GradientExchange) -> Floats:
        gradient = np.zeros(len(self.mean))
        gradient[-1 if link.uplink else -2] = -1.0
        return gradient

    def doubt(self, occupancy: Occupancy, name: str, placed: PlacedJob) -> float:
        """Return the standard deviation of the seconds of a step."""
        worst = slowdown(self, occupancy, name, placed)
        gradient = self.compute_gradient(occupancy, name, placed, worst)
        compute = kinds()[placed.kind].compute_seconds * worst.ratio
        variance = compute**2 * float(gradient @ self.covariance @ gradient)
        link = exchange(self, occupancy, placed)
        if link is not None:
            at = -1 if link.uplink else -2
            variance += (link.seconds) ** 2 * float(self.covariance[at, at])
        return float(np.sqrt(variance))
