"""The page in a real browser, opened from the disk: it plays as Python does, and a person can take over."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.browser import PLAY, compare, in_python
from reflectrl.api import load_agent
from reflectrl.core.envs import make
from reflectrl.core.prompts import policy_prompt, reflector_prompt, tokenize
from reflectrl.models.players import Policy, Reflector
from reflectrl.tools.browser.export import Exported

Page = tuple[Path, Exported]
ExportedPage = Callable[..., Page]

TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["row ", "column ", " 1", " 12", " 9", "1", ":", "; 2: left", "\n", "\r\n", "  ", "<|endoftext|>", "é"]
        ),
        st.text(max_size=4),
        st.text("AFGHS 0123456789|+-:.\n", max_size=12),
    ),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def pair(exported: ExportedPage, browser: Any) -> Page:
    """A page with both players, GPT-2, open in the browser."""
    folder, done = exported("gpt2", "sft")
    browser.open(folder / "index.html")
    browser.run("reflectrl.ready.then(() => true)")
    return folder, done


def idle(browser: Any) -> None:
    """Wait until the pair has made up its mind."""
    browser.run(
        """(async () => {
          while (document.getElementById('step').disabled && !document.getElementById('ending').textContent)
            await new Promise((done) => setTimeout(done, 20));
        })()"""
    )


@pytest.mark.parametrize(("family", "arm"), [("gpt2", "sft"), ("llama", "sft-no-reflection")])
def test_whole_episodes_are_those_of_python(
    exported: ExportedPage, lake: Callable[[str], Path], browser: Any, family: str, arm: str
) -> None:
    folder, done = exported(family, arm)
    browser.open(folder / "index.html")
    answer = browser.run(PLAY % len(done.world.tasks))
    episodes = in_python(load_agent(lake(family), arm), make({"name": "frozenlake"}), done.world.tasks)
    assert compare(answer["episodes"], episodes) == []
    assert all((step.reflection is not None) == (arm == "sft") for episode in episodes for step in episode.steps)


def test_probabilities_are_those_of_python(pair: Page, lake: Callable[[str], Path], browser: Any) -> None:
    agent, env = load_agent(lake("gpt2"), "sft"), make({"name": "frozenlake"})
    _, done = pair
    for number, task in enumerate(done.world.tasks):
        _, info = env.reset(options={"task": task})
        agent.reset()
        agent.act(info["observation"])
        found = browser.run(
            f"""reflectrl.ready.then(async (agent) => {{
              const seen = agent.observation(agent.begin({number}).seen);
              return agent.weigh(seen, await agent.reflect(seen));
            }})"""
        )
        assert found == pytest.approx(list(agent.probabilities.values()), abs=1e-4)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, min_size=1, max_size=8))
def test_texts_are_encoded_and_decoded_as_in_python(
    pair: Page, lake: Callable[[str], Path], browser: Any, texts: list[str]
) -> None:
    tokenizer = _tokenizer(lake("gpt2"))
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    said = [tokenizer.decode(one, skip_special_tokens=True).strip() for one in ids]
    found = browser.run(f"reflectrl.ready.then((agent) => {json.dumps(texts)}.map((text) => agent.texts.encode(text)))")
    assert found == ids
    found = browser.run(f"reflectrl.ready.then((agent) => {json.dumps(ids)}.map((one) => agent.say(one)))")
    assert found == said


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=TEXTS.map(lambda text: text * 20), state=TEXTS, reflection=TEXTS, count=st.integers(1, 4))
def test_prompts_are_those_of_python(
    pair: Page, lake: Callable[[str], Path], browser: Any, history: str, state: str, reflection: str, count: int
) -> None:
    from reflectrl.core.types import Observation

    agent = _agent(lake("gpt2"))
    policy, reflector = agent.player, agent.reflector
    assert isinstance(policy, Policy) and isinstance(reflector, Reflector)
    seen = Observation(history, state, ("left", "down", "right", "up")[:count])
    wanted = [
        list(tokenize(reflector.lm, reflector_prompt(seen), reserve=reflector.max_new_tokens)),
        list(tokenize(policy.lm, policy_prompt(seen, reflection, policy.labels(4).texts))),
    ]
    given_ = json.dumps({"history": history, "state": state, "actions": seen.actions})
    found = browser.run(
        f"""reflectrl.ready.then((agent) => {{
          const seen = {given_};
          return [agent.reflectorPrompt(seen), agent.policyPrompt(seen, {json.dumps(reflection)})];
        }})"""
    )
    assert found == wanted


def _agent(run: Path, known: dict[Path, Any] = {}) -> Any:  # noqa: B006  (loaded once)
    if run not in known:
        known[run] = load_agent(run, "sft")
    return known[run]


def _tokenizer(run: Path) -> Any:
    return _agent(run).player.lm.tokenizer


def test_a_person_watches_takes_over_goes_back_and_gives_back(pair: Page, browser: Any) -> None:
    folder, done = pair
    browser.open(folder / "index.html")
    browser.run("reflectrl.ready.then(() => true)")
    idle(browser)
    world = done.world
    first = world.observations[world.states[world.starts[0]][0]]
    assert browser.text("seen") == first.text
    assert browser.text("reflection") and browser.text("title") == "frozenlake"
    chosen = browser.run("document.querySelector('#actions .chosen .name').textContent")
    shares = browser.run(
        "[...document.querySelectorAll('#actions .probability')].map((e) => parseFloat(e.textContent))"
    )
    assert len(shares) == len(first.actions) and sum(shares) == pytest.approx(100, abs=0.5)
    assert first.actions[shares.index(max(shares))] == chosen

    browser.press("t")  # the person chooses
    assert browser.run("document.querySelector('input[name=who]:checked').value") == "you"
    other = next(i for i, name in enumerate(first.actions) if name != chosen)
    browser.press(str(other + 1))
    idle(browser)
    assert browser.text("status").startswith("Step 1 of")
    row = browser.run("document.querySelector('#steps tr').textContent")
    assert f"{first.actions[other]}you" in row
    state = world.states[world.states[world.starts[0]][1 + 2 * other]]
    assert browser.text("seen") == world.observations[state[0]].text

    browser.press("ArrowLeft")  # and takes it back
    idle(browser)
    assert browser.text("status").startswith("Step 0 of") and browser.text("seen") == first.text
    browser.press("t")
    browser.press("ArrowRight")  # the agent's own step
    idle(browser)
    assert browser.run("document.querySelector('#steps td:nth-child(3)').textContent") == chosen

    browser.run("(() => { const s = document.getElementById('speed'); s.value = 3; s.oninput(); })()")
    browser.press("n")  # the next task, to its end
    browser.press(" ")
    browser.run(
        """(async () => {
          while (!document.getElementById('ending').textContent) await new Promise((done) => setTimeout(done, 20));
        })()"""
    )
    played = browser.run("reflectrl.ready.then((agent) => agent.episode(1))")
    assert re.match(rf"(Won|Lost|Out of time) after {len(played['steps'])} step", browser.text("ending"))
    assert browser.run("document.querySelectorAll('#steps tr').length") == len(played["steps"])


@pytest.mark.parametrize("width", [1400, 390])
def test_it_fits_and_asks_nobody(pair: Page, browser: Any, width: int) -> None:
    folder, _ = pair
    browser.open(folder / "index.html", width=width)
    browser.run("reflectrl.ready.then(() => true)")
    assert browser.run("document.documentElement.scrollWidth") <= width
    asked = [
        one["params"]["request"]["url"] for one in browser.events if one.get("method") == "Network.requestWillBeSent"
    ]
    assert asked and all(url.partition(":")[0] in ("file", "blob", "data", "about") for url in asked)
    logged = [one for one in browser.events if one.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert not [one for one in logged if "error" in json.dumps(one).lower()], logged


def test_any_web_server_will_do(pair: Page, browser: Any) -> None:
    folder, _ = pair

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.look_at(f"http://127.0.0.1:{server.server_port}/")
        assert browser.run("reflectrl.ready.then((agent) => agent.world.tasks.length)") == 3
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda folder: (folder / "data" / "policy.js").unlink(), "data/policy.js cannot be read"),
        (lambda folder: (folder / "data" / "world.js").write_text("", encoding="utf-8"), "data/world.js is damaged"),
        (lambda folder: shutil.copy(folder / "other.js", folder / "data" / "tokenizer.js"), "other tokens"),
    ],
    ids=["missing", "empty", "another tokenizer"],
)
def test_a_damaged_folder_says_so(
    pair: Page, lake: Callable[[str], Path], browser: Any, tmp_path: Path, change: Callable[[Path], Any], about: str
) -> None:
    import base64
    import gzip

    folder, _ = pair
    copy = tmp_path / "page"
    shutil.copytree(folder, copy)
    other = json.loads(_tokenizer(lake("gpt2")).backend_tokenizer.to_str())
    other["model"]["merges"] = []
    packed = base64.b64encode(gzip.compress(json.dumps(other).encode())).decode()
    (copy / "other.js").write_text(f'reflectrl.put("tokenizer", "{packed}");', encoding="ascii")
    change(copy)
    browser.open(copy / "index.html")
    browser.run("reflectrl.ready.catch(() => null)")
    assert about in browser.text("alarm")
    assert browser.run("document.getElementById('main').hidden")
