"""A study of a world model of rewriting (Ha and Schmidhuber 2018), and of a controller that learns in its dream.

Symbolic rewrites take a millisecond, so that a dream cannot win by speed. It can save steps of the real environment: it
only needs the recorded ones.

>>> episodes = record(environment, steps=1000, seed=0)
>>> world = learn_world(episodes, WorldSettings(), seed=0)
>>> controller = learn_controller(Dream(world, episodes[0].seen[0]), Settings(updates=25), seed=0)
>>> walks(Awake(environment, world), controller, evaluations=40).plan
"""

from espalier_lab.rewriting.learned.dreaming.awake import Awake
from espalier_lab.rewriting.learned.dreaming.buffer import Uniform, record
from espalier_lab.rewriting.learned.dreaming.controller import Controller, learn_controller
from espalier_lab.rewriting.learned.dreaming.dream import Dream
from espalier_lab.rewriting.learned.dreaming.judging import Judged, judged
from espalier_lab.rewriting.learned.dreaming.world import World, WorldSettings, learn_world

__all__ = [
    "Awake", "Controller", "Dream", "Judged", "Uniform", "World", "WorldSettings",
    "judged", "learn_controller", "learn_world", "record",
]  # fmt: skip
