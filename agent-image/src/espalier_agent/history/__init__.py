"""What the service keeps of its decisions and their outcomes, and how it is read back.

>>> from espalier_agent.history import decisions
>>> for decision in decisions(Path("outcomes.db")): ...
"""

from espalier_agent.history.reading import HistoryDecision, ShadowAnswer, decisions, history_files

__all__ = ["HistoryDecision", "ShadowAnswer", "decisions", "history_files"]
