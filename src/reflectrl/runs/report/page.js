// The viewer of episodes. Where it stands is the page's hash, "#episode=2&step=5" (both from 1), so a step can be linked.
// Every text is set as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("episode-data").textContent);
  const episodes = data.episodes;
  if (!episodes.length) return;
  const $ = (id) => document.getElementById(id);
  const at = { episode: episodes.findIndex((e) => e.arm === episodes.at(-1).arm), step: 0 }; // the fullest arm is last
  const ANY = "";
  const filters = {
    arm: (e) => e.arm, seed: (e) => String(e.seed), split: (e) => e.split, sampling: (e) => e.sampling,
    outcome: (e) => (e.success ? "success" : "failure"),
  };

  const clamp = (n, low, high) => Math.min(Math.max(n, low), high);
  const signed = (x) => (x === null ? "–" : (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2));
  const percent = (p) => (p === undefined || p === null ? "–" : (100 * p).toFixed(1) + " %");
  const actionOf = (step) => data.actions[step.actions][step.action];

  function element(tag, name, text) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function fillFilters() {
    for (const [name, read] of Object.entries(filters)) {
      const values = [...new Set(episodes.map(read))];
      if (name === "seed") values.sort((a, b) => a - b);
      $("filter-" + name).replaceChildren(new Option("all", ANY), ...values.map((v) => new Option(v || "–", v)));
      $("filter-" + name).parentElement.hidden = values.length < 2;
    }
  }

  function matching() {
    const wanted = Object.entries(filters).map(([name, read]) => [read, $("filter-" + name).value]);
    return [...episodes.keys()].filter((i) => wanted.every(([read, v]) => v === ANY || read(episodes[i]) === v));
  }

  function label(episode, number) {
    const how = episode.success ? "✓" : "✗";
    return `${number + 1}. ${how} ${episode.arm} · ${episode.task} · seed ${episode.seed} · ${episode.steps.length} steps`;
  }

  function showEpisode() {
    const found = matching();
    $("none").hidden = found.length > 0;
    $("stage").hidden = found.length === 0;
    $("pick").replaceChildren(...found.map((i) => new Option(label(episodes[i], i), String(i))));
    $("pick").value = String(at.episode);
    const episode = episodes[at.episode];
    const end = episode.success ? "success" : episode.truncated ? "failure: out of steps" : "failure";
    $("outcome").textContent = end;
    $("outcome").className = "badge " + (episode.success ? "won" : "lost");
    $("title").textContent = [
      episode.arm, episode.task, "stage " + episode.stage, episode.split, episode.sampling, "seed " + episode.seed,
      "return " + signed(episode.return),
    ].filter(Boolean).join(" · ");
    showSame(episode);
    $("path").replaceChildren(...episode.steps.map((step, i) => {
      const button = element("button", step.events.length ? "eventful" : "", actionOf(step));
      button.type = "button";
      button.title = step.events.join(", ");
      button.addEventListener("click", () => go(at.episode, i));
      const item = element("li");
      item.append(button);
      return item;
    }));
    $("slider").max = String(episode.steps.length);
  }

  // The same task in other arms, one episode of each: that of the same seed where it is in the page.
  function showSame(episode) {
    const twins = new Map();
    for (const [i, e] of episodes.entries()) {
      const same = e.task === episode.task && e.split === episode.split && e.sampling === episode.sampling;
      if (!same || e.arm === episode.arm) continue;
      if (!twins.has(e.arm) || (e.seed === episode.seed && episodes[twins.get(e.arm)].seed !== e.seed)) twins.set(e.arm, i);
    }
    const links = [...twins].map(([arm, i]) => {
      const link = element("a", "", `${episodes[i].success ? "✓" : "✗"} ${arm}`);
      link.href = `#episode=${i + 1}&step=1`;
      return link;
    });
    $("same").hidden = links.length === 0;
    $("same").replaceChildren(element("span", "", "The same task played by:"), ...links);
  }

  function showStep() {
    const episode = episodes[at.episode];
    const step = episode.steps[at.step];
    const last = episode.steps.length - 1;
    $("slider").value = String(at.step + 1);
    $("slider").disabled = last < 1;
    $("previous").disabled = at.step <= 0;
    $("next").disabled = at.step >= last;
    $("position").textContent = step ? `step ${at.step + 1} of ${last + 1}` : "no steps";
    for (const [i, item] of [...$("path").children].entries()) {
      if (i === at.step) item.firstChild.setAttribute("aria-current", "step");
      else item.firstChild.removeAttribute("aria-current");
    }
    const current = $("path").children[at.step];
    if (current) $("path").scrollTo({ left: current.offsetLeft - $("path").clientWidth / 2, top: current.offsetTop - $("path").offsetTop - 40 });
    const known = at.step > 0 ? episode.steps[at.step - 1].history : 0;  // what is new of the history is shown in full
    const history = step ? episode.history.slice(0, known) : "";
    $("past").hidden = !history;
    $("history").textContent = history;
    $("state").textContent = step ? episode.history.slice(known, step.history) + step.state : "";
    $("reflection").textContent = step && step.reflection !== null ? step.reflection : "No reflection was written at this step.";
    $("reflection").className = step && step.reflection !== null ? "" : "absent";
    $("player").textContent = step && step.player ? `chosen by ${step.player}` : "";
    showActions(step);
    const sum = episode.steps.slice(0, at.step + 1).reduce((total, s) => total + (s.reward || 0), 0);
    $("reward").textContent = step ? signed(step.reward) : "–";
    $("sum").textContent = signed(sum);
    const events = step ? step.events : [];
    $("events").replaceChildren(...(events.length ? events.map((e) => element("span", "event", e)) : ["none"]));
  }

  function showActions(step) {
    const names = step ? data.actions[step.actions] : [];
    const listed = step && step.order.length === names.length ? step.order : [...names.keys()];
    $("actions").classList.toggle("long", names.some((name) => name.length > 16));
    $("actions").replaceChildren(...listed.map((index, place) => {
      const item = element("li", index === step.action ? "chosen" : "");
      const name = element("span", "name", names[index]);
      if (index === step.action) name.append(element("span", "tag", "✓ chosen"));
      if (index === step.target) name.append(element("span", "tag", "best"));
      const bar = element("span", step.probs.length ? "bar" : "");
      if (step.probs.length) bar.append(element("i"));
      if (step.probs.length) bar.firstChild.style.width = 100 * (step.probs[index] || 0) + "%";
      item.append(element("span", "place", `${place + 1}.`), name, bar);
      item.append(element("span", "prob", step.probs.length ? percent(step.probs[index]) : ""));
      return item;
    }));
  }

  function go(episode, step) {
    const before = at.episode;
    at.episode = clamp(episode, 0, episodes.length - 1);
    at.step = clamp(step, 0, Math.max(0, episodes[at.episode].steps.length - 1));
    const hidden = !matching().includes(at.episode); // a link may lead to what the filters leave out
    if (hidden) for (const name of Object.keys(filters)) $("filter-" + name).value = ANY;
    if (hidden || before !== at.episode) showEpisode();
    showStep();
    history.replaceState(null, "", `#episode=${at.episode + 1}&step=${at.step + 1}`);
  }

  function nextEpisode(by) {
    const found = matching();
    const place = found.indexOf(at.episode) + by;
    if (place >= 0 && place < found.length) go(found[place], 0);
  }

  function fromHash() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (!wanted.has("episode")) return false;
    go((Number(wanted.get("episode")) || 1) - 1, (Number(wanted.get("step")) || 1) - 1);
    return true;
  }

  const keys = {
    ArrowRight: () => go(at.episode, at.step + 1), j: () => go(at.episode, at.step + 1),
    ArrowLeft: () => go(at.episode, at.step - 1), k: () => go(at.episode, at.step - 1),
    n: () => nextEpisode(1), p: () => nextEpisode(-1),
  };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    if (event.target.closest && event.target.closest("select, textarea, input:not([type=range])")) return;
    if ($("stage").hidden) return;
    event.preventDefault(); // the slider would move a second time
    keys[event.key]();
  }

  fillFilters();
  $("viewer").hidden = false;
  for (const name of Object.keys(filters)) {
    $("filter-" + name).addEventListener("change", () => {
      const found = matching();
      if (found.length && !found.includes(at.episode)) go(found[0], 0);
      showEpisode(); // the list of episodes changes even where the episode stays
      showStep();
    });
  }
  $("pick").addEventListener("change", () => go(Number($("pick").value), 0));
  $("previous").addEventListener("click", keys.k);
  $("next").addEventListener("click", keys.j);
  $("slider").addEventListener("input", () => go(at.episode, Number($("slider").value) - 1));
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => fromHash() && $("viewer").scrollIntoView({ behavior: "instant" }));
  showEpisode();
  showStep();
  if (fromHash()) $("viewer").scrollIntoView({ behavior: "instant" });
})();
