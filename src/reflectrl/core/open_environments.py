"""Record of the environments that are open in this process, so that each is closed, also after an error or Ctrl-C.

An environment may hold programs, connections or windows. Code that makes one for a moment need not close it: whoever
carries out a command, or makes an artifact, does so within `closing_environments`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOG = logging.getLogger(__name__)

_scopes: list[dict[int, Any]] = []
"""Open environments, by identity, of each block that is being carried out."""


@contextmanager
def closing_environments() -> Iterator[None]:
    """Close all environments that `core.envs.make` makes within the block and that are still open at its end."""
    scope: dict[int, Any] = {}
    _scopes.append(scope)
    try:
        yield
    finally:
        _scopes[:] = [other for other in _scopes if other is not scope]
        for env in reversed(list(scope.values())):
            try:
                env.close()
            except Exception as error:  # an author's code may raise anything, and the others must be closed as well
                LOG.warning("reflectrl: environment %s cannot be closed: %r", type(env).__name__, error)


def note_open(env: Any) -> None:
    """Note that an environment was made."""
    if _scopes:
        _scopes[-1][id(env)] = env


def closed_once(close: Callable[[Any], None]) -> Callable[[Any], None]:
    """Decorate the method `close` of an environment, so that a second call does nothing, and that it is noted.

    A class may call the method of its base class, which is a part of the same call.
    """

    @functools.wraps(close)
    def close_first(self: Any) -> None:
        if self.__dict__.get("_is_closed"):
            return
        is_outermost = not self.__dict__.get("_is_closing")
        self._is_closing = True
        try:
            close(self)
        finally:
            if is_outermost:
                self._is_closing, self._is_closed = False, True
                for scope in _scopes:
                    scope.pop(id(self), None)

    return close_first
