"""The follower: notices what the store has published and asks the coordinator for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sync.coordinator import Coordinator, EnginePoisoned, SyncBusy
from sync.errors import PublicationError, StoreError
from sync.stores.base import Store

logger = logging.getLogger("rollout.follower")
LONGEST_RETRY_S = 60.0


class Follower:
    """Polls `latest` every `interval_s` and syncs to it.

    A version that was refused is tried again with growing pauses (the trainer may publish it again), at once when
    the store names another one. `on_poisoned` is called once, when the engine must stop.
    """

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        *,
        interval_s: float,
        on_poisoned: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._interval_s = interval_s
        self._on_poisoned = on_poisoned
        self._refused: int | None = None
        self._retry_at_s = 0.0
        self._retry_pause_s = interval_s
        self.caught_up = asyncio.Event()
        """Set once the replica served what the store named, or the store was empty."""

    async def run(self) -> None:
        """Follows until cancelled."""
        while True:
            try:
                target = await asyncio.to_thread(self._store.latest)
                if target is None or target <= self._coordinator.version:
                    self.caught_up.set()
                elif target != self._refused or time.monotonic() >= self._retry_at_s:
                    await self._follow(target)
            except EnginePoisoned as error:
                self._on_poisoned(error)
                return
            except SyncBusy:
                pass  # Somebody else asked for a version; look again afterwards.
            except (StoreError, PublicationError) as error:
                logger.warning("following %s: %s", self._store.url, error)
            except Exception:
                # Whatever it was, the old version is served; a follower that ended would never try again.
                logger.exception("following %s failed unexpectedly", self._store.url)
            await asyncio.sleep(self._interval_s)

    async def _follow(self, target: int) -> None:
        self._retry_pause_s = (
            min(self._retry_pause_s * 2, LONGEST_RETRY_S) if target == self._refused else self._interval_s
        )
        self._refused, self._retry_at_s = target, time.monotonic() + self._retry_pause_s
        await self._coordinator.sync(target)
        self._refused = None
        self.caught_up.set()
