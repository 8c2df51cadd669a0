"""What ServiceAccounts have asked an API server for, as that wrote it down: `Audit`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apiserver import ApiServer

Raw = dict[str, Any]
Right = tuple[str, str, str]
"""Group, resource and verb."""
_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
"""


def audit_flags(folder: Path) -> Sequence[str]:
    """Return the options of an API server in `folder` that writes down what ServiceAccounts ask for."""
    (folder / "audit.yaml").write_text(_POLICY)
    return f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={folder / 'audit.log'}"


class Audit:
    """What an account has asked the API server for, as that wrote it down."""

    def __init__(self, server: ApiServer, namespace: str, account: str) -> None:
        """From the start of the log."""
        self._log = server.directory / "audit.log"
        self._user = f"system:serviceaccount:{namespace}:{account}"

    def entries(self) -> Iterator[Raw]:
        """Yield the requests for objects."""
        for line in self._log.read_text().splitlines():
            entry = json.loads(line)
            if entry["user"]["username"] == self._user and "objectRef" in entry:
                yield entry

    def used(self) -> set[tuple[str | None, Right]]:
        """Return by namespace (None: all at once) the rights that were used."""
        found = set()
        for entry in self.entries():
            if entry["annotations"]["authorization.k8s.io/decision"] == "allow":
                what = entry["objectRef"]
                resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
                found.add((what.get("namespace"), (what.get("apiGroup", ""), resource, entry["verb"])))
        return found

    def forbidden(self) -> list[str]:
        """Return what was refused."""
        return [
            f"{entry['verb']} {entry['requestURI']}"
            for entry in self.entries()
            if entry["annotations"]["authorization.k8s.io/decision"] != "allow"
        ]
