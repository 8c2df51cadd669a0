"""Images whose channels lie together in memory; the layers after it keep the layout as far as they can."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_trainer.rewriting.editing import Edit
from espalier_trainer.rewriting.graph import Graph
from espalier_trainer.rewriting.rules.rule import Location, Rule

_IMAGES = 4


def _find(graph: Graph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    if len(node.shape) != _IMAGES or node.value.channels_last:
        return
    users = [graph.nodes[name] for name in graph.users[anchor]]
    if any(user.operator in ("conv2d", "module") for user in users):
        yield (anchor,)


def _rewrite(graph: Graph, location: Location) -> Graph:
    edit = Edit(graph, location[0])
    laid = edit.add("channels_last", [location[0]])
    edit.replace(location[0], laid, keep=frozenset({laid}))
    return edit.done()


RULE = Rule(
    name="ChannelsLast",
    source="Jia et al. 2019, Optimizing DNN computation with relaxed graph substitutions (MLSys), section 2 (layouts)",
    anchors=frozenset({"input"}),
    reach=2,
    find=_find,
    rewrite=_rewrite,
)
