// Where the time of an answer went: its causes one below the other, each where the one before ends.
import { explanation } from "./api.js";
import { make } from "./dom.js";

const milliseconds = (ms) => (ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(2)} s`);

function row(cause, begin, whole) {
  const bar = make("span", { className: "bar" });
  bar.style.marginLeft = `${(100 * begin) / whole}%`;
  bar.style.width = `${Math.max(0.5, (100 * cause.ms) / whole)}%`;
  return make("li", { title: cause.what }, make("span", { className: "cause" }, cause.cause.replace("_", " ")),
    make("span", { className: "track" }, bar), make("span", { className: "ms" }, milliseconds(cause.ms)));
}

function rows(part) {
  let begin = 0;
  return part.causes.map((cause) => {
    const made = row(cause, begin, part.ms || 1);
    begin += cause.ms;
    return made;
  });
}

// Shows or hides the waterfall of an answer below `place`.
export async function toggle(place, id) {
  const old = place.querySelector(".waterfall");
  if (old) return void old.remove();
  await show(place, id);
}

// Shows the waterfall of a request below `place`, instead of another's.
export async function show(place, id) {
  place.querySelector(".waterfall")?.remove();
  const box = make("div", { className: "waterfall" });
  place.append(box);
  try {
    const found = await explanation(id);
    box.append(make("p", {}, found.summary), make("ol", {}, ...rows(found.total)));
  } catch (error) {
    box.append(make("p", { className: "note" }, error.message));
  }
}
