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
        self._woken = threading.Event()

    def start(self) -> None:
        """Makes the thread run if it does not, and look if it does: what is idle now may be due first."""
        with self._lock:
            self._woken.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="humming-compile-idle", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending, and with it go all workers
                    self._thread = None

    def before_fork(self) -> None:
        """Stops the thread and waits until it has ended. There should be nothing idle then that it would miss."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._woken.set()
        if thread is not None:
            thread.join()
            # The system counts it for a moment longer, and that count is what Python looks at.
            deadline = time.monotonic() + _LINGER_SECONDS
            while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
                time.sleep(0.0002)

    def after_fork_in_child(self) -> None:
        """Forgets the parent's thread and its locks."""
        self._reset()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            seconds = self._look()
            with self._lock:
                if self._thread is not threading.current_thread():  # stopped
                    return
                if seconds is None and not self._woken.is_set():
                    self._thread = None
                    return
            self._woken.wait(seconds)
