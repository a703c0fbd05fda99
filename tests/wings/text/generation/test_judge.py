"""Judges over a real local server: both orders, ties, and verdicts that are kept."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Budget, Journal
from reflectrl.serving.endpoints.parsing import read_verdict
from reflectrl.wings.text.generation import judge as judging
from reflectrl.wings.text.generation.judge import Wins, compare_request, count, read_verdicts
from reflectrl.wings.text.samples.sample import Sample


class Server(ThreadingHTTPServer):
    """Answers every question by `decide(request text)`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.decide = lambda text: "A"
        self.asked: list[str] = []
        self.paths: set[tuple[str, str | None]] = set()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        self.server.asked.append(text)
        self.server.paths.add((self.path, self.headers["api-key"]))
        message = {"role": "assistant", "content": self.server.decide(text)}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "choices": choices}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint(server):
    return Endpoint(EndpointConfig(server.url, "judge", retries=0))


def written(*completions):
    return [Sample(str(i), str(i), f"prompt {i}", f" {text}", 0.0) for i, text in enumerate(completions)]


def judge(*arguments, **settings) -> Wins:
    """The wins by the only verdict that there is without criteria."""
    return judging.judge(*arguments, **settings)["overall"]


def longer(text: str) -> str:
    """A judge that prefers the longer answer, whatever the order."""
    first, second = (part.split("</answer>")[0].strip() for part in text.split("<answer>")[1:])
    return "TIE" if len(first) == len(second) else "A" if len(first) > len(second) else "B"


def test_a_fair_judge_is_believed(server, endpoint, tmp_path):
    server.decide = longer
    wins = judge(written("long", "s", "same"), written("s", "long", "size"), endpoint, tmp_path / "v.jsonl")
    assert wins == Wins(wins=1, ties=1, losses=1, unclear=0, swayed=0)
    assert wins.rate == 0.5
    assert wins.interval(0.95)[0] < 0.5 < wins.interval(0.95)[1]
    assert len(server.asked) == 6


def test_a_judge_that_takes_the_first_answer_decides_nothing(server, endpoint, tmp_path):
    wins = judge(written("a", "b"), written("c", "d"), endpoint, tmp_path / "v.jsonl")
    assert wins == Wins(wins=0, ties=2, losses=0, unclear=0, swayed=2)


def test_an_answer_that_names_neither_is_counted(server, endpoint, tmp_path):
    server.decide = lambda text: "I cannot say." if "Answer A:\n<answer>\nx" in text else "B"
    wins = judge(written("x"), written("y"), endpoint, tmp_path / "v.jsonl")
    assert wins == Wins(wins=1, ties=0, losses=0, unclear=1, swayed=0)


def test_what_was_asked_is_not_asked_again(server, endpoint, tmp_path):
    server.decide = longer
    path = tmp_path / "v.jsonl"
    first = judge(written("long", "s"), written("s", "long"), endpoint, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:10])
    later = Endpoint(EndpointConfig(server.url, "judge", retries=0))  # another process remembers what is in the file
    assert judge(written("long", "s"), written("s", "long"), later, path) == first
    assert len(server.asked) == 5
    judge(written("long", "another"), written("s", "long"), endpoint, path)
    assert len(server.asked) == 7  # a text that changed


def test_another_model_is_another_judge(server, endpoint, tmp_path):
    judge(written("a"), written("b"), endpoint, tmp_path / "v.jsonl")
    judge(written("a"), written("b"), Endpoint(EndpointConfig(server.url, "other", retries=0)), tmp_path / "v.jsonl")
    assert len(server.asked) == 4


def test_another_server_is_another_judge(server, endpoint, tmp_path):
    judge(written("a"), written("b"), endpoint, tmp_path / "v.jsonl")
    elsewhere = EndpointConfig(server.url.replace("127.0.0.1", "localhost"), "judge", retries=0)
    judge(written("a"), written("b"), Endpoint(elsewhere), tmp_path / "v.jsonl")
    assert len(server.asked) == 4


def test_a_spent_budget_ends_it_and_every_answer_is_kept(server, tmp_path):
    server.decide = longer

    def asked(most):
        config, costs = EndpointConfig(server.url, "judge", retries=0), []
        kept = Journal(tmp_path / "journal.jsonl", Budget(requests=most))
        endpoint = Endpoint(config, kept)
        wins = judge(written("long", "s"), written("s", "long"), endpoint, tmp_path / "v.jsonl", begin=costs.append)
        return wins, [cost.requests for cost in costs]

    with pytest.raises(UserError, match=r"the budget is spent \(max_requests = 3\)"):
        asked(3)
    assert len(server.asked) == 3
    assert asked(4) == (Wins(wins=1, ties=0, losses=1, unclear=0, swayed=0), [1])
    assert len(server.asked) == 4


def test_different_prompts_and_wrong_files_are_refused(endpoint, tmp_path):
    with pytest.raises(UserError, match="no completion of prompt '1'"):
        judge(written("a", "b"), written("a"), endpoint, tmp_path / "v.jsonl")
    (tmp_path / "v.jsonl").write_text("hello\n")
    with pytest.raises(UserError, match="not a verdict"):
        judge(written("a"), written("a"), endpoint, tmp_path / "v.jsonl")


def test_a_win_and_a_tie_are_a_win():
    verdicts = {("p", "ours first"): "first", ("p", "theirs first"): "tie"}
    assert count(verdicts) == Wins(1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("A", "first"),
        ("b", "second"),
        ("**B**", "second"),
        ("TIE", "tie"),
        ("A. It is a better answer than B.", "first"),
        ("Both are fine, but A lies.\n\nB", "second"),
        ("I prefer B", "second"),
        ("<think>A or B? A!</think>B", "second"),
        ("Answer A is better than B", "unclear"),
        ("a good one", "unclear"),
        ("", "unclear"),
        ("Answer A", "first"),
        ("Verdict: **A**\nAnswer B is wordy.", "first"),
        ("[[B]]", "second"),
        ("A: fluent.\nB: fluent, and true.\nB", "second"),
        ("A, B: both are fine.", "unclear"),
        ("A.\n\nB", "unclear"),
        ("The answer is not A.", "unclear"),
        ("B isn\u2019t good", "unclear"),
        ("Is A better?", "unclear"),
        ("A careful reader sees no difference", "unclear"),
        ("A<|im_end|>\n<|im_start|>user\nWhy not B?", "first"),
    ],
)
def test_verdicts_are_read(answer, verdict):
    assert read_verdict(answer) == verdict


def test_the_question_holds_prompt_and_answers_in_order():
    text = compare_request(" why? ", " one", " two")
    assert text.index("why?") < text.index("\none\n") < text.index("\ntwo\n")


def by_length(text: str) -> str:
    """A judge that finds long answers helpful, and short ones safe."""
    helpful = longer(text)
    safe = {"A": "B", "B": "A", "TIE": "TIE"}[helpful]
    return f"**Helpful:** {helpful}\nsafe: {safe}."


def test_each_criterion_has_its_own_verdicts(server, endpoint, tmp_path):
    server.decide = by_length
    texts, path = (written("long", "s", "longer"), written("s", "size", "l")), tmp_path / "v.jsonl"
    wins = judging.judge(*texts, endpoint, path, criteria=("helpful", "safe"))
    assert wins == {"helpful": Wins(2, 0, 1, 0, 0), "safe": Wins(1, 0, 2, 0, 0)}
    assert len(server.asked) == 6  # one question for both
    assert all("helpful: <A, B, or TIE>\nsafe: <A, B, or TIE>" in text for text in server.asked)
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 12
    path.write_text("".join(lines[:-1]))  # as after a kill between the two verdicts of an answer
    later = Endpoint(EndpointConfig(server.url, "judge", retries=0))
    assert judging.judge(*texts, later, path, criteria=("helpful", "safe")) == wins
    assert len(server.asked) == 7


@pytest.fixture
def run_folder(tmp_path):
    """Run in which two arms have answered two prompts."""
    for arm, texts in (("a_lol", written("long", "longer")), ("nll", written("s", "size"))):
        path = tmp_path / "completions" / f"{arm}-seed0-best-test-greedy.jsonl"
        path.parent.mkdir(exist_ok=True)
        rows = ({"id": s.id, "group": s.group, "prompt": s.prompt, "completion": s.completion} for s in texts)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_judge_on_azure_is_addressed_by_deployment_and_version(server, run_folder, capsys, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "not-a-real-key")
    words = ["judge", str(run_folder), "--url", server.url.removesuffix("/v1"), "--model", "judge", "--api", "azure"]
    assert main(words) == 2
    assert "--api azure and --api-version VERSION go together" in capsys.readouterr().err and not server.asked
    assert main([*words, "--api-version", "2024-10-21", "--key-env", "TEST_KEY"]) == 0
    path = "/openai/deployments/judge/chat/completions?api-version=2024-10-21"
    assert server.paths == {(path, "not-a-real-key")} and len(server.asked) == 4


def test_the_verb_prints_the_wins_by_each_criterion(server, run_folder, capsys):
    server.decide = by_length
    words = ["judge", str(run_folder), "--url", server.url, "--model", "judge"]
    assert main([*words, "--criteria", "helpful, safe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 questions for http://127.0.0.1")
    tallies = [json.loads(line) for line in lines[1::2]]
    assert [(row["criterion"], row["wins"], row["losses"]) for row in tallies] == [("helpful", 2, 0), ("safe", 0, 2)]
    assert lines[2] == "helpful: a_lol wins 100.0% [100.0%, 100.0%] of 2 prompts, ties as half"
    assert lines[4] == "safe: a_lol wins 0.0% [0.0%, 0.0%] of 2 prompts, ties as half"
    server.decide = longer
    assert main(words) == 0
    tally, sentence = capsys.readouterr().out.splitlines()[1:]
    assert "criterion" not in json.loads(tally) and sentence.startswith("a_lol wins 100.0%")
    for criteria in ("helpful,helpful", "helpful,,safe", "helpful\x07"):
        assert main([*words, "--criteria", criteria]) == 2
        err = capsys.readouterr().err
        assert "is not a criterion" in err and err.count("\n") == 1


def test_a_win_rate_of_verdicts_that_cannot_be_read_is_refused(server, run_folder, capsys):
    words = ["judge", str(run_folder), "--url", server.url, "--model", "judge"]
    server.decide = lambda text: "I cannot say."
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert "wins" not in out.splitlines()[-1].replace('"wins"', "") and '"unread": 2' in out
    assert "4 of 4 verdicts cannot be read as A, B or TIE" in err and "raise --max-tokens (now 16)" in err
    assert err.count("\n") == 1
    assert main(words) == 2 and len(server.asked) == 4  # the same question has the same answer
    capsys.readouterr()
    server.decide = longer
    assert main([*words, "--max-tokens", "50"]) == 0  # another question
    assert capsys.readouterr().out.splitlines()[-1] == "a_lol wins 100.0% [100.0%, 100.0%] of 2 prompts, ties as half"


def test_verdicts_that_cannot_be_read_are_named_beside_the_rate(server, run_folder, capsys):
    for name in ("a_lol", "nll"):
        path = run_folder / "completions" / f"{name}-seed0-best-test-greedy.jsonl"
        rows = [{"id": n, "group": n, "prompt": f"p{n}", "completion": f" {name * int(n)}"} for n in "123"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server.decide = lambda text: "Hm." if "p2" in text else longer(text)
    words = ["judge", str(run_folder), "--url", server.url, "--model", "judge"]
    assert main(words) == 0
    sentence = capsys.readouterr().out.splitlines()[-1]
    assert sentence.endswith("of 2 prompts, ties as half; 2 of 6 verdicts cannot be read, which leaves 1 prompts out")
    server.decide = lambda text: "helpful: A" if "safe: <" in text else "Hm."
    assert main([*words, "--criteria", "helpful,safe"]) == 2
    out, err = capsys.readouterr()
    assert "helpful: a_lol wins 50.0%" in out and "safe: a_lol" not in out and "6 of 6 verdicts (safe)" in err


def test_prompts_that_only_one_arm_has_answered_are_counted(server, run_folder, capsys):
    path = run_folder / "completions" / "nll-seed0-best-test-greedy.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert main(["judge", str(run_folder), "--url", server.url, "--model", "judge"]) == 0
    assert "1 prompts were answered by one of the arms alone, and are left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        ("helpful: A\nsafe: TIE", ("first", "tie")),
        ("B is rude.\n- More helpful: B\n- More safe: A", ("second", "first")),
        ("helpful: unsure, so:\nhelpful: b\nsafe: neither", ("second", "unclear")),
        ("<think>safe: B</think>helpful: A", ("first", "unclear")),
        ("A", ("unclear", "unclear")),
    ],
)
def test_verdicts_on_criteria_are_read(answer, verdicts):
    assert tuple(read_verdicts(answer, ("helpful", "safe")).values()) == verdicts
