/* ---- curves: drag to zoom, hover to read, arrow keys for those without a mouse -------------------------------- */

const COLOURS = ["--blue", "--orange", "--green", "--purple", "--amber", "--sky"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return ticks;
}

function tickText(tick, ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.abs(tick) || 1;
  const size = Math.max(...ticks.map(Math.abs));
  if (size >= 1e5 || (size < 1e-3 && size > 0)) return say(tick, 3);
  return tick.toFixed(Math.min(6, Math.max(0, -Math.floor(Math.log10(step * 1.001))))).replace("-", "−");
}

function limits(values, pad) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = (high - low) * pad || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

/* What a line reaches between two places: its points there, and where it crosses both ends. */
function heights(points, left, right) {
  const found = points.filter((p) => p[0] >= left && p[0] <= right).map((p) => p[1]);
  for (const edge of [left, right]) {
    const after = points.findIndex((p) => p[0] >= edge);
    if (after < 1) continue;
    const [a, b] = [points[after - 1], points[after]];
    found.push(a[1] + ((edge - a[0]) / (b[0] - a[0] || 1)) * (b[1] - a[1]));
  }
  return found;
}

class Chart {
  constructor(chart) {
    this.chart = chart;
    this.whole = [...limits(chart.lines.flatMap((l) => l.points.map((p) => p[0])), 0.0), ...limits(chart.lines.flatMap((l) => l.points.map((p) => p[1])), 0.06)];
    if (this.whole[0] === this.whole[1]) this.whole = [this.whole[0] - 1, this.whole[1] + 1, ...this.whole.slice(2)];
    this.view = [...this.whole];
    this.readout = make("output", { class: "readout" });
    this.reset = make("button", { type: "button", class: "quiet reset", text: "Reset zoom", hidden: "" });
    this.plot = make("div", { class: "plot", tabindex: 0, role: "img", "aria-label": this.#words() });
    const title = make("figcaption", { class: "chart-title" }, make("b", { text: chart.title }), this.reset);
    this.element = make("figure", { class: "chart" }, title, this.readout, this.plot);
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  #words() {
    const ends = this.chart.lines.map((line) => `${line.name} ${say(line.points.at(-1)[1], 4)} at the end`.trim());
    return `${this.chart.title} over ${this.chart.x}: ${ends.join(", ")}. Drag to zoom; arrow keys read values.`;
  }

  #listen() {
    const place = (event) => event.clientX - this.plot.getBoundingClientRect().left;
    this.plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.from = place(event);
      if (event.pointerType === "mouse") this.plot.setPointerCapture(event.pointerId);
    });
    this.plot.addEventListener("pointermove", (event) => {
      this.at = this.x.back(place(event));
      this.to = this.from === undefined ? undefined : place(event);
      this.draw();
    });
    this.plot.addEventListener("pointerup", (event) => this.#zoom(place(event)));
    this.plot.addEventListener("pointerleave", () => this.#clear());
    this.plot.addEventListener("pointercancel", () => this.#clear());
    this.plot.addEventListener("dblclick", () => this.#whole());
    this.reset.addEventListener("click", () => this.#whole());
    this.plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#whole();
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const places = this.chart.lines[0].points.map((p) => p[0]).filter((x) => x >= this.view[0] && x <= this.view[1]);
      const now = this.at === undefined ? -1 : places.indexOf(nearest(this.chart.lines[0].points, this.at)[0]);
      this.at = places[Math.min(places.length - 1, Math.max(0, now + step))];
      this.draw();
    });
  }

  #clear() {
    this.at = this.from = this.to = undefined;
    this.draw();
  }

  #zoom(to) {
    const [from, shown] = [this.from, this.view];
    this.from = this.to = undefined;
    if (from !== undefined && Math.abs(to - from) > 8) {
      const [low, high] = [this.x.back(Math.min(from, to)), this.x.back(Math.max(from, to))];
      const left = Math.max(low, shown[0]);
      const right = Math.min(high, shown[1]);
      const inside = this.chart.lines.flatMap((line) => heights(line.points, left, right));
      if (inside.length && right > left) {
        this.view = [left, right, ...limits(inside, 0.06)];
        this.reset.hidden = false;
      }
    }
    this.draw();
  }

  #whole() {
    this.view = [...this.whole];
    this.reset.hidden = true;
    this.#clear();
  }

  draw() {
    const width = Math.max(220, this.plot.clientWidth);
    const height = 190;
    const [left, right, top, bottom] = [52, 12, 8, 38];
    const [x0, x1, y0, y1] = this.view;
    const scale = (low, high, from, to) => {
      const map = (v) => from + ((v - low) / (high - low || 1)) * (to - from);
      map.back = (p) => low + ((p - from) / (to - from)) * (high - low);
      return map;
    };
    this.x = scale(x0, x1, left, width - right);
    this.y = scale(y0, y1, height - bottom, top);
    const xs = niceTicks(x0, x1, Math.max(2, width / 90));
    const ys = niceTicks(y0, y1, 4);
    const id = (this.id ??= `clip-${++Chart.count}`);
    const grid = ys.map((t) => `<line class="grid" x1="${left}" x2="${width - right}" y1="${this.y(t)}" y2="${this.y(t)}"/><text x="${left - 8}" y="${this.y(t) + 4}" text-anchor="end">${tickText(t, ys)}</text>`);
    const feet = xs.map((t) => `<text x="${this.x(t)}" y="${height - bottom + 18}" text-anchor="middle">${tickText(t, xs)}</text>`);
    this.plot.innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" aria-hidden="true"><clipPath id="${id}"><rect x="${left}" y="0" width="${width - left - right}" height="${height - bottom + 2}"/></clipPath>${grid.join("")}<line class="axis" x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}"/>${feet.join("")}<text x="${(left + width - right) / 2}" y="${height - 4}" text-anchor="middle">${this.chart.x}</text><g clip-path="url(#${id})">${this.chart.lines.map((line, i) => this.#line(line, i)).join("")}</g>${this.#cursor(height - bottom)}</svg>`;
  }

  #line(line, i) {
    const style = `stroke="var(${COLOURS[i % COLOURS.length]})" stroke-dasharray="${DASHES[Math.floor(i / 1) % DASHES.length]}"`;
    const path = line.points.map((p, k) => `${k ? "L" : "M"}${this.x(p[0]).toFixed(1)} ${this.y(p[1]).toFixed(1)}`).join("");
    const end = line.points.at(-1);
    const dot = `<circle cx="${this.x(end[0])}" cy="${this.y(end[1])}" r="3" fill="var(${COLOURS[i % COLOURS.length]})"/>`;
    return `<path class="line" d="${path}" ${style}/>${dot}`;
  }

  #cursor(foot) {
    if (this.to !== undefined && this.from !== undefined) {
      const [low, high] = [Math.min(this.from, this.to), Math.max(this.from, this.to)];
      this.readout.textContent = `${this.chart.x} ${say(this.x.back(low))} to ${say(this.x.back(high))}`;
      return `<rect class="brush" x="${low}" y="8" width="${high - low}" height="${foot - 8}"/>`;
    }
    const at = this.at === undefined ? this.view[1] : this.at;
    const found = this.chart.lines.map((line) => nearest(line.points, at));
    const several = this.chart.lines.length > 1;
    this.readout.replaceChildren(
      ...this.chart.lines.map((line, i) => make("span", {}, make("i", { style: `background: var(${COLOURS[i % COLOURS.length]})` }), `${several ? line.name + " " : ""}${say(found[i][1], 5)}`)),
      make("span", { class: "where", text: `${this.chart.x} ${say(found[0][0], 4)}` }),
    );
    if (this.at === undefined) return "";
    const dots = found.map((p, i) => `<circle cx="${this.x(p[0])}" cy="${this.y(p[1])}" r="4.5" fill="var(--paper)" stroke-width="2" stroke="var(${COLOURS[i % COLOURS.length]})"/>`);
    return `<line class="cursor" x1="${this.x(found[0][0])}" x2="${this.x(found[0][0])}" y1="8" y2="${foot}"/>${dots.join("")}`;
  }
}
Chart.count = 0;

const nearest = (points, x) => points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));

widgets.curves = (root, data) => {
  const charts = data.charts.filter((chart) => chart.lines.length).map((chart) => new Chart(chart));
  root.append(make("div", { class: "charts" }, ...charts.map((chart) => chart.element)));
  root.append(make("p", { class: "note hint", text: "Drag across a curve to zoom in; double-click, or Escape, to zoom out." }));
};
