/* ---- the explorer: one latent at a time ----------------------------------------------------------------------- */

class Explorer {
  constructor(root, data, sheets) {
    Object.assign(this, { root, data, ...sheets });
    this.atoms = make("div", { class: "atoms", role: "group", "aria-label": "Latents, the most used first; arrow keys move" });
    this.detail = make("div", { class: "detail", "aria-live": "polite" });
    this.atoms.addEventListener("keydown", (event) => this.#keys(event));
    if (data.layers.length > 1) root.append(this.#tabs());
    root.append(make("div", { class: "explorer" }, this.atoms, this.detail));
    this.layer(0);
    repaints.push(() => {
      this.buttons.forEach(({ tile }, i) => tile.show(this.sheet.values(i), this.sheet.signed, zeroOf(this.sheet)));
      this.select(this.chosen, false);
    });
  }

  #tabs() {
    this.tabs = this.data.layers.map((layer, i) =>
      make("button", { type: "button", role: "tab", text: `${layer.title} · ${layer.count}`, onclick: () => this.layer(i) }),
    );
    return make("div", { class: "tabs", role: "tablist", "aria-label": "Layer" }, ...this.tabs);
  }

  layer(index) {
    this.current = this.data.layers[index];
    this.sheet = this.layerSheets[index];
    const parts = this.current.parts ?? this.data.parts;
    this.atomLayout = { tile: this.sheet.tile, colour: this.sheet.colour, parts };
    this.tabs?.forEach((tab, i) => tab.setAttribute("aria-selected", i === index));
    const few = this.sheet.tile[0] > 1 ? this.current.latents.length : Infinity; /* bars are wide enough as they are */
    const size = few <= 20 ? 80 : few <= 40 ? 60 : 46;
    this.buttons = this.current.latents.map((latent, i) => {
      const tile = new Tile(this.atomLayout, size);
      tile.show(this.sheet.values(i), this.sheet.signed, zeroOf(this.sheet));
      const label = `${this.current.word} ${latent.id}, ${latent.rank}. by use`;
      const button = make("button", { type: "button", class: "atom", "aria-label": label, title: label, tabindex: i ? -1 : 0, onclick: () => this.select(i) }, tile.element);
      return { button, tile };
    });
    this.atoms.replaceChildren(...this.buttons.map(({ button }) => button));
    this.select(0);
  }

  #keys(event) {
    const boxes = this.buttons.map(({ button }) => button.offsetTop);
    const across = boxes.findIndex((top) => top > boxes[0]);
    const row = across < 0 ? boxes.length : across;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -this.chosen, End: boxes.length - 1 - this.chosen }[event.key];
    const next = this.chosen + (step ?? 0);
    if (step === undefined || next < 0 || next >= boxes.length) return;
    event.preventDefault();
    this.select(next);
    this.buttons[next].button.focus();
  }

  select(index) {
    this.chosen = index;
    const latent = this.current.latents[index];
    this.buttons.forEach(({ button }, i) => {
      button.setAttribute("aria-pressed", i === index);
      button.tabIndex = i === index ? 0 : -1;
    });
    this.detail.replaceChildren(
      this.#head(latent, index),
      ...this.#words(latent),
      ...this.#slider(latent),
      ...this.#examples(latent),
      ...this.#neighbours(latent),
    );
  }

  #head(latent, index) {
    const tile = new Tile(this.atomLayout, 112, true);
    tile.show(this.sheet.values(index), this.sheet.signed, zeroOf(this.sheet));
    const on = latent.on === null ? [] : [make("div", {}, make("dt", { text: "on in" }), make("dd", { text: `${percent(latent.on)} of examples` }))];
    const facts = make(
      "dl",
      { class: "facts" },
      make("div", {}, make("dt", { text: "rank by use" }), make("dd", { text: `${latent.rank} of ${this.current.count}` })),
      make("div", {}, make("dt", { text: "mean activation" }), make("dd", { text: say(latent.use) })),
      ...on,
    );
    const title = make("h4", { text: `${this.current.word} ${latent.id}` });
    const wide = tile.parts.some((part) => !part.shape) ? " wide" : "";
    return make("div", { class: `head${wide}` }, tile.element, make("div", {}, title, facts, this.#histogram(latent)));
  }

  #histogram(latent) {
    const most = Math.max(...latent.histogram, 1);
    const bars = latent.histogram.map((n, i) => {
      const height = n ? Math.max(1.5, 34 * Math.sqrt(n / most)) : 0;
      return `<rect x="${i * 8}" y="${36 - height}" width="7" height="${height}"/>`;
    });
    const [low, high] = latent.range.map((v) => say(v));
    const words = `Activations from ${low} to ${high} over ${this.data.rows}, bars by the square root of their number`;
    const box = make("div", { class: "histogram", role: "img", "aria-label": words, title: words });
    box.innerHTML = `<svg viewBox="0 0 160 36" preserveAspectRatio="none" aria-hidden="true">${bars.join("")}</svg><span><small>${low}</small><small>activation</small><small>${high}</small></span>`;
    return box;
  }

  #words(latent) {
    if (!latent.names.length) return [];
    return [make("h5", { text: "Nearest words" }), make("p", { class: "words" }, ...latent.names.map((word) => make("span", { text: word })))];
  }

  #row(entries) {
    return make("div", { class: "row" }, ...entries);
  }

  #rowLayout() {
    return { tile: this.examples.tile, colour: this.examples.colour, parts: this.data.parts };
  }

  #example(index, box = null, size = 44) {
    const tile = new Tile(this.#rowLayout(), size);
    tile.show(this.examples.values(index), false, zeroOf(this.examples));
    tile.outline(box);
    return tile.element;
  }

  #examples(latent) {
    const title = make("h5", { text: `Excited most by (of ${this.data.rows})` });
    if (latent.called.length) {
      const words = latent.called.map((word, i) => make("span", {}, word, make("small", { text: ` ${say(latent.examples[i][1], 2)}` })));
      return [title, make("p", { class: "words examples" }, ...words)];
    }
    const shown = latent.examples.map(([index, value, box]) => make("figure", {}, this.#example(index, box), make("figcaption", { text: say(value, 2) })));
    const row = this.#row(shown);
    row.classList.add("examples");
    return [title, row];
  }

  #neighbours(latent) {
    if (!latent.near.length) return [];
    const shown = latent.near.map(([index, cosine]) => {
      const tile = new Tile(this.atomLayout, 40);
      tile.show(this.sheet.values(index), this.sheet.signed, zeroOf(this.sheet));
      const name = `${this.current.word} ${this.current.latents[index].id}, cosine ${say(cosine, 2)}`;
      const go = () => {
        this.select(index);
        this.buttons[index].button.focus({ preventScroll: true });
      };
      const button = make("button", { type: "button", class: "atom", "aria-label": name, title: name, onclick: go }, tile.element);
      return make("figure", {}, button, make("figcaption", { text: say(cosine, 2) }));
    });
    return [make("h5", { text: "Most similar (cosine)" }), this.#row(shown)];
  }

  /* What an example's reconstruction becomes when this latent is set to another value. */
  #slider(latent) {
    const slider = latent.slider;
    if (!slider) return [];
    const { values, first, own } = slider;
    const [low, high] = [values[0], values.at(-1)];
    const at = (value) => {
      const place = ((value - low) / (high - low)) * (values.length - 1);
      const i = Math.min(values.length - 2, Math.max(0, Math.floor(place)));
      const [a, b] = [this.frames.values(first + i), this.frames.values(first + i + 1)];
      return a.map((v, k) => v + (place - i) * (b[k] - v));
    };
    const before = at(own);
    const reach = Math.max(...[low, high].map((end) => Math.max(...at(end).map((v, k) => Math.abs(v - before[k])))), 1e-6);
    const names = ["its best example", "rebuilt", "changed", "difference"];
    const tiles = names.map((name) => ({ name, tile: new Tile(this.#rowLayout(), 72) }));
    tiles[0].tile.show(this.examples.values(latent.examples[0][0]), false, zeroOf(this.examples));
    tiles[1].tile.show(before, false, zeroOf(this.examples));
    tiles[2].tile.element.classList.add("changed");
    const input = make("input", { type: "range", min: low, max: high, step: "any", "aria-label": "Value of the latent" });
    const output = make("output", {});
    const paint = () => {
      const now = at(Number(input.value));
      tiles[2].tile.show(now, false, zeroOf(this.examples));
      tiles[3].tile.show(now.map((v, k) => 0.5 + (0.5 * (v - before[k])) / reach), true, 0.5);
      const times = Math.abs(own) > 1e-3 * (high - low) ? ` = ${say(Number(input.value) / own, 2)} × its own` : "";
      output.textContent = `${say(Number(input.value), 2)}${times}`;
      input.setAttribute("aria-valuetext", output.textContent);
    };
    input.value = Math.abs(own) > 0.2 * (high - low) ? Math.min(Math.max(0, low), high) : high; /* something to see at once */
    input.addEventListener("input", paint);
    const back = make("button", { type: "button", class: "quiet", text: "Its own", onclick: () => ((input.value = own), paint()) });
    paint();
    const figures = tiles.map(({ name, tile }) => make("figure", {}, tile.element, make("figcaption", { text: name })));
    return [
      make("h5", { text: "Turn it up and down" }),
      this.#row(figures),
      make("div", { class: "controls" }, back, input, output),
    ];
  }
}

widgets.explorer = async (root, data) => {
  const [examples, frames, layerSheets] = await Promise.all([
    openSheet(data.examples),
    data.frames ? openSheet(data.frames) : null,
    Promise.all(data.layers.map((layer) => openSheet(layer.sheet))),
  ]);
  new Explorer(root, data, { examples, frames, layerSheets });
};

/* ---- start ---------------------------------------------------------------------------------------------------- */

themeButton();
for (const root of document.querySelectorAll(".widget")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  Promise.resolve(widgets[root.dataset.widget](root, data)).then(
    () => root.parentElement.classList.add("alive"),
    (error) => console.error(root.dataset.widget, error), /* the still pictures stay */
  );
}
