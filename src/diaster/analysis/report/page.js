"use strict";
// Draws curves from the data in the page. Text goes in as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("curves-data").textContent);
  const at = (id) => document.getElementById(id);
  const W = 400, H = 260, LEFT = 58, RIGHT = 14, TOP = 12, BOTTOM = 40, LETTER = 7;
  const SVG = ["svg", "path", "line", "text", "circle", "g"];

  const make = (name, attributes = {}, text = "") => {
    const node = SVG.includes(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  };
  const minus = (text) => text.replace("-", "−");
  const full = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-3)) return minus(value.toExponential(2));
    return minus(value.toLocaleString("en", { maximumFractionDigits: size < 1 ? 3 : size < 100 ? 2 : 0 }));
  };
  // Numbers on an axis: with as many digits as tell neighbours apart.
  const short = (value, step) => {
    if (Math.abs(value) < step * 1e-6) return "0";
    const size = Math.max(Math.abs(value), step);
    if (size >= 1e9 || size < 1e-4) return minus(value.toExponential(1));
    const [by, unit] = size >= 1e6 ? [1e6, " M"] : size >= 1e3 ? [1e3, " k"] : [1, ""];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / by) - 1e-9));
    return minus(`${+(value / by).toFixed(Math.min(digits + 1, 12))}${unit}`);
  };
  const ticks = (low, high, n) => {
    const raw = (high - low) / n || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * (1 - 1e-9));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
    return [found, step];
  };
  // As many ticks as have room side by side.
  const across = (last, room) => {
    for (let n = 6; n > 1; n -= 1) {
      const [found, step] = ticks(0, last, n);
      const widest = Math.max(...found.map((value) => short(value, step).length)) * LETTER + 10;
      if (widest < room * step / last) return [found, step];
    }
    return ticks(0, last, 1);
  };

  // What is chosen
  const boxes = (id, items, looks) => items.map((name, k) => {
    const label = make("label"), box = make("input", { type: "checkbox", value: name });
    box.checked = true;
    label.append(box);
    if (looks) {
      const swatch = make("svg", { class: `swatch ${looks[k].look}`, viewBox: "0 0 30 10", "aria-hidden": "true" });
      swatch.append(make("line", { class: "mean", x1: 0, x2: 30, y1: 5, y2: 5, "stroke-dasharray": looks[k].dash }));
      label.append(swatch);
      label.addEventListener("pointerenter", () => single(k));
      label.addEventListener("pointerleave", () => single(null));
    }
    label.append(document.createTextNode(name));
    at(id).append(label);
    return box;
  });
  const single = (kind) => {
    for (const group of at("curves").querySelectorAll("g.curve")) {
      const isOther = kind !== null && group.dataset.kind !== String(kind);
      for (const part of group.children) part.classList.toggle("dimmed", isOther);
    }
  };
  const kinds = boxes("kinds", data.kinds.map((one) => one.name), data.kinds);
  const tasks = boxes("tasks", data.tasks.map((one) => one.title));
  for (const metric of data.metrics) at("metric").append(make("option", { value: metric.name }, metric.title));

  const draw = () => {
    const metric = data.metrics.find((one) => one.name === at("metric").value);
    at("meaning").textContent = `${metric.help}; mean and standard error over seeds. Point at a curve to read it.`;
    at("curves").replaceChildren();
    data.tasks.forEach((task, k) => {
      const curves = task.curves.filter((one) => kinds[one.kind].checked && metric.name in one.values);
      if (tasks[k].checked && curves.length) at("curves").append(panel(task.title, curves, metric));
    });
    if (!at("curves").children.length) {
      const isAnyChosen = kinds.some((box) => box.checked) && tasks.some((box) => box.checked);
      at("curves").append(make("p", { class: "empty" }, isAnyChosen ? `What is chosen has no ${metric.title}.` : "Nothing is chosen."));
    }
  };

  // The axis shows all values with room around them, but follows a metric that explodes only to its limits.
  const limits = (curves, metric) => {
    const least = metric.low ?? -Infinity, most = metric.high ?? Infinity;
    let low = Infinity, high = -Infinity;
    for (const one of curves) one.values[metric.name].mean.forEach((value, k) => {
      if (value === null) return;
      const error = one.values[metric.name].error[k];
      low = Math.min(low, Math.min(most, Math.max(least, value - error)));
      high = Math.max(high, Math.max(least, Math.min(most, value + error)));
    });
    if (metric.low === null && low > 0 && low < 0.4 * high) low = 0;
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= 1e-3 * size || high === low) {
      high += 0.05 * size || 1;
      low -= 0.05 * size || 1;
    }
    const room = 0.05 * (high - low);
    return [low - (low === 0 ? 0.4 * room : room), high + room];
  };

  const panel = (title, curves, metric) => {
    const frame = make("div", { class: "panel" });
    frame.append(make("h3", {}, title));
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${metric.title} over steps on ${title}` });
    const last = Math.max(...curves.map((one) => one.steps.at(-1)));
    const [low, high] = limits(curves, metric);
    const x = (step) => LEFT + 4 + (W - LEFT - RIGHT - 4) * step / last;
    const y = (value) => TOP + (H - TOP - BOTTOM) * (high - value) / (high - low);
    const [rows, rowStep] = ticks(low, high, 5);
    for (const value of rows) {
      svg.append(make("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(make("text", { class: "value", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value, rowStep)));
    }
    const [columns, columnStep] = across(last, W - LEFT - RIGHT);
    for (const value of columns) {
      const text = short(value, columnStep), half = text.length * LETTER / 2;
      svg.append(make("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP, y2: H - BOTTOM }));
      svg.append(make("text", { class: "step", x: Math.min(x(value), W - half - 2), y: H - BOTTOM + 15, "text-anchor": "middle" }, text));
    }
    svg.append(make("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
    const middle = (TOP + H - BOTTOM) / 2;
    svg.append(make("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, metric.title));
    svg.append(make("text", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, "environment steps"));
    const drawn = [...curves].reverse().map((one) => {
      const item = curve(one, metric, x, y);
      svg.append(item.group);
      return item;
    });
    frame.append(svg, ...pointing(svg, frame, drawn, metric));
    return frame;
  };

  // A curve: pieces of line between gaps, points that have no neighbour, and arrows for what lies beyond the axis.
  const curve = (one, metric, x, y) => {
    const kind = data.kinds[one.kind], { mean, error } = one.values[metric.name];
    const group = make("g", { class: `curve ${kind.look}`, "data-kind": one.kind });
    const least = (metric.low ?? -Infinity) - 1e-6, most = (metric.high ?? Infinity) + 1e-6;
    const inside = (value) => Math.max(metric.low ?? -Infinity, Math.min(metric.high ?? Infinity, value));
    const points = [], pieces = [];
    let piece = [];
    one.steps.forEach((step, k) => {
      const value = mean[k];
      const isShown = value !== null && value >= least && value <= most;
      if (isShown) piece.push(k);
      if (piece.length && (!isShown || k === one.steps.length - 1)) {
        pieces.push(piece);
        piece = [];
      }
      if (value !== null) points.push({ k, cx: x(step), cy: y(inside(value)) });
      if (value !== null && !isShown) {
        const isLow = value < least;
        group.append(make("text", { class: "beyond", x: x(step), y: isLow ? H - BOTTOM - 2 : TOP + 7, "text-anchor": "middle" }, isLow ? "▼" : "▲"));
      }
    });
    for (const found of pieces) {
      const line = found.map((k) => `${x(one.steps[k])},${y(mean[k])}`);
      const ends = (sign) => found.map((k) => `${x(one.steps[k])},${y(inside(mean[k] + sign * error[k]))}`);
      if (found.length === 1) {
        const [k] = found, cx = x(one.steps[k]);
        if (one.seeds > 1) group.append(make("line", { class: "bar", x1: cx, x2: cx, y1: y(inside(mean[k] - error[k])), y2: y(inside(mean[k] + error[k])) }));
        group.append(make("circle", { class: "point", cx, cy: y(mean[k]), r: 3.5 }));
        continue;
      }
      if (one.seeds > 1) group.append(make("path", { class: "band", d: `M${ends(1).join("L")}L${ends(-1).reverse().join("L")}Z` }));
      group.append(make("path", { class: "mean", d: `M${line.join("L")}`, "stroke-dasharray": kind.dash }));
    }
    return { one, kind, points, group };
  };

  // What the pointer is nearest to is told; everything else is dimmed.
  const pointing = (svg, frame, drawn, metric) => {
    const mark = make("circle", { class: "mark", r: 4, visibility: "hidden" });
    svg.append(mark);
    const tip = make("div", { class: "tip", hidden: "" });
    const leave = () => {
      tip.hidden = true;
      mark.setAttribute("visibility", "hidden");
      for (const { group } of drawn) for (const part of group.children) part.classList.remove("dimmed");
    };
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const px = (event.clientX - box.left) * W / box.width, py = (event.clientY - box.top) * H / box.height;
      let best = null;
      for (const item of drawn) for (const { k, cx, cy } of item.points) {
        // Across a curve counts more than along it: the step is taken from the pointer.
        const distance = Math.hypot((cx - px) * 3, cy - py);
        if (!best || distance < best.distance) best = { ...item, k, distance, cx, cy };
      }
      if (!best || best.distance > 120) return leave();
      const { one, k, kind } = best, { mean, error } = one.values[metric.name];
      const seeds = one.seeds > 1 ? ` ± ${full(error[k])} (${one.seeds} seeds)` : " (1 seed)";
      tip.textContent = `${kind.name}\nstep ${full(one.steps[k])}\n${full(mean[k])}${seeds}\n${one.folders}`;
      tip.hidden = false;
      const around = frame.getBoundingClientRect(), scale = box.width / W;
      const left = box.left - around.left + best.cx * scale, top = box.top - around.top + best.cy * scale;
      const room = around.width - tip.offsetWidth - 4;
      tip.style.left = `${Math.max(4, Math.min(room, left + 12))}px`;
      tip.style.top = `${top > tip.offsetHeight + 10 ? top - tip.offsetHeight - 10 : top + 14}px`;
      mark.setAttribute("cx", best.cx);
      mark.setAttribute("cy", best.cy);
      mark.setAttribute("visibility", "visible");
      mark.setAttribute("class", `mark ${kind.look}`);
      for (const { group } of drawn) for (const part of group.children) part.classList.toggle("dimmed", group !== best.group);
      return undefined;
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
    return [tip];
  };

  at("filters").addEventListener("change", draw);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const button of at("kinds").querySelectorAll("button")) button.addEventListener("click", () => {
    for (const box of kinds) box.checked = button.value === "all";
    draw();
  });
  draw();
})();
