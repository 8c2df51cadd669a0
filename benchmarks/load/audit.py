"""The operator's requests, as the API server's audit log has them: kopf's lists and watches, and tries, are counted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

OPERATOR: Final = "system:serviceaccount:espalier-system:espalier-operator"
_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
}


def audit_flags(directory: Path) -> tuple[str, ...]:
    """Write the policy into `directory` and return the API server's options for it."""
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(_POLICY))
    return (f"--audit-policy-file={policy}", f"--audit-log-path={directory / 'audit.log'}")


@dataclass
class Audit:
    """Reads the log as it grows."""

    directory: Path
    _read: int = field(init=False, default=0)

    def take(self) -> Counter[str]:
        """Return by `verb resource` the requests since the last call, those of the Lease left out."""
        counted: Counter[str] = Counter()
        with (self.directory / "audit.log").open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # being written
                self._read += len(line)
                counted.update(_named(json.loads(line)))
        return counted


def _named(entry: dict[str, Any]) -> list[str]:
    reference = entry.get("objectRef", {})
    # A watch is entered when it begins and when it ends.
    begins = entry["stage"] == ("ResponseStarted" if entry["verb"] == "watch" else "ResponseComplete")
    if reference.get("resource") == "leases" or not begins:
        return []
    subresource = reference.get("subresource")
    return [f"{entry['verb']} {reference.get('resource', 'other')}{f'/{subresource}' if subresource else ''}"]
