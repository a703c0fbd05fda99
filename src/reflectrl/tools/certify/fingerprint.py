"""Fingerprints of an environment's hidden state, which tell whether two points of episodes are the same state.

The text of an observation cannot tell that, since the question is what the text leaves out. So all attributes of the
environment are read, recursively.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from reflectrl.core.envs.base import TextEnv

SKIPPED = frozenset(
    ("_actions", "elapsed", "done", "success", "_task", "_rng_at_start", "observation_space", "action_space", "horizon")
)
"""Attributes of `TextEnv` that hold the past of an episode, or nothing that actions change."""
UNREAD = frozenset(("spec", "np_random", "_np_random", "_np_random_seed", "step_count", "_elapsed_steps"))
"""Attributes of wrapped environments that are left out. A count of steps would tell all points of an episode apart."""
MOST = 20_000
"""Largest number of values that are read."""
LARGE, LOOKS = 64, 60
"""An attribute with more than `LARGE` values that was the same `LOOKS` times is a table: it is not read again."""


class TooLargeError(Exception):
    """The state holds more values than can be read."""


class Fingerprints:
    """Digests of the states of an environment.

    Tables that never change, such as lists of tasks, are often larger than everything else. They are read a few times
    and then taken as constant.
    """

    def __init__(self) -> None:
        self._same: dict[str, tuple[str, int]] = {}
        self._tables: dict[str, str] = {}

    def __call__(self, env: TextEnv) -> str | None:
        """Return a digest of everything that `begin` and `apply` may have changed; None if there is too much to read.

        Random generators are left out (see `disturb`).
        """
        digests = []
        try:
            for name, value in vars(env).items():
                if name not in SKIPPED:
                    digests.append(f"{name}={self._tables.get(name) or self._read(name, value)}")
        except (TooLargeError, RecursionError):
            return None
        return digest_of(digests)

    def _read(self, name: str, value: Any) -> str:
        """Return the digest of an attribute."""
        parts = list(_parts(value, {}, [0]))
        digest = digest_of(parts)
        if len(parts) > LARGE:
            previous, looks = self._same.get(name, (digest, 0))
            self._same[name] = digest, looks + 1 if previous == digest else -(10**9)
            if looks >= LOOKS:
                self._tables[name] = digest
        return digest


def digest_of(parts: list[str]) -> str:
    """Return a digest of texts."""
    text = "\x1f".join(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def _parts(value: Any, seen: dict[int, int], count: list[int]) -> Iterator[str]:
    """Yield texts that stand for a value. An object that was seen before is named by its number."""
    count[0] += 1
    if count[0] > MOST:
        raise TooLargeError
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value)
        return
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            yield str(value.shape)
            for item in value.flat:
                yield from _parts(item, seen, count)
        else:
            yield f"{value.shape}{value.dtype}{hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()}"
        return
    if isinstance(value, np.generic | type | ModuleType | FunctionType | BuiltinFunctionType):
        yield repr(value) if isinstance(value, np.generic) else getattr(value, "__name__", "")
        return
    if isinstance(value, MethodType):
        yield value.__name__
        return
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return
    if id(value) in seen:
        yield f"#{seen[id(value)]}"
        return
    seen[id(value)] = len(seen)
    yield type(value).__name__
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(key, seen, count)
            yield from _parts(item, seen, count)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(repr, value))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, seen, count)
    else:
        for name, item in sorted(attributes(value)):
            if name not in UNREAD:
                yield name
                yield from _parts(item, seen, count)


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, those in slots included."""
    own = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                own.setdefault(name, getattr(value, name))
    return list(own.items())


def disturb(env: TextEnv) -> None:
    """Draw from each random generator that an environment may use, so that its next draws differ.

    These are the generators among its attributes, those of a wrapped gymnasium environment, and the global ones.
    """
    random.random()  # noqa: S311 -- not for secrets
    np.random.random()  # noqa: NPY002 -- the global generator is meant
    holders = [env, getattr(getattr(env, "_wrapped", None), "unwrapped", None), getattr(env, "game", None)]
    for holder in holders:
        for _, value in attributes(holder) if holder is not None else ():
            if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
                value.random()
