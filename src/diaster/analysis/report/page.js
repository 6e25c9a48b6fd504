"use strict";
// Draws the learning curves from the data in the page. Text goes in as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("curves-data").textContent);
  const place = document.getElementById("curves");
  const W = 400, H = 260, LEFT = 58, RIGHT = 12, TOP = 8, BOTTOM = 40;

  const make = (name, attributes = {}, text = "") => {
    const svg = ["svg", "path", "line", "text", "circle", "g"].includes(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  };
  const short = (value) => {
    const size = Math.abs(value);
    const [by, unit] = size >= 1e6 ? [1e6, " M"] : size >= 1e3 ? [1e3, " k"] : [1, ""];
    return `${+(value / by).toPrecision(3)}${unit}`.replace("-", "−");
  };
  const full = (value) => value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 2 : 0 }).replace("-", "−");
  const ticks = (low, high, n) => {
    const raw = (high - low) / n || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
    return found;
  };

  // Filters
  const boxes = (id, names, swatch) => names.map((name) => {
    const label = make("label"), box = make("input", { type: "checkbox", value: name });
    box.checked = true;
    label.append(box);
    if (swatch) label.append(make("span", { class: `swatch ${swatch(name)}` }));
    label.append(document.createTextNode(name));
    document.getElementById(id).append(label);
    return box;
  });
  const lineOf = new Map(data.series.map((one) => [one.name, `${one.method} ${one.dash ? "broken" : ""}`]));
  const methods = boxes("methods", data.series.map((one) => one.name), (name) => lineOf.get(name));
  const tasks = boxes("tasks", data.tasks.map((one) => one.title));
  const all = document.getElementById("all-settings");
  const chosen = (list) => new Set(list.filter((box) => box.checked).map((box) => box.value));

  const draw = () => {
    const shown = chosen(methods), wanted = chosen(tasks);
    place.replaceChildren();
    for (const task of data.tasks) {
      if (!wanted.has(task.title)) continue;
      const curves = task.curves.filter((one) => shown.has(one.series) && (one.plain || (all && all.checked)));
      if (curves.length) place.append(panel(task.title, curves));
    }
    if (!place.children.length) place.append(make("p", { class: "empty" }, "Nothing is chosen."));
  };

  const panel = (title, curves) => {
    const frame = make("div", { class: "panel" });
    frame.append(make("h3", {}, title));
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `learning curves of ${title}` });
    const last = Math.max(...curves.map((one) => one.steps.at(-1)));
    let low = Infinity, high = -Infinity;
    for (const one of curves) one.mean.forEach((value, k) => {
      low = Math.min(low, value - one.error[k]);
      high = Math.max(high, value + one.error[k]);
    });
    if (low > 0 && low < 0.4 * high) low = 0;
    if (high === low) { high += 1; low -= 1; }
    const x = (step) => LEFT + (W - LEFT - RIGHT) * step / last;
    const y = (value) => TOP + (H - TOP - BOTTOM) * (high - value) / (high - low);
    for (const value of ticks(low, high, 5)) {
      svg.append(make("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(make("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    for (const value of ticks(0, last, 4)) {
      svg.append(make("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP, y2: H - BOTTOM }));
      svg.append(make("text", { x: x(value), y: H - BOTTOM + 15, "text-anchor": value > 0.9 * last ? "end" : "middle" }, short(value)));
    }
    svg.append(make("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
    const middle = (TOP + H - BOTTOM) / 2;
    svg.append(make("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, "return of an episode"));
    svg.append(make("text", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, "environment steps"));
    const drawn = [...curves].reverse().map((one) => {
      const points = one.steps.map((step, k) => [x(step), y(one.mean[k])]);
      const up = one.steps.map((step, k) => `${x(step)},${y(one.mean[k] + one.error[k])}`);
      const down = one.steps.map((step, k) => `${x(step)},${y(one.mean[k] - one.error[k])}`).reverse();
      const group = make("g", { class: one.method });
      if (one.seeds > 1) group.append(make("path", { class: "band", d: `M${up.join("L")}L${down.join("L")}Z` }));
      group.append(make("path", { class: "mean", d: `M${points.map((p) => p.join(",")).join("L")}`, "stroke-dasharray": one.dash }));
      svg.append(group);
      return { one, points, group };
    });
    const mark = make("circle", { class: "mark", r: 4, visibility: "hidden" });
    svg.append(mark);
    const tip = make("div", { class: "tip", hidden: "" });
    frame.append(svg, tip);

    const leave = () => {
      tip.hidden = true;
      mark.setAttribute("visibility", "hidden");
      for (const { group } of drawn) for (const part of group.children) part.classList.remove("dimmed");
    };
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const px = (event.clientX - box.left) * W / box.width, py = (event.clientY - box.top) * H / box.height;
      let best = null;
      for (const item of drawn) item.points.forEach(([cx, cy], k) => {
        // Across a curve counts more than along it: the step is taken from the pointer.
        const distance = Math.hypot((cx - px) * 3, cy - py);
        if (!best || distance < best.distance) best = { ...item, k, distance, cx, cy };
      });
      if (!best || best.distance > 120) return leave();
      const { one, k } = best;
      tip.textContent = `${one.name}\nstep ${full(one.steps[k])}\n${full(one.mean[k])}${one.seeds > 1 ? ` ± ${full(one.error[k])} (${one.seeds} seeds)` : " (1 seed)"}`;
      tip.hidden = false;
      const around = frame.getBoundingClientRect(), scale = box.width / W;
      const left = box.left - around.left + best.cx * scale, top = box.top - around.top + best.cy * scale;
      const room = around.width - tip.offsetWidth - 4;
      tip.style.left = `${Math.max(4, Math.min(room, left + 12))}px`;
      tip.style.top = `${top > tip.offsetHeight + 10 ? top - tip.offsetHeight - 10 : top + 14}px`;
      mark.setAttribute("cx", best.cx);
      mark.setAttribute("cy", best.cy);
      mark.setAttribute("visibility", "visible");
      mark.setAttribute("class", `mark ${one.method}`);
      for (const { group } of drawn) for (const part of group.children) part.classList.toggle("dimmed", group !== best.group);
      return undefined;
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
    return frame;
  };

  document.getElementById("filters").addEventListener("change", draw);
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  draw();
})();
