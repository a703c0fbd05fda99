"""A judge as reward: standings, both orders, ties, one completion, and verdicts that are kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.ranking import standings
from reflectrl.wings.text.rewards.total import build
from reflectrl.wings.text.rewards.tournament import LocalJudge
from reflectrl.wings.text.samples.sample import Sample

Decide = Callable[[str, str], str]


class Server(ThreadingHTTPServer):
    """A judge: `decide(first answer, second answer)` says what it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str]] = []
        self.keys: list[str | None] = []
        self.decide: Decide = lambda first, second: "A" if len(first) > len(second) else "B"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        first, second = (part.partition("</answer>")[0].strip() for part in text.split("<answer>")[1:])
        self.server.asked.append((first, second))
        self.server.keys.append(self.headers["Authorization"])
        message = {"role": "assistant", "content": self.server.decide(first, second)}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def samples(*completions: str, prompt: str = "Where?\n") -> list[Sample]:
    return [Sample(str(i), prompt, prompt, f" {text}", float("nan")) for i, text in enumerate(completions)]


def rewarded(server: Server, given: list[Sample], folder: Path | None = None) -> list[float]:
    section = {"tournament": {"model": "judge", "base_url": f"http://127.0.0.1:{server.server_port}/v1"}}
    return [sample.reward for sample in build(section, folder).label(given)]


def test_the_longer_answer_wins_among_those_of_its_prompt(server: Server) -> None:
    mixed = [*samples("go", "go on", "go on and on", "go"), *samples("alone", prompt="Who?\n")]
    assert rewarded(server, mixed) == [0.0, 0.5, 1.0, 0.0, 0.5]
    assert len(server.asked) == 3 * 2


def test_a_judge_that_prefers_a_place_ranks_nobody(server: Server) -> None:
    server.decide = lambda first, second: "A"
    assert rewarded(server, samples("one", "two", "three")) == [0.5] * 3


def test_ties_and_what_says_nothing_are_half_a_win(server: Server) -> None:
    server.decide = lambda first, second: "TIE" if "one" in (first, second) else "Neither is any good."
    assert rewarded(server, samples("one", "two", "three")) == [0.5] * 3


def test_verdicts_that_cannot_be_read_are_left_out_counted_and_in_the_end_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.decide = lambda first, second: "A" if first == "one" else "Hm."
    assert rewarded(server, samples("one", "two", "three"), tmp_path) == [1.0, 0.0, 0.0]
    assert "4 of 6 verdicts so far cannot be read" in capsys.readouterr().err
    [kept] = tmp_path.glob("verdicts-*.jsonl")
    assert len(kept.read_text().splitlines()) == 2
    with pytest.raises(UserError, match="12 of 12 verdicts cannot be read"):
        rewarded(server, samples("four", "five", "six", "seven"))


def test_no_pair_is_asked_twice_and_a_number_follows_its_company(server: Server, tmp_path: Path) -> None:
    assert rewarded(server, samples("a", "bb"), tmp_path) == [0.0, 1.0]
    assert rewarded(server, samples("bb", "ccc", "a"), tmp_path) == [0.5, 1.0, 0.0]
    assert len(server.asked) == len(set(server.asked)) == 6
    [kept] = tmp_path.glob("verdicts-*.jsonl")
    with kept.open("a") as file:
        file.write('["half a')
    assert rewarded(server, samples("a", "bb"), tmp_path) == [0.0, 1.0]
    assert len(server.asked) == 6
    kept.write_text("no verdicts\n")
    with pytest.raises(UserError, match="not a verdict"):
        rewarded(server, samples("a", "bb"), tmp_path)


def test_a_judge_has_a_key_of_the_environment_and_a_budget(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-judge")
    section = {"model": "judge", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "key_env": "JUDGE_KEY"}
    with pytest.raises(UserError, match="max_requests = 4"):
        build({"tournament": {**section, "max_requests": 4}}, tmp_path).label(samples("a", "bb", "ccc"))
    assert len(server.asked) == 4 and set(server.keys) == {"Bearer sk-judge"}
    reward = build({"tournament": {**section, "max_requests": 6}}, tmp_path)
    assert [one.reward for one in reward.label(samples("a", "bb", "ccc"))] == [0.0, 0.5, 1.0]
    assert len(server.asked) == len(set(server.asked)) == 6
    assert not any(b"sk-judge" in path.read_bytes() for path in tmp_path.iterdir())


def test_a_local_model_prefers_the_same_answer_in_both_orders(tiny_folder: Callable[[str], Path]) -> None:
    judge = LocalJudge(str(tiny_folder("llama")))
    one, other = judge.preferences([("Where?", "north", "sea"), ("Where?", "sea", "north")])
    assert 0 < one < 1 and 0 < other < 1
    reward = build({"tournament": {"model": str(tiny_folder("llama"))}})
    found = [sample.reward for sample in reward.label(samples("north", "sea"))]
    share = (one + 1 - other) / 2
    assert found == pytest.approx([share, 1 - share], abs=1e-5)
    with pytest.raises(UserError, match="does not fit"):
        reward.label(samples("north " * 2000, "sea"))


def test_a_judge_has_a_model() -> None:
    with pytest.raises(UserError, match="model"):
        build({"tournament": 1.0})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(st.lists(st.text(max_size=3), unique=True, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_standings_are_shares_that_sum_to_half_of_the_field(texts: list[str], random: Any) -> None:
    said = {(one, other): random.choice([0.0, 0.5, 1.0]) for one in texts for other in texts}
    found = standings(texts, lambda one, other: said[one, other])
    assert all(0 <= value <= 1 for value in found.values())
    assert sum(found.values()) == pytest.approx(len(texts) / 2)
