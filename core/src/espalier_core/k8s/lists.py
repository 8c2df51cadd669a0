"""Lists of objects, page by page. No I/O: a client asks for `query` and hands the answer to `take`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from espalier_core.k8s.resources import Raw, version_of


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind that selectors choose, and the version as of which they are all."""

    items: Sequence[Raw]
    version: int


class Pages:
    """The pages of one list. They are of one version, which an API server has for a few minutes.

    Where it no longer has that version (410), one answer with everything replaces them: it cannot expire. client-go's
    pager does the same.
    """

    def __init__(
        self, size: int, labels: str = "", fields: str = "", keep: Callable[[Raw], Raw] = lambda raw: raw
    ) -> None:
        """Ask for `size` objects a page; `labels` and `fields` are selectors, `keep` returns what to keep of one."""
        self._keep = keep
        self.query = selectors(labels, fields) | {"limit": str(size)}
        """Parameters of the next request."""
        self._items: list[Raw] = []

    def take(self, page: Raw) -> Listing | None:
        """Take a page; return the list if it was the last one, else ask on."""
        self._items += map(self._keep, page.get("items") or ())
        if token := page["metadata"].get("continue"):
            self.query["continue"] = token
            return None
        return Listing(self._items, version_of(page))

    def restart(self) -> bool:
        """Begin again after a version has expired, without pages; return False if there were none."""
        paged = self.query.pop("limit", None) is not None
        self.query.pop("continue", None)
        self._items = []
        return paged


def selectors(labels: str, fields: str) -> dict[str, str]:
    """Return the parameters of these selectors; an empty one is left out."""
    named = {"labelSelector": labels, "fieldSelector": fields}
    return {name: selector for name, selector in named.items() if selector}
