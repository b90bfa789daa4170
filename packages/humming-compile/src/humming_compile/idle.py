"""Ends workers that have had no work for a while: one thread for all pools, which runs only while some worker is idle.

Called by pool when a worker becomes idle, and around forks.
Assumes that pools end their own workers; this file only says when to look.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LINGER_SECONDS = 0.1


class IdleWatch:
    """Calls `look`, which ends what has been idle for too long and returns the seconds until the next look, or None.

    The thread ends when `look` returns None and starts again with `start`. It is ended before a fork: a child must not
    begin while it holds a lock, and Python warns about forks of processes that have threads.
    """

    def __init__(self, look: Callable[[], float | None]) -> None:
        self._look = look
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Makes the thread run if it does not."""
        with self._lock:
            if self._thread is None:
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stopped,), name="humming-compile-idle", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending, and with it go all workers
                    self._thread = None

    def before_fork(self) -> None:
        """Stops the thread and waits until it has ended. There should be nothing idle then that it would miss."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopped.set()
        if thread is not None:
            thread.join()
            # The system counts it for a moment longer, and that count is what Python looks at.
            deadline = time.monotonic() + _LINGER_SECONDS
            while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
                time.sleep(0.0002)

    def after_fork_in_child(self) -> None:
        """Forgets the parent's thread and its locks."""
        self._reset()

    def _run(self, stopped: threading.Event) -> None:
        while True:
            seconds = self._look()
            with self._lock:
                if seconds is None and not stopped.is_set():
                    # Asked again under the lock: a worker may have become idle after the look, and `start` not have
                    # started anything since this thread still ran.
                    seconds = self._look()
                    if seconds is None:
                        self._thread = None
                        return
            if stopped.wait(seconds):
                return
