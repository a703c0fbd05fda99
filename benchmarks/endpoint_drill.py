"""Test the client of endpoints under faults and kills: `python -m benchmarks.endpoint_drill`.

A server on this machine answers a fifth of the requests badly (429, 500, time-out, dropped connection, garbage). A
process asks it 1,000 questions. The process is killed and started again five times, runs out of a budget that is too
small, gets a larger one, and continues to the end. Then four conditions must hold:

- every question has exactly one answer, and it is right;
- no question was asked again after its answer had arrived (per kill, at most the concurrent requests are lost);
- the server received no more requests than either budget allows;
- the journal covers all that the server received.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Budget, Journal

TIMEOUT = 1.0
CONCURRENCY = 16
FAULTS = ("429", "500", "slow", "drop", "garbage")


class Faulty(BaseHTTPRequestHandler):
    """Handler that answers question N with "N". Part of the answers, the server's `share`, are faulty."""

    def do_POST(self) -> None:
        server: Any = self.server
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        with server.lock:
            server.received += 1
            bad = server.rng.random() < server.share
            fault = server.rng.choice(FAULTS) if bad else ""
            server.faults[fault] += 1
            server.answered[question] += not fault
        if fault == "drop":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(TIMEOUT * 1.5)
        body = json.dumps({
            "choices": [{"index": 0, "message": {"role": "assistant", "content": question}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
        }).encode()  # fmt: skip
        body = b'{"choices": [{' if fault == "garbage" else b"{}" if fault.isdigit() else body
        self.send_response(int(fault) if fault.isdigit() else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("retry-after-ms", "5")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def serve(share: float, seed: int = 0) -> Any:
    """Start a server with this share of faults, and return it."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Faulty)
    server.daemon_threads, server.lock, server.rng = True, threading.Lock(), random.Random(seed)
    server.share, server.received, server.faults, server.answered = share, 0, Counter(), Counter()
    server.handle_error = lambda *about: None
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def ask_all(url: str, journal: Path, questions: int, budget: int) -> None:
    """Ask every question and write the answers beside the journal. This runs in the process that is killed."""
    config = EndpointConfig(url, "drill", timeout=TIMEOUT, retries=8, concurrency=CONCURRENCY)
    endpoint = Endpoint(config, Journal(journal, Budget(requests=budget)))
    asks = [Ask([{"role": "user", "content": str(i)}], 8) for i in range(questions)]
    try:
        answers = endpoint.complete_all(asks)
    except UserError as error:
        sys.exit(str(error))
    journal.with_suffix(".out").write_text(json.dumps(answers), encoding="utf-8")


def drill(folder: Path, questions: int, kills: int, share: float = 0.2) -> dict[str, Any]:
    """Run the drill and return its counts.

    Raises:
        AssertionError: if a condition does not hold.
    """
    server, journal = serve(share), folder / "journal.jsonl"
    small, budget = questions, 2 * questions + CONCURRENCY * (kills + 1)
    url = f"http://127.0.0.1:{server.server_port}/v1"

    def started(most: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "benchmarks.endpoint_drill", url, str(journal), str(questions), str(most)]
        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    try:
        for kill_index in range(kills):
            kill_at(started(budget), journal, questions * (kill_index + 1) // (kills + 2))
        stopped = started(small)
        stderr = stopped.communicate()[1]
        assert stopped.returncode == 1 and f"the budget is spent (max_requests = {small})" in stderr, stderr
        assert server.received <= small, "the small budget was exceeded"
        last = started(budget)
        stderr = last.communicate()[1]
        assert last.returncode == 0, stderr
    finally:
        server.shutdown()
        server.server_close()
    answers = json.loads(journal.with_suffix(".out").read_text(encoding="utf-8"))
    assert answers == [str(i) for i in range(questions)], "an answer is wrong or missing"
    reopened, keys = Journal(journal), answered_in(journal)
    assert len(keys) == questions == len(reopened) and set(keys.values()) == {1}, (
        "a question was answered twice, or never"
    )
    twice = server.answered.total() - questions
    assert len(server.answered) == questions and twice <= kills * CONCURRENCY, "what was answered was asked again"
    assert server.received <= reopened.spent.requests <= budget, (
        "the journal does not cover what was sent, or the budget"
    )
    return {"questions": questions, "killed": kills, "received": server.received, "noted": reopened.spent.requests,
            "small_budget": small, "budget": budget, "answered_again_after_kills": twice,
            "faults": dict(server.faults)}  # fmt: skip


def kill_at(process: subprocess.Popen[str], journal: Path, goal: int) -> None:
    """Kill a process as soon as `goal` questions are answered.

    Raises:
        AssertionError: if the process ends before.
    """
    while (journal.read_bytes().count(b'"answer"') if journal.exists() else 0) < goal:
        assert process.poll() is None, f"it ended before {goal} questions were answered"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def answered_in(journal: Path) -> Counter[str]:
    """Count the answers to each question in a journal."""
    keys = Counter[str]()
    for line in journal.read_text(encoding="ascii").splitlines():
        row = json.loads(line) if line.endswith("}") else {}  # a kill may have cut it off
        keys.update([row["key"]] if "answer" in row else [])
    return keys


def main(words: list[str]) -> int:
    """Run the drill; with words, run a process of it."""
    if words:
        ask_all(words[0], Path(words[1]), int(words[2]), int(words[3]))
        return 0
    with tempfile.TemporaryDirectory() as name:
        counts = drill(Path(name), 1000, 5)
    assert set(FAULTS) <= set(counts["faults"]), "a fault did not occur"
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
