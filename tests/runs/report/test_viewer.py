"""The viewer, driven in a real browser as a reader would: links, keys, buttons, filters, and no request to anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.types import Choice, Episode, Observation, Reflection, Step, Task
from reflectrl.runs.report import write_report

NASTY = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture(scope="module")
def page(finished_run: Path) -> Path:
    return write_report(finished_run)


@pytest.fixture(scope="module")
def episodes(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'id="episode-data">(.*?)</script', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    data = json.loads(found[1])
    return [e | {"names": [data["actions"][s["actions"]][s["action"]] for s in e["steps"]]} for e in data["episodes"]]


def long_one(episodes: list[dict[str, Any]], arm: str = "reflect-rl") -> int:
    return next(i for i, e in enumerate(episodes) if e["arm"] == arm and len(e["steps"]) >= 6)


def test_a_link_opens_its_step(browser: Any, page: Path, episodes: list[dict[str, Any]]) -> None:
    number = long_one(episodes)
    browser.open(page, f"#episode={number + 1}&step=5")
    step = episodes[number]["steps"][4]
    assert browser.text("state") == step["state"]
    assert browser.text("reflection") == step["reflection"]
    assert browser.text("position") == f"step 5 of {len(episodes[number]['steps'])}"
    so_far = sum(s["reward"] for s in episodes[number]["steps"][:5])
    assert browser.text("sum").replace("−", "-") == f"{so_far:+.2f}"


def test_actions_stand_in_the_order_in_which_they_were_listed(
    browser: Any, page: Path, episodes: list[dict[str, Any]]
) -> None:
    number = long_one(episodes)
    steps = episodes[number]["steps"]
    at = next(i for i, one in enumerate(steps) if one["order"] != sorted(one["order"]))
    step = steps[at]
    browser.open(page, f"#episode={number + 1}&step={at + 1}")
    names = browser.run("[...document.querySelectorAll('#actions .name')].map((e) => e.firstChild.textContent)")
    probs = browser.run("[...document.querySelectorAll('#actions .prob')].map((e) => e.textContent)")
    usual = ["left", "right", "take", "open"]
    assert names == [usual[i] for i in step["order"]]
    assert probs == [f"{100 * step['probs'][i]:.1f} %" for i in step["order"]]
    chosen = browser.run("document.querySelector('#actions .chosen .name').firstChild.textContent")
    assert chosen == episodes[number]["names"][at]


def test_keys_and_buttons_go_through_the_steps(browser: Any, page: Path, episodes: list[dict[str, Any]]) -> None:
    number = long_one(episodes)
    browser.open(page, f"#episode={number + 1}&step=1")
    shown = []
    for key in ("ArrowLeft", "j", "ArrowRight", "j", "k", "ArrowLeft"):
        browser.press(key)
        shown.append(int(browser.text("position").split()[1]))
    assert shown == [1, 2, 3, 4, 3, 2]
    browser.run("document.getElementById('next').click()")
    assert browser.text("state") == episodes[number]["steps"][2]["state"]
    assert browser.run("location.hash") == f"#episode={number + 1}&step=3"
    browser.run("document.getElementById('previous').click()")
    assert browser.text("state") == episodes[number]["steps"][1]["state"]


def test_the_slider_moves_once_per_key(browser: Any, page: Path, episodes: list[dict[str, Any]]) -> None:
    browser.open(page, f"#episode={long_one(episodes) + 1}&step=1")
    browser.run("document.getElementById('slider').focus()")
    browser.press("ArrowRight")
    assert browser.text("position").startswith("step 2 ")


def test_filters_choose_and_keys_walk_what_they_leave(browser: Any, page: Path, episodes: list[dict[str, Any]]) -> None:
    browser.open(page)
    browser.run(
        "for (const [id, value] of [['filter-arm', 'rl-only'], ['filter-outcome', 'failure']]) {"
        " const select = document.getElementById(id);"
        " select.value = value; select.dispatchEvent(new Event('change')); }"
    )
    wanted = [i for i, e in enumerate(episodes) if e["arm"] == "rl-only" and not e["success"]]
    assert browser.run("[...document.getElementById('pick').options].map((o) => Number(o.value))") == wanted
    browser.press("n")
    assert browser.run("location.hash") == f"#episode={wanted[1] + 1}&step=1"
    assert browser.text("outcome").startswith("failure")
    other = long_one(episodes)
    browser.run(f"location.hash = '#episode={other + 1}&step=2'; new Promise((done) => setTimeout(done, 50))")
    assert browser.text("state") == episodes[other]["steps"][1]["state"]


@pytest.mark.parametrize("fragment", ["#episode=9999&step=9999", "#episode=-3&step=0", "#episode=x&step=y"])
def test_links_to_nowhere_open_the_nearest_step(browser: Any, page: Path, fragment: str) -> None:
    browser.open(page, fragment)
    assert browser.text("state")
    assert re.fullmatch(r"step \d+ of \d+", browser.text("position"))


def test_texts_stay_texts_and_a_growing_history_is_cut_at_each_step(
    browser: Any, small_run: Callable[[list[Episode]], Path]
) -> None:
    def step(history: str) -> Step:
        turns = (Reflection("reflector", NASTY), Choice("p", NASTY, 0))
        return Step(Observation(history, NASTY, (NASTY,)), turns, 0, 0.0, (NASTY,))

    told = {"arm": NASTY, "seed": 0, "split": "test", "sampling": "greedy"}
    past = ("", "🚕 one\n", "🚕 one\n🚕 two\n")
    folder = small_run([Episode(Task(NASTY, "toy"), tuple(map(step, past)), False, True, 0, told)])
    browser.open(write_report(folder), "#episode=1&step=3")
    assert browser.text("state") == "🚕 two\n" + NASTY  # what is new of the history is shown in full
    assert browser.text("reflection") == NASTY
    assert browser.text("history") == past[1]
    assert browser.text("outcome") == "failure: out of steps"
    assert browser.run("document.title + document.images.length") == "small · run report0"


@pytest.mark.parametrize("width", [360, 820, 1400])
def test_the_page_fits_its_window(browser: Any, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_dark_mode_is_dark_and_plots_follow(browser: Any, page: Path) -> None:
    light: list[int] = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        colours = browser.run(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.plot text')).fill].join(' ')"
        )
        light += [sum(map(int, colour)) for colour in re.findall(r"rgb\((\d+), (\d+), (\d+)\)", colours)]
    page_light, text_light, page_dark, text_dark = light
    assert page_light > 700 > text_light
    assert page_dark < 100 < text_dark


def test_nothing_is_requested_and_nothing_goes_wrong(browser: Any, page: Path) -> None:
    browser.open(page, "#episode=2&step=1")
    browser.press("j")
    requests = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert {url.split("#")[0] for url in requests} == {page.resolve().as_uri()}
    wrong = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert not [event for event in browser.events if event["method"] in wrong]
