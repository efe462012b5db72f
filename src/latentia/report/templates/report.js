"use strict";
/* The page without this script is complete but still. With it, curves can be zoomed, samples move and latents can be
   looked at one by one. Every <div class="widget" data-widget="NAME"> holds its data as JSON; a function of that name
   in `widgets` builds what replaces the still pictures beside it. No library, no network. */
const page = document.documentElement;
const widgets = {};
const repaints = [];

/* ---- small helpers ------------------------------------------------------------------------------------------ */

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function say(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

const percent = (share) => (share < 0.001 && share > 0 ? "under 0.1 %" : say(100 * share, share < 0.1 ? 2 : 3) + " %");

function isDark() {
  if (page.dataset.theme) return page.dataset.theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/* ---- light and dark ----------------------------------------------------------------------------------------- */

function rememberedTheme(value) {
  try {
    if (value) localStorage.setItem("latentia-theme", value);
    return localStorage.getItem("latentia-theme");
  } catch {
    return null; /* files may be opened where nothing is remembered */
  }
}

function themeButton() {
  const button = document.querySelector("#theme");
  const remembered = rememberedTheme();
  if (remembered === "light" || remembered === "dark") page.dataset.theme = remembered;
  const label = () => {
    button.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark");
    button.textContent = isDark() ? "Light" : "Dark";
  };
  const changed = () => {
    label();
    repaints.forEach((repaint) => repaint());
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    page.dataset.theme = isDark() ? "light" : "dark";
    rememberedTheme(page.dataset.theme);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  label();
}

/* ---- sprite sheets: tiles cut out of one picture ------------------------------------------------------------- */

async function openSheet(sheet) {
  const image = new Image();
  image.src = sheet.src;
  await image.decode();
  const canvas = make("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const [height, width] = sheet.tile;
  const channels = sheet.colour ? 3 : 1;
  const values = (index) => {
    const top = Math.floor(index / sheet.columns) * height;
    const left = (index % sheet.columns) * width;
    const found = new Float32Array(height * width * channels);
    for (let i = 0; i < height; i++)
      for (let j = 0; j < width; j++)
        for (let c = 0; c < channels; c++)
          found[(i * width + j) * channels + c] = pixels[((top + i) * canvas.width + left + j) * 4 + c] / 255;
    return found;
  };
  return { ...sheet, values };
}

/* Blue is negative, red is positive; zero is the colour of the page, so that tiles do not glare in the dark. */
const LIGHT_STOPS = [[5, 48, 97], [67, 147, 195], [247, 247, 247], [214, 96, 77], [103, 0, 31]];
const DARK_STOPS = [[146, 197, 222], [52, 120, 178], [30, 35, 41], [196, 78, 62], [244, 165, 130]];

function signedColour(share) {
  const stops = isDark() ? DARK_STOPS : LIGHT_STOPS;
  const place = Math.min(Math.max(share, 0), 1) * 4;
  const first = Math.min(3, Math.floor(place));
  const rest = place - first;
  return stops[first].map((start, c) => start + rest * (stops[first + 1][c] - start));
}

/* A tile on the page: a picture, or bars for numbers that are none; several of them where data have several kinds.
   `layout` is {tile, colour, parts}; `show(values, signed, zero)` paints values between 0 and 1. */
class Tile {
  constructor(layout, target, named = false) {
    this.parts = layout.parts.map((part) => this.#part(part, layout, target));
    this.element = make("span", { class: "tile" });
    for (const part of this.parts) {
      const box = named && part.name ? make("span", { class: "part" }, part.canvas, make("small", { text: part.name })) : part.canvas;
      this.element.append(box);
    }
    this.box = null;
  }

  #part(part, layout, target) {
    const whole = layout.parts.length === 1 && layout.tile[0] > 1;
    const shape = whole ? layout.tile : part.shape.length ? part.shape : null;
    const canvas = make("canvas");
    if (shape) {
      [canvas.height, canvas.width] = shape;
      const zoom = Math.max(1, Math.round(target / Math.max(shape[0], shape[1])));
      canvas.style.width = `${shape[1] * zoom}px`;
    } else {
      canvas.width = Math.round(target * (layout.parts.length > 1 ? 1.3 : 2.2)) * 2;
      canvas.height = Math.round(target * 0.8) * 2;
      canvas.style.width = `${canvas.width / 2}px`;
    }
    return { canvas, shape, name: part.name, begin: part.begin, end: whole ? Infinity : part.end, colour: layout.colour };
  }

  show(values, signed = false, zero = 0) {
    for (const part of this.parts) {
      const mine = part.end === Infinity ? values : values.subarray(part.begin, part.end);
      if (part.shape) this.#picture(part, mine, signed);
      else this.#bars(part.canvas, mine, zero);
    }
  }

  outline(box) {
    this.element.classList.toggle("outlined", Boolean(box));
    if (!box) return;
    if (!this.box) this.element.append((this.box = make("i")));
    const [top, left, height, width] = box.map((share) => `${100 * share}%`);
    Object.assign(this.box.style, { top, left, height, width });
  }

  #picture(part, values, signed) {
    const { canvas } = part;
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    for (let i = 0; i < canvas.width * canvas.height; i++) {
      let colour;
      if (part.colour) colour = [0, 1, 2].map((c) => 255 * values[3 * i + c]);
      else if (signed) colour = signedColour(values[i]);
      else colour = Array(3).fill(255 * values[i]);
      image.data.set([...colour, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
  }

  #bars(canvas, values, zero) {
    const context = canvas.getContext("2d");
    const style = getComputedStyle(page);
    const { width, height } = canvas;
    const room = width / values.length;
    const line = height * (1 - Math.min(Math.max(zero, 0), 1));
    context.clearRect(0, 0, width, height);
    context.fillStyle = style.getPropertyValue("--rule");
    context.fillRect(0, Math.min(line, height - 1), width, 1);
    values.forEach((value, i) => {
      const top = height * (1 - value);
      context.fillStyle = style.getPropertyValue(top <= line ? "--blue" : "--orange");
      context.fillRect(i * room, Math.min(top, line), Math.max(room - (room > 4 ? 2 : 0), 1), Math.max(Math.abs(top - line), 1));
    });
  }
}

/* Where zero lies between black and white. */
const zeroOf = (sheet) => (sheet.signed ? 0.5 : (0 - sheet.low) / (sheet.high - sheet.low || 1));

const wholeTile = (sheet) => ({
  tile: sheet.tile,
  colour: sheet.colour,
  parts: [{ name: "", begin: 0, end: sheet.tile[0] * sheet.tile[1], shape: sheet.tile }],
});

/* ---- samples on their way ----------------------------------------------------------------------------------- */

widgets.frames = async (root, data) => {
  const sheet = await openSheet(data.sheet);
  const side = Math.ceil(Math.sqrt(data.count));
  const target = Math.max(24, Math.min(56, 400 / side));
  const tiles = Array.from({ length: data.count }, () => new Tile(wholeTile(sheet), target));
  const grid = make("div", { class: "frames", style: `--side: ${side}` }, ...tiles.map((tile) => tile.element));
  const output = make("output", {});
  const last = data.labels.length - 1;
  const slider = make("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": "Which sweep" });
  const paint = () => {
    const frame = Number(slider.value);
    tiles.forEach((tile, i) => tile.show(sheet.values(frame * data.count + i)));
    output.textContent = data.labels[frame];
    slider.setAttribute("aria-valuetext", data.labels[frame]);
  };
  let timer = 0;
  const play = make("button", { type: "button", class: "quiet", text: "Play" });
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  play.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "Stop";
    slider.value = 0;
    paint();
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      paint();
      if (Number(slider.value) >= last) stop();
    }, 600);
  });
  slider.addEventListener("input", () => {
    stop();
    paint();
  });
  root.append(grid, make("div", { class: "controls" }, play, slider, output));
  repaints.push(paint);
  paint();
};
