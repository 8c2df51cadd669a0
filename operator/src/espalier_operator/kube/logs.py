"""The operator's log: lines for people, or JSON for what collects them. To stderr."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

TEXT, JSON = "text", "json"


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(level: str, style: str) -> None:
    """Log everything of `level` and above in `style`; of kopf and libraries what matters to who runs an operator."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == JSON else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        for noisy in ("kopf.activities", "kopf._core.engines.activities", "aiohttp.access"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for each event of each object
