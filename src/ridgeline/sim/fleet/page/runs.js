"use strict";
// Runs of the simulator: their table, their distributions, what they were over time, and the knee.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);
const COLOURS = 8;
const shown = DATA.runs.slice(0, COLOURS);

function makeTable() {
  const head = plot.html(plot.html(byId("runs"), "thead", ""), "tr", "");
  plot.html(head, "td", "");
  for (const run of DATA.runs) plot.html(head, "th", "", run.name).scope = "col";
  const body = plot.html(byId("runs"), "tbody", "");
  for (const [label, ...cells] of DATA.table) {
    const row = plot.html(body, "tr", "");
    plot.html(row, "th", "", label).scope = "row";
    for (const cell of cells) plot.html(row, "td", "", cell);
  }
  for (const note of DATA.notes) plot.html(byId("notes"), "li", "", note);
  byId("shown").hidden = DATA.runs.length <= COLOURS;
  byId("shown").textContent = `The plots show the first ${COLOURS} of ${DATA.runs.length} runs.`;
}

// Percentiles are spread so that the tail has room: 90, 99 and 99.9 are equally far apart.
function drawDistribution(name, title) {
  const curves = shown.map((run, colour) => ({ name: run.name, colour, points: run.curves[name].map((y, i) => [1 / (1 - DATA.shares[i]), y]) }))
    .filter((curve) => curve.points.length);
  if (!curves.length) return void (byId(name).textContent = "Nothing was measured.");
  const values = curves.flatMap((curve) => curve.points.map(([, y]) => y)), low = Math.max(1e-6, Math.min(...values)), high = Math.max(low * 2, ...values);
  const end = Math.max(...curves.map((curve) => curve.points.at(-1)[0]));
  plot.lines(byId(name), {
    label: `${title} by percentile: ${curves.map(({ name: run, points }) => `${run} from ${plot.seconds(points[0][1])} to ${plot.seconds(points.at(-1)[1])}`).join(", ")}`,
    x: { label: "percentile", low: 1, high: end, log: true, at: [1, 2, 10, 100, 1000].filter((at) => at <= end * 1.001), format: (x) => `p${Number((100 - 100 / x).toFixed(1))}` },
    y: { label: title, low: low / 1.2, high: high * 1.2, log: true, format: plot.seconds },
    curves: curves.map((curve) => ({ ...curve, points: curve.points.map(([x, y]) => [x, Math.max(low, y)]) })),
  });
}

function drawOverTime() {
  const told = shown.map((run, colour) => ({ name: run.name, colour, told: run.over_time })).filter((run) => run.told?.time.length);
  byId("over-time").hidden = !told.length;
  if (!told.length) return;
  const [low, high] = [Math.min, Math.max].map((end) => end(...told.flatMap((run) => run.told.time)));
  const hours = high > 7200 ? 3600 : 1;
  const x = { label: hours > 1 ? "arrival, h" : "arrival, s", low: low / hours, high: Math.max(high, low + 1e-6) / hours, format: (x) => String(Number(x.toPrecision(3))) };
  const percent = (y) => `${Number((100 * y).toPrecision(3))} %`;
  for (const [id, key, title, log, format] of [["met", "met", "within the objective", false, percent], ["late", "ttft", "TTFT p99", true, plot.seconds]]) {
    const curves = told.map((run) => ({ ...run, points: run.told[key].map((y, i) => [run.told.time[i] / hours, log ? Math.max(1e-6, y) : y]) }));
    const values = curves.flatMap(({ points }) => points.map(([, y]) => y)), least = Math.min(...values), most = Math.max(...values);
    plot.lines(byId(id), {
      label: `${title} over time: ${curves.map(({ name, points }) => `${name} from ${format(points[0][1])} to ${format(points.at(-1)[1])}`).join(", ")}`,
      x, curves, y: log ? { label: title, low: least / 1.2, high: most * 1.2, log, format } : { label: title, low: 0, high: 1.05, at: [0, 0.25, 0.5, 0.75, 1], format },
    });
  }
}

function drawKnee() {
  const curve = DATA.knee_curve, guides = [{ x: DATA.knee_rate, label: `knee ${DATA.knee_rate.toPrecision(3)}/s` }];
  byId("knee").hidden = false;
  for (const [id, key, title, format] of [["knee-rate", "tokens_per_second", "tokens/s", (y) => plot.amount(y)], ["knee-e2e", "e2e", "mean E2E", plot.seconds]]) {
    const points = curve.map((point) => [point.rate, point[key]]);
    plot.lines(byId(id), {
      label: `${title} by requests per second: ${points.map(([x, y]) => `${format(y)} at ${x.toPrecision(3)}`).join(", ")}`,
      x: { label: "requests/s", low: 0, high: points.at(-1)[0] * 1.02, format: (x) => plot.amount(x) },
      y: { label: title, low: 0, high: Math.max(...points.map(([, y]) => y)) * 1.15, format }, curves: [{ name: title, colour: 0, points }], guides,
    });
  }
}

function draw() {
  for (const [name, title] of [["ttft", "TTFT"], ["itl", "ITL"], ["e2e", "E2E"]]) drawDistribution(name, title);
  if (byId("over-time")) drawOverTime();  // a benchmark's page tells of whole runs alone
  if (DATA.knee_curve) drawKnee();
}

makeTable();
plot.theme(byId("theme"));
plot.live(draw);
