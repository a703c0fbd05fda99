"""A real server as a decision model, asked by the field's own clients and by its conformance suite."""

from __future__ import annotations

import inspect
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl.serving.server.questions import UNTRAINED
from tests.serving.server.conftest import Serve, Served
from tests.serving.server.test_server import ask

openai = pytest.importorskip("openai")

NAME, TOKEN = "tiny:sft", "a-token-of-ours"
ROW = "A . K D .\n"
ACTIONS = ("left", "right", "take", "open")
SEEN = {"state": f"{ROW}Last: none\n", "actions": list(ACTIONS)}
NEXT = {"type": "choice", "criteria": dict.fromkeys(ACTIONS)}
TICKET = "I was charged twice for my invoice. Please send the money back.\n"


@pytest.fixture(scope="module")
def played(trained: Path) -> dict[str, float]:
    """What the agent itself thinks of its actions."""
    agent = reflectrl.load_agent(trained, "sft")
    agent.act(reflectrl.Observation("", SEEN["state"], ACTIONS))
    return agent.probabilities


@pytest.fixture(scope="module")
def guarded(serve: Serve) -> Iterator[Served]:
    """A server with a token, which takes large bodies and has said nothing in the end."""
    server = serve("--token-env", "OURS", OURS=TOKEN)
    yield server
    assert server.end(signal.SIGINT) == (0, "stopped\n", "")


def decide(server: Served, state: Any, question: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The only answer of a request."""
    body = {"model": "jev-latest", "state": state, "questions": {"q": question}, **more}
    status, _, told = ask(server, "/v1/systemone", json.dumps(body).encode())
    assert status == 200, told
    assert set(told) == {"model", "answers", "usage"} and told["model"] == NAME
    answer: dict[str, Any] = told["answers"]["q"]
    return answer


# ---- conformance and clients -----------------------------------------------------------------------------------------


def test_the_conformance_suite_finds_no_fault(guarded: Served) -> None:
    runner = pytest.importorskip("jevcompat.runner")
    report = runner.run(guarded.url, key=TOKEN)
    failed = [f"{result.id}: {result.findings}" for result in report.results if result.status == "fail"]
    summary = report.summary()
    assert summary["verdict"] == "conformant" and not failed
    assert (summary["MUST"]["passed"], summary["SHOULD"]["passed"]) == (32, 15)
    skipped = [result.id for result in report.results if result.status == "skip"]
    assert skipped == ["auth.ignored-when-off"]  # the other tests here: their server has no token


def test_typesafes_client_gets_the_agents_own_probabilities(server: Served, played: dict[str, float]) -> None:
    sdk = pytest.importorskip("typesafe_sdk")
    questions = {
        "next": sdk.Choice(criteria=dict.fromkeys(reversed(ACTIONS))),
        "some": sdk.Choice(criteria={"take": None, "left": "step to the left"}),
        "key": sdk.Noul(instructions="Is there a key?"),
        "far": sdk.Score(instructions="How far is the door?", criteria=["near", "in the middle", "far"]),
    }
    with sdk.TypeSafeClient(api_key="unused", base_url=server.url, timeout=60.0) as client:
        found = client.system_one(state=SEEN, questions=questions)
        assert [model.name for model in client.models.list().models] == [NAME, "jev-latest"]
    assert found.choices["next"].probabilities == pytest.approx(played, abs=1e-5)
    assert found.choices["next"].choice == max(played, key=played.__getitem__)
    both = played["take"] + played["left"]
    some = {name: played[name] / both for name in ("take", "left")}
    assert found.choices["some"].probabilities == pytest.approx(some, abs=1e-5)
    assert abs(found.nouls["key"].noul - 0.5) <= UNTRAINED / 2
    assert found.scores["far"].legend == {0: "near", 1: "in the middle", 2: "far"}
    assert found.usage.input_tokens > 0 and found.usage.output_tokens > 0  # it reflects before it chooses


def test_openais_client_gets_the_agents_own_probabilities(server: Served, played: dict[str, float]) -> None:
    listed = f"{SEEN['state']}Actions:\n" + "".join(f"- {action}\n" for action in ACTIONS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.decisions.create(
            model=NAME,
            input=[{"role": "user", "content": [{"type": "input_text", "text": listed}]}],
            questions=[
                {"type": "choice", "name": "next", "instructions": "What is next?",
                 "choices": [{"value": action} for action in reversed(ACTIONS)]},
                {"type": "predicate", "instructions": "There is a key."},
                {"type": "score", "instructions": "How far?", "levels": [{"label": "near"}, {"label": "far"}]},
                {"type": "choice", "instructions": "Open?", "choices": [{"value": True}, {"value": False}]},
            ],
        )  # fmt: skip
    following, key, far, typed = found.answers
    assert {one.value: one.probability for one in following.probabilities} == pytest.approx(played, abs=1e-5)
    assert (following.name, key.name) == ("next", None)
    assert abs(key.probability - 0.5) <= UNTRAINED / 2
    assert far.score == pytest.approx(far.probabilities[1].probability)
    assert typed.choice in (True, False) and isinstance(typed.choice, bool)
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens > 0


TABLE = """
[run]
benchmark = "1.0.0"

[chooser.ours]
protocol = "{protocol}"
model = "{model}"
api_base = "{url}/v1"
api_key_env = "OURS"
max_requests = 10
max_input_tokens = 1_000_000
"""


@pytest.mark.parametrize("protocol", ["jev", "openai"])
def test_a_benchmark_searches_with_the_agent(
    server: Served, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frontier of a trial that is not an official one, through the benchmark's own client for each protocol."""
    pytest.importorskip("beelinebench")
    from beelinebench import config, search
    from beelinebench.domains import countdown
    from beelinebench.rng import Draws

    monkeypatch.setenv("OURS", "unused")
    path = tmp_path / "beelinebench.toml"
    path.write_text(TABLE.format(protocol=protocol, model=NAME, url=server.url), encoding="utf-8")
    [chooser] = config.load(path, {}).choosers.values()
    spend = search.Spend(chooser.max_requests, chooser.max_input_tokens)
    problem = countdown.problem(
        10_000, heuristic="nearest_number", numbers=4, largest_number=9, smallest_target=10, largest_target=99
    )
    make_chooser = config.factory(chooser, tmp_path / ".env")
    choose = make_chooser(problem, spend, Draws("a test"))
    frontier = sorted(set(problem.moves(problem.start)))
    first = choose(frontier)
    assert choose(frontier) == first and spend.requests == 2  # in another random order
    assert spend.served == [NAME, NAME] and spend.input_tokens > 0
    assert sum(spend.probabilities) == pytest.approx(1)
    for held in inspect.getclosurevars(make_chooser).nonlocals.values():
        if hasattr(held, "http"):  # the benchmark leaves its client's connections open
            held.http.close()


# ---- what an answer means --------------------------------------------------------------------------------------------


def test_the_question_of_another_client_is_translated_by_the_environment(
    server: Served, played: dict[str, float]
) -> None:
    answer = decide(server, {"row": ROW.split()}, {"type": "choice", "criteria": dict.fromkeys(sorted(ACTIONS))})
    assert answer["probabilities"] == pytest.approx(played, abs=1e-5) and "x_untrained" not in answer
    assert decide(server, {"row": 7}, NEXT)["x_untrained"]  # the environment cannot read it


def test_options_without_an_order_are_no_question_for_an_agent_that_was_trained_with_one(server: Served) -> None:
    assert decide(server, {"state": SEEN["state"]}, NEXT)["x_untrained"]


@pytest.mark.parametrize("count", [2, 20, 255])
def test_a_strangers_question_is_answered_in_any_order_and_without_confidence(server: Served, count: int) -> None:
    names = [f"queue {i:03d}" for i in range(count)]
    first = {"type": "choice", "instructions": "Which queue?", "criteria": dict.fromkeys(names)}
    other = {**first, "criteria": dict.fromkeys(names[::-1])}
    one, two = decide(server, TICKET, first), decide(server, TICKET, other)
    assert one["choice"] == two["choice"]
    assert one["probabilities"] == two["probabilities"]
    assert one["x_untrained"] and 0 <= one["confidence"] <= UNTRAINED


def test_a_state_that_is_too_long_for_the_model_is_read_at_its_end_and_says_so(server: Served) -> None:
    question = {"type": "noul", "instructions": "Is it about money?"}
    assert "x_cut" not in decide(server, "Hi.", question)
    assert decide(server, 9 * TICKET, question)["x_cut"]


def test_each_question_is_answered_by_itself(server: Served) -> None:
    questions = {"next": NEXT, "key": {"type": "noul", "instructions": "Is there a key?"}}
    alone = {name: decide(server, SEEN, question) for name, question in questions.items()}
    renamed = {"🙂 b": questions["key"], "a.0": questions["next"]}
    body = {"model": NAME, "state": SEEN, "questions": renamed}
    _, _, told = ask(server, "/v1/systemone", json.dumps(body).encode())
    assert told["answers"]["a.0"] == alone["next"] and told["answers"]["🙂 b"] == alone["key"]


def test_strangers_are_refused_if_the_server_is_told_to(serve: Serve, played: dict[str, float]) -> None:
    server = serve("--strangers", "refuse")
    body = {"model": NAME, "state": SEEN, "questions": {"next": NEXT, "key": {"type": "noul", "instructions": "Key?"}}}
    status, _, told = ask(server, "/v1/systemone", json.dumps(body).encode())
    assert status == 422
    [mistake] = told["detail"]
    assert mistake["loc"] == ["body", "questions", "key"] and mistake["type"] == "untrained_question"
    listed = f"{SEEN['state']}Actions:\n" + "".join(f"- {action}\n" for action in ACTIONS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.decisions.create(
            model=NAME,
            input=listed,
            questions=[
                {"type": "predicate", "name": "key", "instructions": "There is a key."},
                {"type": "choice", "instructions": "Next?", "choices": [{"value": action} for action in ACTIONS]},
            ],
        )
    assert [answer.type for answer in found.answers] == ["refusal", "choice"]
    assert found.answers[1].choice == max(played, key=played.__getitem__)


# ---- what is refused -------------------------------------------------------------------------------------------------


def systemone(**changes: Any) -> bytes:
    return json.dumps({"model": NAME, "state": "x", "questions": {"q": NEXT}} | changes).encode()


def choice(count: int) -> dict[str, Any]:
    return {"q": {"type": "choice", "criteria": {f"option {i}": None for i in range(count)}}}


@pytest.mark.parametrize(
    ("body", "status", "place", "said"),
    [
        (systemone(questions=choice(256)), 422, ["questions", "q", "choice", "criteria"], "at most 255"),
        (systemone(questions=choice(1)), 422, ["questions", "q", "choice", "criteria"], "at least 2"),
        (systemone(questions=choice(0)), 422, ["questions", "q", "choice", "criteria"], "at least 2"),
        (systemone().replace(b'"right"', b'"left"'), 422, [], "'left' occurs twice"),
        (b'{"model": "m", "state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}, "q": 1}}', 422,
         ["questions", "q"], "an object"),
        (systemone(questions={"": NEXT}), 422, ["questions", "", "[key]"], "at least 1 character"),
        (systemone(questions={"q": {"type": "noul"}}), 422, ["questions", "q", "noul"], "instructions"),
        (systemone(questions={"q": {"type": "box"}}), 422, ["questions", "q"], "'noul', 'choice', 'score'"),
        (systemone(state=None), 422, ["state", "str"], "string"),
        (systemone(state="x" * 10**6), 422, ["state"], "they may have 8,192"),
        (systemone(assets={"a": {}}), 422, ["assets"], "null"),
        (systemone(questions=choice(2)).replace(b"option 1", b"o" * 9000), 422, ["state"], "they may have 8,192"),
        (systemone(questions=choice(2)).replace(b"option 1", b"o" * 900), 422, ["state"], "do not fit"),
        (systemone(model="gpt-6"), 404, None, "there is no model 'gpt-6'"),
        (systemone(state="x" * 2 * 10**6), 413, None, "the body has more than"),
        (b"[" * 10**5, 422, [], "recursion"),
        (b'{"state": "\\ud800"}', 422, [], "hex escape"),
        (b'{"model": "m", "state": [NaN], "questions": {"q": {"type": "noul", "instructions": "?"}}}', 422, [], "NaN"),
    ],
)  # fmt: skip
def test_what_typesafes_protocol_refuses(
    guarded: Served, body: bytes, status: int, place: list[Any] | None, said: str
) -> None:
    found, _, told = ask(guarded, "/v1/systemone", body, Authorization=f"Bearer {TOKEN}")
    assert found == status, told
    if place is None:
        assert said in told["detail"]["message"] and told["detail"]["error_type"].islower()
    else:
        [mistake, *_] = told["detail"]
        assert said in mistake["msg"], mistake
        assert mistake["loc"][: 1 + len(place)] == ["body", *place] and mistake["type"]
    assert ask(guarded, "/health")[0] == 200


def decisions(**changes: Any) -> bytes:
    asked = {"type": "choice", "name": "q", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]}
    return json.dumps({"model": NAME, "input": "x", "questions": [asked]} | changes).encode()


def listed(*values: Any) -> list[dict[str, Any]]:
    return [{"type": "choice", "instructions": "?", "choices": [{"value": value} for value in values]}]


IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        (decisions(questions=listed(*map(str, range(256)))), 422, "questions.0.choice.choices", "at most 255"),
        (decisions(questions=listed()), 422, "questions.0.choice.choices", "at least 2"),
        (decisions(questions=listed("a", "b", "a")), 422, "questions.0.choices", "two choices are equal"),
        (decisions(questions=[]), 422, "questions", "at least 1"),
        (decisions(questions=2 * json.loads(decisions())["questions"]), 422, "questions", "the same name"),
        (decisions(input=IMAGE), 422, "input", "input_text"),
        (decisions(input=[]), 422, "input", "at least 1"),
        (decisions(input="x" * 10**6), 422, "input", "may have 8,192"),
        (decisions(model="gpt-6-luna"), 404, "model", "there is no model 'gpt-6-luna'"),
        (b"{", 422, None, "JSON"),
    ],
)  # fmt: skip
def test_what_openais_protocol_refuses(guarded: Served, body: bytes, status: int, param: str | None, said: str) -> None:
    found, _, told = ask(guarded, "/v1/decisions", body, Authorization=f"Bearer {TOKEN}")
    assert found == status and said in told["error"]["message"], told
    assert (told["error"]["param"] or "").startswith(param or "") and told["error"]["code"]
    assert ask(guarded, "/health")[0] == 200


def test_equal_values_of_other_types_are_no_equal_choices(server: Served) -> None:
    status, _, told = ask(server, "/v1/decisions", decisions(questions=listed("true", True)))
    assert status == 200
    assert [one["value"] for one in told["answers"][0]["probabilities"]] == ["true", True]
