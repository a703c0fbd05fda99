"""Journal of endpoints: the questions, the answers, and the cost, in a file that is only ever appended to.

Before a request leaves, a line records the most that it may cost. Once it is answered, another line records the answer
and its actual cost. So a kill loses no answer that was received, and no answered question is asked twice. A request
with an unknown end counts with the most that it can have cost. A line that a kill cut off is ignored. Several
processes may share the file.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO

from reflectrl.core.digests import seal, unseal
from reflectrl.core.json_lines import parse_json
from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import Answer


@dataclass(frozen=True)
class Cost:
    """Tokens read and written, money, and requests."""

    tokens_in: int = 0
    tokens_out: int = 0
    money: float = 0.0
    requests: int = 1

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.money + other.money,
            self.requests + other.requests,
        )

    def __sub__(self, other: Cost) -> Cost:
        return self + Cost(-other.tokens_in, -other.tokens_out, -other.money, -other.requests)


@dataclass(frozen=True)
class Budget:
    """The most that may be spent; 0 sets no limit."""

    requests: int = 0
    tokens: int = 0
    money: float = 0.0

    def exceeded_by(self, cost: Cost) -> str:
        """Return the limit that this cost would exceed, in words; "" if none."""
        if self.requests and cost.requests > self.requests:
            return f"max_requests = {self.requests}"
        if self.tokens and cost.tokens_in + cost.tokens_out > self.tokens:
            return f"max_total_tokens = {self.tokens}"
        return f"max_cost = {self.money:g}" if self.money and cost.money > self.money * (1 + 1e-9) else ""


class Journal:
    """Answers by key, and the total cost.

    Args:
        path: the file, made when the first request is recorded; None keeps everything in memory.
        budget: the most that may be spent by all who share the file.

    Attributes:
        spent: cost so far; a request whose end is not known counts with the most that it may cost.
        refused: the limit that forbade the last reservation, in words.

    Raises:
        UserError: the file cannot be read.
    """

    def __init__(self, path: Path | None = None, budget: Budget = Budget()) -> None:  # noqa: B008  (frozen)
        self.path, self.budget, self.spent, self.refused = path, budget, Cost(requests=0), ""
        self._answers: dict[str, Answer] = {}
        self._open: dict[str, Cost] = {}
        self._read, self._lock = 0, RLock()
        if path is not None and path.exists():
            with self._held() as file:
                self._refresh(file)

    def answer(self, key: str) -> Answer | None:
        """Return the answer to a request; None if it has none."""
        return self._answers.get(key)

    def __len__(self) -> int:
        return len(self._answers)

    def reserve(self, most: Cost) -> str | None:
        """Note that a request leaves, with its largest cost. Return its number, or None if the budget forbids it."""
        with self._held() as file:
            self._refresh(file)
            self.refused = self.budget.exceeded_by(self.spent + most)
            if self.refused:
                return None
            number = secrets.token_hex(8)
            self._append(file, {"sent": number, **_plain(most)})
            return number

    def settle(self, number: str, cost: Cost, key: str = "", answer: Answer | None = None) -> None:
        """Note the end of a request: its cost, and its answer if there is one."""
        answered = {} if answer is None else {"key": key, "answer": answer}
        if answer is not None and answer.ending:
            answered["ending"] = answer.ending
        with self._held() as file:
            self._refresh(file)
            self._append(file, {"done": number, **_plain(cost), **answered})

    def _append(self, file: BinaryIO | None, row: dict[str, Any]) -> None:
        if file is not None:
            line = seal(json.dumps(row, ensure_ascii=True)).encode() + b"\n"
            file.seek(0, os.SEEK_END)
            if file.tell() and self._read < file.tell():  # a kill cut the last line off
                line = b"\n" + line
            file.write(line)
            file.flush()
            if "answer" in row:  # it was paid for, so a crash must not lose it
                os.fsync(file.fileno())
            self._read = file.tell()
        self._take(row)

    def _refresh(self, file: BinaryIO | None) -> None:
        """Read the lines that other processes have appended since."""
        if file is None:
            return
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            try:
                self._take(parse_json(unseal(line.decode("ascii").rstrip("\n"))))
            except (ValueError, KeyError, TypeError, AttributeError):  # damaged: the question is asked again
                continue

    def _take(self, row: dict[str, Any]) -> None:
        cost = Cost(int(row["in"]), int(row["out"]), float(row["money"]), int(row["requests"]))
        if "sent" in row:
            self._open[row["sent"]] = cost
            self.spent += cost
        elif "done" in row:
            self.spent += cost - self._open.pop(row["done"], Cost(requests=0))
            if "answer" in row:
                earlier = self._answers.get(row["key"])
                if earlier is None or earlier.ending == "refused":  # a refused question may be asked again
                    self._answers[row["key"]] = Answer(row["answer"], row.get("ending", ""))

    @contextmanager
    def _held(self) -> Iterator[BinaryIO | None]:
        """Lock the file for this thread and process, and open it."""
        with self._lock:
            if self.path is None:
                yield None
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a+b") as file:
                    _lock(file)
                    yield file
            except OSError as error:
                raise UserError(f"{self.path}: {reason(error)}") from error


def _plain(cost: Cost) -> dict[str, Any]:
    return {"in": cost.tokens_in, "out": cost.tokens_out, "money": cost.money, "requests": cost.requests}


def _lock(file: BinaryIO) -> None:
    """Lock the file until it is closed. On systems without such locks, go on without."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass
