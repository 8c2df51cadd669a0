"""The api's `Architecture` of a traced model."""

from __future__ import annotations

from espalier_api.architecture import Architecture
from espalier_api.channels import Channels
from espalier_api.job import Insertion
from espalier_trainer.net2net.deepening.points import Places
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.widening.description import insertion_channels


def architecture_of(
    graph: Graph, places: Places, insertion: Insertion, channels: Channels | None = None
) -> Architecture:
    """Return the description of a trace and its places, the points telling what `insertion` would add.

    `channels` is that of the trace, where the description is to tell it.
    """
    return Architecture(
        layers=graph.layers(),
        outputs=graph.outputs,
        growth_points=tuple(
            place.point(insertion, None if channels is None else insertion_channels(place.block.variant(insertion)))
            for place in places.found
        ),
        channels=channels,
    )
