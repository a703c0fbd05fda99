"use strict";
/* What is to be seen: one episode, which the agent or the person plays. All playing is done in players.js. */

(() => {
  const at = (id) => document.getElementById(id);
  const PACES = [
    { name: "slow", token: 70, step: 1600 },
    { name: "normal", token: 22, step: 750 },
    { name: "fast", token: 0, step: 160 },
    { name: "at once", token: -1, step: 0 },
  ];
  const wait = (ms) => new Promise((resolve) => (ms > 0 ? setTimeout(resolve, ms) : requestAnimationFrame(resolve)));
  const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;
  const signed = (number) => (number > 0 ? "+" : number < 0 ? "−" : "") + Math.abs(number).toFixed(2);

  let agent = null;
  let episode = null; // as it stands
  let past = []; // the steps before: the episode as it stood, what was thought, what was done
  let thought = null; // what the pair thinks of the observation: {reflection, probabilities}, null while it thinks
  let playing = false;
  let turn = 0; // counts observations that were shown, so that what was begun for an earlier one is dropped

  const pace = () => PACES[at("speed").valueAsNumber];
  const yours = () => document.querySelector("input[name=who]:checked").value === "you";
  const seen = () => agent.observation(episode.seen);

  /* ---- thinking and acting ---------------------------------------------------------------------------------------- */

  /* Show where the episode stands, and let the pair think about it; then it acts, if it is its turn. */
  async function look() {
    const mine = ++turn;
    thought = episode.over ? past.at(-1).thought : null; // in the end, what led there stays to be seen
    if (episode.over) playing = false;
    show();
    if (episode.over) return;
    const now = seen();
    const reflection = await agent.reflect(now, async (text) => {
      if (mine !== turn || pace().token < 0) return;
      say(text, true);
      await wait(pace().token);
    });
    if (mine !== turn) return;
    say(reflection, false);
    const probabilities = await agent.weigh(now, reflection);
    if (mine !== turn) return;
    thought = { reflection, probabilities };
    actions();
    controls();
    if (!playing || yours()) return;
    await wait(pace().step);
    if (mine === turn && playing && !yours()) act(reflectrl.highest(probabilities), false);
  }

  function act(action, byHand) {
    const before = episode.copy();
    const text = seen().actions[action];
    const { reward, events } = episode.step(action);
    past.push({ before, thought, action, text, reward, events, byHand });
    look();
  }

  /* The agent's own choice, once it is made; what it thinks is finished first. */
  function step() {
    if (playing) pause();
    else if (thought && !episode.over) act(reflectrl.highest(thought.probabilities), false);
  }

  function choose(action) {
    if (episode.over || action >= seen().actions.length) return;
    if (!yours()) playing = false;
    act(action, true);
  }

  function back() {
    if (!past.length) return;
    playing = false;
    episode = past.pop().before;
    look();
  }

  function begin(task) {
    at("task").value = task;
    episode = agent.begin(task);
    past = [];
    look();
  }

  function pause() {
    playing = false;
    controls();
  }

  function play() {
    if (playing) return pause();
    if (yours()) document.querySelector("input[value=agent]").checked = true;
    if (episode.over) {
      episode = agent.begin(episode.task);
      past = [];
    }
    playing = true;
    look();
  }

  function takeOver(you) {
    document.querySelector(`input[value=${you ? "you" : "agent"}]`).checked = true;
    playing = !you && past.length > 0 && !episode.over;
    if (playing) look();
    else {
      actions();
      controls();
    }
  }

  const another = (by) => begin((episode.task + by + agent.world.tasks.length) % agent.world.tasks.length);

  /* ---- showing ---------------------------------------------------------------------------------------------------- */

  function element(name, className, text) {
    const made = document.createElement(name);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function say(text, writing) {
    at("reflection").textContent = text ?? "";
    at("reflection").classList.toggle("writing", writing);
  }

  function show() {
    const now = seen();
    at("seen").textContent = now.history + now.state;
    if (now.history) at("seen").scrollTop = at("seen").scrollHeight;
    const events = episode.events.length ? ` · ${episode.events.join(", ")}` : "";
    at("status").textContent = `Step ${episode.steps} of at most ${agent.world.horizon} · return ${signed(episode.total)}${events}`;
    const how = !episode.over ? "" : episode.success ? "won" : "lost";
    at("ending").className = `ending ${how}`;
    const ways = { won: "Won", lost: episode.truncated ? "Out of time" : "Lost" };
    at("ending").textContent = how && `${ways[how]} after ${episode.steps} step${episode.steps === 1 ? "" : "s"}`;
    say(thought?.reflection, !episode.over);
    actions();
    controls();
    steps();
  }

  function actions() {
    const best = episode.over ? past.at(-1).action : thought ? reflectrl.highest(thought.probabilities) : -1;
    const list = agent.observation((episode.over ? past.at(-1).before : episode).seen).actions;
    const focused = [...at("actions").children].findIndex((one) => one.contains(document.activeElement));
    at("hint").textContent = episode.over ? "· the last one" : yours() ? "· choose one" : "· choose one to take over for a step";
    at("actions").replaceChildren(...list.map((text, i) => {
      const share = thought ? thought.probabilities[i] : 0;
      const button = element("button", i === best ? "chosen" : "");
      const bar = element("span", "share");
      bar.style.width = `${100 * share}%`;
      button.append(bar, element("span", "label", i + 1), element("span", "name", text));
      button.append(element("span", "probability", thought ? percent(share) : ""));
      button.disabled = episode.over;
      button.onclick = () => choose(i);
      const item = element("li", "");
      item.append(button);
      return item;
    }));
    if (focused >= 0) at("actions").children[Math.min(focused, list.length - 1)]?.firstChild.focus();
  }

  function controls() {
    const still = yours() && past.length ? "Give back" : past.length ? "Go on" : "Play";
    at("play").textContent = playing ? "Pause" : episode.over ? "Again" : still;
    at("play").title = `${at("play").textContent} (Space)`;
    at("step").disabled = playing || episode.over || !thought;
    at("back").disabled = at("restart").disabled = !past.length;
    at("pace").textContent = pace().name;
  }

  function steps() {
    const rows = past.map(({ thought: had, action, text, reward, events, byHand }, i) => {
      const row = element("tr", "");
      const done = element("td", "", text);
      if (byHand) done.append(element("span", "tag", "you"));
      const probability = had ? percent(had.probabilities[action]) : "–";
      const paid = element("td", "n", signed(reward) + (events.length ? ` (${events.join(", ")})` : ""));
      row.append(element("td", "n", i + 1), element("td", "words", had?.reflection ?? "–"), done, element("td", "n", probability), paid);
      return row;
    });
    const nothing = element("tr", "nothing");
    nothing.append(Object.assign(element("td", "", "No step yet."), { colSpan: 5 }));
    at("steps").replaceChildren(...(rows.length ? rows.reverse() : [nothing]));
  }

  /* ---- beginning --------------------------------------------------------------------------------------------------- */

  const KEYS = {
    " ": play, ArrowRight: step, ArrowLeft: back, r: () => begin(episode.task), n: () => another(1), t: () => takeOver(!yours()),
  };

  function pressed(event) {
    const inField = event.target.closest("select, input[type=range]");
    if (event.ctrlKey || event.metaKey || event.altKey || (inField && event.key !== "t")) return;
    if (event.key === " " && event.target.closest("button, input")) return;
    if (event.key.startsWith("Arrow") && event.target.closest("input, pre")) return;
    const number = Number.parseInt(event.key, 10);
    const done = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (number >= 1) choose(number - 1);
    else if (done) done();
    else return;
    event.preventDefault();
  }

  function ready(loaded) {
    agent = loaded;
    const { env, agent: name, recipe, split } = agent.about.about;
    document.title = `${env} · ${name}`;
    at("title").textContent = env.split(":").pop();
    at("lead").textContent = agent.models.reflector
      ? `A reflector writes what it makes of the observation, and a policy reads that and chooses an action: ${name} of the run ${recipe}. Both are small language models, and both run on this machine.`
      : `A policy reads the observation and chooses an action: ${name} of the run ${recipe}. It is a small language model, and it runs on this machine.`;
    at("reflecting").hidden = !agent.models.reflector;
    const names = agent.world.tasks.map(({ id, group }, i) => new Option(`${i + 1} · ${id}${group ? ` (${group})` : ""}`, i));
    at("task").append(...names);
    at("task").title = `The first ${names.length} ${split} tasks`;
    at("progress").hidden = true;
    at("main").hidden = false;
    begin(0);
    at("play").onclick = play;
    at("step").onclick = step;
    at("back").onclick = back;
    at("restart").onclick = () => begin(episode.task);
    at("previous").onclick = () => another(-1);
    at("next").onclick = () => another(1);
    at("task").onchange = () => begin(Number(at("task").value));
    at("speed").oninput = controls;
    for (const one of document.querySelectorAll("input[name=who]")) one.onchange = () => takeOver(yours());
    document.addEventListener("keydown", pressed);
    return agent;
  }

  function failed(error) {
    at("progress").hidden = true;
    at("lead").hidden = true;
    at("alarm").hidden = false;
    at("alarm").textContent = `This agent cannot play here: ${error.message}`;
    throw error;
  }

  /* For scripts and the console: `await reflectrl.ready` is the agent. */
  reflectrl.ready = reflectrl.load((share) => { at("progress").value = share; }).then(ready).catch(failed);
})();
