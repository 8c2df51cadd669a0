"""Architectures of any graph, drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer

attributes = st.dictionaries(
    st.sampled_from(["in_channels", "out_channels", "kernel_size", "bias"]) | st.text(max_size=4),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=4).map(tuple),
    max_size=3,
)


@st.composite
def graphs(draw: st.DrawFn, least_points: int = 0) -> Architecture:
    """Any DAG: branches, several inputs and outputs, growth points anywhere, some grown."""
    count = draw(st.integers(max(least_points, 1), 10))
    layers: list[Layer] = []
    for index in range(count):
        layers.append(
            Layer(
                name=f"layer{index}",
                operator=draw(st.sampled_from(["Conv2d", "Linear", "Add", "ReLU", "Input"]) | st.text(max_size=6)),
                attributes=draw(attributes),
                inputs=tuple(layer.name for layer in layers if draw(st.booleans())),
                parameters=draw(st.integers(0, 10**12)),
            )
        )
    points = tuple(
        GrowthPoint(
            id=f"point{index}",
            kind="Linear",
            after=f"layer{index}",
            block=f"grown{index}",
            grown=draw(st.integers(0, 3)),
            insertion=(Layer(name="added", operator="Linear", attributes=draw(attributes), inputs=("",)),),
        )
        for index in range(draw(st.integers(least_points, count)))
    )
    return Architecture(layers=tuple(layers), outputs=(f"layer{count - 1}",), growth_points=points)
