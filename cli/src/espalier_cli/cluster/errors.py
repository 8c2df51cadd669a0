"""What goes wrong between a person and a cluster: one line with the cause, then a hint."""

from __future__ import annotations

from espalier_cli.errors import BadInput


class ClusterError(BadInput):
    """The cluster does not do what it was asked for."""

    exit_code = 1


class UnreachableError(ClusterError):
    """The API server does not answer, or not now: trying again may help."""


class ForbiddenError(ClusterError):
    """The person lacks a right; the message names it."""


class NotFoundError(ClusterError):
    """There is no such object."""

    exit_code = 2


class ExpiredError(ClusterError):
    """The API server has forgotten the moment from which it was to go on (410): everything is to be listed anew."""
