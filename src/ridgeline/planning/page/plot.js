"use strict";
// Plots as SVG, drawn anew at the width that the page has. Knows axes, curves and bars; nothing of models.
const plot = (() => {
  const SVG = "http://www.w3.org/2000/svg", HEIGHT = 240, LEFT = 58, RIGHT = 14, TOP = 22, BOTTOM = 40;

  function element(parent, name, attributes = {}, text = "") {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  function html(parent, name, className, text = "") {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    parent.append(made);
    return made;
  }

  // Three significant digits with a metric prefix: 12.3 k, 1.98 P.
  function amount(value, unit = "") {
    const scales = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const [scale, prefix] = scales.find(([each]) => Math.abs(value) >= each * 0.9995) ?? [1, ""];
    return `${Number((value / scale).toPrecision(3))} ${prefix}${unit}`.trim();
  }

  function seconds(value) {
    if (value === 0) return "0";
    const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
    return `${Number((value / scale).toPrecision(3))} ${unit}`;
  }

  // Positions of ticks: 1, 2, 5 times powers of ten (only the powers where there are many decades), or an even division.
  function ticks({ low, high, log, at }) {
    if (at) return at;
    if (!log) {
      const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
      return Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => i * step).filter((each) => each >= low);
    }
    const decades = Math.log10(high / low), every = Math.ceil(decades / 6), marks = decades > 3 ? [1] : decades > 1.3 ? [1, 3] : [1, 2, 5];
    const first = Math.floor(Math.log10(low)), found = [];
    for (let power = first; power <= Math.log10(high); power += every) found.push(...marks.map((each) => each * 10 ** power));
    return found.filter((each) => each >= low * 0.999 && each <= high * 1.001);
  }

  function scale({ low, high, log }, from, to) {
    const of = log ? Math.log : (value) => value;
    return (value) => from + ((of(value) - of(low)) / (of(high) - of(low))) * (to - from);
  }

  function axes(svg, width, x, y, put) {
    for (const each of ticks(y)) {
      element(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: put.y(each), y2: put.y(each) });
      element(svg, "text", { x: LEFT - 6, y: put.y(each) + 4, "text-anchor": "end" }, y.format(each));
    }
    for (const each of ticks(x)) element(svg, "text", { x: put.x(each), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, x.format(each));
    element(svg, "text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x.label);
    element(svg, "text", { x: 0, y: 10 }, y.label);
  }

  const anchor = (at, width) => (at > width - 90 ? { "text-anchor": "end", dx: -7 } : { dx: 7 });

  // x, y: { label, low, high, log, format, at }; curves: [{ name, colour, points }]; guides: [{ x, label }]; dots: [{ x, y, colour, label }]
  function lines(figure, { label, x, y, curves, guides = [], dots = [] }) {
    figure.replaceChildren();
    const width = Math.max(260, figure.clientWidth);
    const svg = element(figure, "svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
    const put = { x: scale(x, LEFT, width - RIGHT), y: scale(y, HEIGHT - BOTTOM, TOP) };
    axes(svg, width, x, y, put);
    guides.filter((each) => each.x >= x.low && each.x <= x.high).forEach((guide, i) => {
      const at = put.x(guide.x);
      element(svg, "line", { class: "guide", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM });
      element(svg, "text", { class: "label", x: at, y: TOP + 10 + 15 * i, ...anchor(at, width) }, guide.label);
    });
    // The first curve lies on top: it is what the others are compared with.
    for (const { points, colour } of [...curves].reverse()) {
      const path = points.map(([a, b], i) => `${i ? "L" : "M"}${put.x(a).toFixed(2)} ${put.y(b).toFixed(2)}`).join("");
      element(svg, "path", { class: `curve c${colour}`, d: path });
    }
    for (const dot of dots) {
      element(svg, "circle", { class: `dot c${dot.colour}`, cx: put.x(dot.x), cy: put.y(dot.y), r: 6 });
      element(svg, "text", { class: "label", x: put.x(dot.x), y: put.y(dot.y) + 20, ...anchor(put.x(dot.x), width) }, dot.label);
    }
    read(figure, svg, { x, y, curves, put, width });
    if (curves.length > 1) legend(figure, curves.map(({ name, colour }) => [`c${colour}`, name]));
  }

  // Under the plot: the values at the point of the first curve that is nearest to the pointer.
  function read(figure, svg, { x, y, curves, put, width }) {
    const reading = html(figure, "p", "reading");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
      const near = (points) => points.reduce((a, b) => (Math.abs(put.x(b[0]) - at) < Math.abs(put.x(a[0]) - at) ? b : a));
      const values = curves.map(({ name, points }) => `${curves.length > 1 ? `${name} ` : ""}${y.format(near(points)[1])}`);
      reading.textContent = `${x.label} ${x.format(near(curves[0].points)[0])}: ${values.join(" · ")}`;
    });
  }

  function legend(figure, entries) {
    const list = html(figure, "ul", "legend");
    for (const [className, text] of entries) {
      const entry = html(list, "li", "");
      html(entry, "span", `swatch ${className}`);
      html(entry, "span", "", text);
    }
  }

  // parts: [{ name, value, colour }] (no colour: free) from the left; a mark at `limit`.
  function stack(figure, { label, parts, limit, limitLabel, format }) {
    figure.replaceChildren();
    const width = Math.max(260, figure.clientWidth), high = Math.max(limit, parts.reduce((sum, each) => sum + each.value, 0));
    const svg = element(figure, "svg", { viewBox: `0 0 ${width} 74`, role: "img", "aria-label": label });
    const put = scale({ low: 0, high }, 0, width);
    let at = 0;
    for (const { value, colour, name } of parts) {
      const part = element(svg, "rect", {
        class: colour === undefined ? "free" : `part c${colour}`, x: put(at), y: 20, width: Math.max(0, put(value)), height: 40,
      });
      element(part, "title", {}, `${name}: ${format(value)}`);
      at += value;
    }
    element(svg, "line", { class: "guide", x1: put(limit), x2: put(limit), y1: 14, y2: 66 });
    element(svg, "text", { class: "label", x: put(limit), y: 10, "text-anchor": put(limit) > width / 2 ? "end" : "start" }, limitLabel);
    legend(figure, parts.map(({ name, value, colour }) => [colour === undefined ? "free" : `c${colour}`, `${name} ${format(value)}`]));
  }

  // Draws now, and again when the page's width changes.
  function live(draw) {
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth !== width) draw();
      width = innerWidth;
    });
    draw();
  }

  // The button between the two schemes.
  function theme(button) {
    button.addEventListener("click", () => {
      const root = document.documentElement, dark = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
      root.dataset.theme = dark === "dark" ? "light" : "dark";
    });
  }

  return { lines, stack, live, theme, amount, seconds, html };
})();
