"""Work in a thread of its own: an index is brought up to date while questions are answered."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread


class Behind:
    """Runs a function in a thread, again and again as it is asked to.

    Args:
        work: function to run. It is never run twice at once.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._changed = Condition()
        self._asked = self._done = 0
        self._is_running = False
        self._error: Exception | None = None

    def ask(self) -> int:
        """Have the work done once from its beginning, at once or after the present run. Return a ticket for it."""
        with self._changed:
            self._asked += 1
            if not self._is_running:
                self._is_running = True
                Thread(target=self._run, name="behind", daemon=True).start()
            return self._asked

    def is_done(self, ticket: int, seconds: float | None = 0.0) -> bool:
        """Wait for the work of a ticket; return whether it is done.

        Args:
            ticket: number from `ask`.
            seconds: longest time to wait; None for no limit.

        Raises:
            Exception: the error with which the last run ended.
        """
        with self._changed:
            is_done = self._changed.wait_for(lambda: self._done >= ticket, seconds)
            if is_done and self._error is not None:
                raise self._error.with_traceback(None)
            return is_done

    def _run(self) -> None:
        while True:
            with self._changed:
                ticket = self._asked
                if ticket == self._done:
                    self._is_running = False
                    return
            error = None
            try:
                self._work()
            except Exception as raised:  # noqa: BLE001  whoever waits gets it
                error = raised
            with self._changed:
                self._done, self._error = ticket, error
                self._changed.notify_all()
