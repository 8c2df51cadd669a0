"""Images with their channels together in memory; later layers keep the layout, up to one that draws random numbers."""

from __future__ import annotations

from collections.abc import Iterator

from espalier_lab.rewriting.engine.editing import GraphEdit
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule


def _find(graph: OpGraph, anchor: str) -> Iterator[Location]:
    node = graph.nodes[anchor]
    if not node.is_images or node.value.channels_last:
        return
    users = [graph.nodes[name] for name in graph.users[anchor]]
    if any(user.operator in ("conv2d", "module") for user in users):
        yield (anchor,)


def _rewrite(graph: OpGraph, location: Location) -> OpGraph:
    edit = GraphEdit(graph, location[0])
    laid = edit.add("channels_last", [location[0]])
    edit.replace(location[0], laid, keep=frozenset({laid}))
    for name in graph.ordered():
        if graph.nodes[name].effect == "random":
            _draw_as_before(graph, edit, name)
    return edit.done()


def _draw_as_before(graph: OpGraph, edit: GraphEdit, name: str) -> None:
    """Give a node that draws random numbers an input in the old layout, so that it draws the same."""
    for one, before in zip(edit.node(name).inputs, graph.nodes[name].inputs, strict=True):
        if edit.node(one).meta != graph.nodes[before].meta:
            first = edit.add("channels_first", [one])
            edit.replace(one, first, keep=edit.users(one) - {name})


RULE = RewriteRule(
    name="ChannelsLast",
    source="Jia et al. 2019, Optimizing DNN computation with relaxed graph substitutions (MLSys), section 2 (layouts)",
    anchors=frozenset({"input"}),
    reach=2,
    find=_find,
    rewrite=_rewrite,
)
