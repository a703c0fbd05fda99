"use strict";
/* The players and their world, without anything to be seen: reads the folder's data, encodes texts, asks the models.

   Every number and every prompt is made as in Python (reflectrl.core.prompts, reflectrl.core.players.policy), so that the same
   models take the same actions. `reflectrl.load()` returns an Agent; `agent.episode(0)` plays the first task. */

var reflectrl = (() => {
  const packed = {};
  const SPACE = "\\t\\n\\v\\f\\r\\x1c-\\x1f \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const STRIP = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu"); // what Python's str.strip takes away
  const WORD = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]$/u; // \w of the tokenizers library

  /* ---- the data of the folder: each file is a script that hands over gzip in base64 -------------------------------- */

  const put = (name, text) => { packed[name] = text; };

  async function bytes(name) {
    const raw = Uint8Array.from(atob(packed[name]), (one) => one.charCodeAt(0));
    delete packed[name];
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  const json = async (name) => JSON.parse(new TextDecoder().decode(await bytes(name)));

  async function library(name) {
    const address = URL.createObjectURL(new Blob([await bytes(name)], { type: "text/javascript" }));
    try {
      return await import(address);
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  const fetched = (name) => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onload = () => (packed[name] ? resolve() : reject(new Error(`data/${name}.js is damaged`)));
    script.onerror = () => reject(new Error(`data/${name}.js cannot be read; is the whole folder there?`));
    document.head.append(script);
  });

  /* ---- texts and tokens ------------------------------------------------------------------------------------------ */

  /* The library splits at every added token, but some stand for whole words only (" 1" is no token within " 12"). So
     texts are normalised and split at added tokens here, and the library encodes what lies between them. A special
     token that a text spells out is text. */
  class Texts {
    constructor(Tokenizer, source) {
      const settings = { clean_up_tokenization_spaces: false };
      this.special = new Set(source.added_tokens.filter((one) => one.special).map((one) => one.id));
      this.added = source.added_tokens.filter((one) => one.content && !one.special);
      this.added.sort((a, b) => b.content.length - a.content.length);
      this.whole = new Tokenizer(source, settings);
      this.between = new Tokenizer({ ...source, added_tokens: [], normalizer: null }, settings);
    }

    encode(given) {
      const text = this.whole.normalizer ? this.whole.normalizer.normalize(given) : given;
      const ids = [];
      let done = 0;
      const plain = (end) => {
        if (end > done) for (const id of this.between.encode(text.slice(done, end), { add_special_tokens: false }).ids) ids.push(id);
      };
      for (let at = 0; at < text.length;) {
        const found = this.added.find((one) => text.startsWith(one.content, at));
        const end = at + (found ? found.content.length : 1);
        if (found && (!found.single_word || (this.edge(text, at, -1) && this.edge(text, end, 1)))) {
          plain(at);
          ids.push(found.id);
          done = end;
        }
        at = end;
      }
      plain(text.length);
      return ids;
    }

    /* Whether no letter or digit stands before (-1) or after (1) a place. */
    edge(text, at, side) {
      const near = side > 0 ? text.slice(at, at + 2) : text.slice(Math.max(0, at - 2), at);
      const one = side > 0 ? [...near][0] : [...near].pop();
      return one === undefined || !WORD.test(one);
    }

    decode(ids) {
      const said = ids.filter((id) => !this.special.has(id));
      return said.length ? this.whole.decode(said) : "";
    }
  }

  /* ---- a model --------------------------------------------------------------------------------------------------- */

  class Model {
    constructor(ort, session, { context, cache }) {
      Object.assign(this, { ort, session, context, cache });
    }

    /* The next token's logits after more tokens, and what is remembered of all of them. */
    async read(ids, past) {
      const [layers, heads, keyWidth, valueWidth] = this.cache;
      const nothing = (width) => new this.ort.Tensor("float32", new Float32Array(0), [layers, 1, heads, 0, width]);
      const tokens = new this.ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
      const { keys, values } = past ?? { keys: nothing(keyWidth), values: nothing(valueWidth) };
      const found = await this.session.run({ ids: tokens, keys, values });
      return { logits: found.logits.data, past: { keys: found.all_keys, values: found.all_values } };
    }
  }

  const highest = (numbers) => numbers.reduce((best, one, i) => (one > numbers[best] ? i : best), 0);

  function softmax(logits) {
    const top = Math.max(...logits);
    const weights = logits.map((one) => Math.exp(one - top));
    const sum = weights.reduce((a, b) => a + b, 0);
    return weights.map((one) => one / sum);
  }

  /* ---- who plays ------------------------------------------------------------------------------------------------- */

  class Agent {
    constructor(about, world, texts, models) {
      Object.assign(this, { about, world, texts, models, reflections: new Map() });
      for (const [number, ids] of about.checks) {
        const { history, state } = this.observation(number);
        if (texts.encode(history + state).join() !== ids.join())
          throw new Error("this browser splits texts into other tokens than the models were trained with");
      }
    }

    observation(number) {
      const [history, state, list] = this.world.observations[number];
      return { history: this.world.texts[history], state: this.world.texts[state], actions: this.world.lists[list] };
    }

    /* The ids of a prompt in two parts, the older part of the history cut off where it is too long. */
    tokens(history, rest, model, reserve) {
      const start = this.about.beginning;
      const past = history ? this.texts.encode(history) : [];
      const now = this.texts.encode(rest);
      const room = model.context - reserve - start.length - now.length;
      if (room < 0) throw new Error("what is to be read does not fit the model's context");
      const piece = Math.max(1, Math.floor(model.context / 4));
      const cut = Math.ceil(Math.max(0, past.length - room) / piece) * piece;
      return [...start, ...past.slice(cut), ...now];
    }

    /* The prompt's changing part: the template with what stands for its variables replaced. */
    fill(template, values) {
      const names = Object.fromEntries(Object.entries(this.about.marks).map(([name, mark]) => [mark, name]));
      return [...template].map((one) => (one in names ? values[names[one]] : one)).join("");
    }

    /* Token ids of what the reflector reads. */
    reflectorPrompt({ history, state }) {
      const text = this.fill(this.about.prompts.reflect, { state });
      return this.tokens(history, text, this.models.reflector, this.about.reflection_tokens);
    }

    /* Token ids of what the policy reads; a label's token follows. */
    policyPrompt({ history, state, actions }, reflection) {
      const { labels, prompts } = this.about;
      const listed = actions.map((action, i) => `${labels.texts[i]}: ${action}`).join("; ");
      const values = reflection === null ? { state, actions: listed } : { state, reflection, actions: listed };
      return this.tokens(history, this.fill(prompts.act, values) + labels.gap, this.models.policy, 1);
    }

    /* Tokens as a reflection. */
    say(ids) {
      return this.texts.decode(ids).replace(STRIP, "");
    }

    /* The reflector's text on an observation, or null without one; `heard` is called with the text as it grows. */
    async reflect(observation, heard = async () => {}) {
      const model = this.models.reflector;
      if (!model) return null;
      const most = this.about.reflection_tokens;
      const prompt = this.reflectorPrompt(observation);
      const key = prompt.join();
      const known = this.reflections.get(key);
      const ids = [];
      let next = known ? null : await model.read(prompt);
      while (ids.length < (known ? known.length : most)) {
        const token = known ? known[ids.length] : highest(next.logits);
        if (token === this.about.eos) break;
        ids.push(token);
        await heard(this.say(ids));
        if (!known && ids.length < most) next = await model.read([token], next.past);
      }
      this.reflections.set(key, ids);
      return this.say(ids);
    }

    /* The probability of each legal action. */
    async weigh(observation, reflection) {
      const { logits } = await this.models.policy.read(this.policyPrompt(observation, reflection));
      return softmax(observation.actions.map((_, i) => logits[this.about.labels.ids[i]]));
    }

    /* A new episode of the task of that number. */
    begin(task) {
      return new Episode(this.world, task);
    }

    /* A whole episode of the pair alone: for each step what was written, what was done and with what probability. */
    async episode(task) {
      const episode = this.begin(task), steps = [];
      while (!episode.over) {
        const seen = this.observation(episode.seen);
        const reflection = await this.reflect(seen);
        const probabilities = await this.weigh(seen, reflection);
        const action = highest(probabilities);
        episode.step(action);
        steps.push({ reflection, action, text: seen.actions[action], probability: probabilities[action] });
      }
      return { steps, success: episode.success, total: episode.total };
    }
  }

  /* ---- the world: a table --------------------------------------------------------------------------------------- */

  class Episode {
    constructor(world, task) {
      Object.assign(this, { world, task, state: world.tasks[task].start, steps: 0, total: 0 });
      Object.assign(this, { terminated: false, cutOff: false, success: false, events: [] });
    }

    get seen() { return this.world.states[this.state][0]; }
    get truncated() { return !this.terminated && (this.cutOff || this.steps >= this.world.horizon); }
    get over() { return this.terminated || this.truncated; }

    step(action) {
      const [, ...edges] = this.world.states[this.state];
      const [reward, terminated, success, events, cutOff = false] = this.world.outcomes[edges[2 * action + 1]];
      this.state = edges[2 * action];
      this.steps += 1;
      this.total += reward;
      Object.assign(this, { terminated, cutOff });
      this.success ||= success;
      this.events = events;
      return { reward, events };
    }

    copy() { return Object.assign(new Episode(this.world, this.task), this); }
  }

  /* ---- all of it -------------------------------------------------------------------------------------------------- */

  /* Reads the folder's data; `told` is called with the share of the work that is done. */
  async function load(told = () => {}) {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old: it cannot unpack the data");
    const names = ["agent", "world", "tokenizer", "tokenizers", "policy", "reflector", "ort", "wasm"];
    let done = 0;
    const tick = () => told(++done / (names.length + 2));
    await fetched("agent").then(tick);
    const about = await json("agent");
    const needed = names.slice(1).filter((name) => name !== "reflector" || about.models.reflector);
    await Promise.all(needed.map((name) => fetched(name).then(tick)));
    const [{ Tokenizer }, ort] = [await library("tokenizers"), await library("ort")];
    const texts = new Texts(Tokenizer, await json("tokenizer"));
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = await bytes("wasm");
    ort.env.wasm.wasmPaths = { wasm: "ort-wasm-simd-threaded.wasm" };
    const models = {};
    for (const name of Object.keys(about.models)) {
      const session = await ort.InferenceSession.create(await bytes(name), { executionProviders: ["wasm"] });
      models[name] = new Model(ort, session, about.models[name]);
      tick();
    }
    return new Agent(about, await json("world"), texts, models);
  }

  return { put, load, highest };
})();
