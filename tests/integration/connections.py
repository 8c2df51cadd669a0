"""What is left of connections when asyncio code that used them was cancelled: `abort_connections`."""

from __future__ import annotations

import asyncio


async def abort_connections() -> None:
    """Abort all connections of the running event loop, which is about to end.

    httpcore closes its own, but forgets one whose TLS handshake was cancelled: its socket would be left open.
    """
    transports = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]  # asyncio has no public word for it
    for transport in list(transports.values()):
        transport.abort()
    # What abort leaves to do, it asks for soon.
    await asyncio.sleep(0)
