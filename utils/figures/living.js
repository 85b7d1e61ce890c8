// Brings the timelines of living.py to life. Each output carries it; it wakes all that are still images.
(() => {
const LETTER = 6.8, TICKS = 110, FOLDED = 14, OPEN = 72, NARROW = 320, INK = "#222";
const clamp = (x, least, most) => Math.max(least, Math.min(x, most));
const set = (one, attributes) => (Object.entries(attributes || {}).forEach(pair => one.setAttribute(...pair)), one);
const make = (name, attributes, textContent = "") =>
  Object.assign(set(document.createElementNS("http://www.w3.org/2000/svg", name), attributes), {textContent});
const short = name => {
  const found = /^(\p{L})\D*?[\s_#]*(\d+)$/u.exec(name);
  return found ? (/^(for|back)ward/i.test(name) ? found[1].toUpperCase() : found[1]) + found[2] : "";
};

function wake(image) {
  // Each copy has ids of its own: the patterns of a figure in a folded output paint nothing elsewhere.
  const copy = window.manyranks = (window.manyranks || 0) + 1;
  const bytes = Uint8Array.from(atob(image.src.split(",")[1]), one => one.charCodeAt(0));
  const source = new TextDecoder().decode(bytes).replace(/(id='|url\(#)mr-/g, `$1mr${copy}-`);
  const svg = document.importNode(new DOMParser().parseFromString(source, "image/svg+xml").documentElement, true);
  const box = document.createElement("div"), tip = document.createElement("div");
  box.className = "manyranks";
  box.style.cssText = "position:relative;max-width:912px;line-height:normal";
  tip.style.cssText = "position:absolute;display:none;pointer-events:none;z-index:9;max-width:310px;padding:4px 8px;"
    + "background:#fff;color:#222;border:1px solid #888;border-radius:4px;font:12px/1.4 Helvetica,Arial,sans-serif";
  svg.style.cssText = "display:block;touch-action:pan-y;user-select:none;-webkit-user-select:none";
  box.append(svg, tip);
  image.replaceWith(box);

  const find = name => svg.querySelector(name), numbers = /M(\S+) (\S+?)h(\S+?)v([\d.]+)/g;
  const {left, right, span, unit, about, floor, lanes, words, bars} = JSON.parse(find("metadata").textContent);
  const still = svg.viewBox.baseVal.width - left - right;
  const rows = [...find(".lanes").children], keys = [...find(".keys").children], cycle = find(".arrows");
  const rects = [...svg.querySelectorAll(".bars path")].flatMap(path => {
    const found = [...path.getAttribute("d").matchAll(numbers)].map(m => Object.assign(make("rect"), {was: m.slice(1).map(Number)}));
    path.replaceWith(...found);
    return found;
  });
  rects.forEach((rect, n) => {
    const [name, full, lasts, remark, link, tall] = bars.slice(6 * n, 6 * n + 6), [x, y, w] = rect.was;
    const lane = lanes.findLastIndex(([top]) => y >= top - .01), when = px => (px - left) / still * span;
    const says = [words[full], lanes[lane][2], words[lasts].replace(" ", "\u00a0"), words[remark]].filter(Boolean).join(" · ");
    Object.assign(rect, {names: [words[name], short(words[name])], link, tall, lane, says, from: when(x), to: when(x + w)});
  });
  const over = svg.appendChild(make("g", {"pointer-events": "none", "text-anchor": "middle"}));
  const heights = lanes.map(lane => lane[1]);
  let from = 0, to = span, wide = 0, tops = [], measured = null, cursor = null, under = null, armed = false;
  const room = () => wide - left - right;
  const x = time => clamp(left + (time - from) / (to - from) * room(), left, wide - right);
  const time = event => from + clamp((event.clientX - svg.getBoundingClientRect().left - left) / room(), 0, 1) * (to - from);

  function draw() {
    let shift = 0;
    tops = lanes.map(([top, tall], n) => { shift += heights[n] - tall; return top + shift - heights[n] + tall; });
    rows.forEach((row, n) => {
      set(row, {transform: `translate(0 ${tops[n] - lanes[n][0]})`});
      set(row.lastChild, {transform: `translate(0 ${(heights[n] - lanes[n][1]) / 2})`});
    });
    for (const one of svg.querySelectorAll(":scope > text, .lanes > g > text")) {
      const full = one.full ||= one.textContent, letter = one.getAttribute("font-size") > 12 ? LETTER * 1.5 : LETTER;
      const most = Math.floor((wide - one.getAttribute("x")) / letter);
      one.textContent = full.length > most ? full.slice(0, most - 1) + "\u2026" : full;
    }
    find(".labels").textContent = "";
    for (const rect of rects) {
      const {was: [, y0, , h0], lane, names, tall} = rect, k = heights[lane] / lanes[lane][1];
      const a = x(rect.from), w = Math.max(x(rect.to) - a, .5), y = tops[lane] + (y0 - lanes[lane][0]) * k;
      set(rect, {x: a, y, width: w, height: h0 * k, display: rect.to < from || rect.from > to ? "none" : "inline"});
      const name = tall * k >= 12 && names.find(name => name && name.length * LETTER + 4 <= w);
      if (name) find(".labels").append(make("text", {x: a + w / 2, y: y + tall * k / 2 + 4}, name));
    }
    let across = left, down = floor + 48;
    for (const key of keys) {
      const much = 38 + key.textContent.length * LETTER;
      if (across + much > wide && across > left) [across, down] = [left, down + 19];
      set(key, {transform: `translate(${across} ${down})`});
      across += much;
    }
    const high = down + 19 + shift;
    set(svg, {width: wide, height: high, viewBox: `0 0 ${wide} ${high}`});
    set(find(".foot"), {transform: `translate(0 ${shift})`});
    set(cycle, {transform: `translate(${room() - still} 0)`});
    axis();
    point();
  }
  function axis() {
    const least = (to - from) * TICKS / room(), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].find(factor => factor * power >= least) * power;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), middle = {"text-anchor": "middle"};
    find(".axis").replaceChildren(
      make("path", {d: `M0 ${floor}H${wide}`, stroke: INK}),
      make("text", {x: left + room() / 2, y: floor + 35, ...middle}, `${unit} since ${about}`));
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to * (1 + 1e-9); n++) find(".axis").append(
      make("path", {d: `M${x(n * step)} ${floor}v5`, stroke: INK}),
      make("text", {x: x(n * step), y: floor + 18, ...middle}, (n * step).toFixed(digits)));
  }
  // What lies over the bars: the span that was measured, the cursor, and what belongs to the bar under the pointer.
  function point() {
    const end = floor + heights.reduce((more, tall, n) => more + tall - lanes[n][1], 0);
    over.textContent = "";
    if (measured) {
      const [a, b] = measured.map(x).sort((p, q) => p - q);
      over.append(make("rect", {x: a, y: 26, width: b - a, height: end - 26, fill: "#2E7FBF", opacity: .2}));
      note((a + b) / 2, Math.abs(measured[1] - measured[0]), 18);
    }
    if (cursor !== null) {
      over.append(make("path", {d: `M${x(cursor)} 26V${end}`, stroke: INK, "stroke-dasharray": "3 3"}));
      note(x(cursor), cursor, end + 3);
    }
    for (const rect of rects) if (rect === under || under && under.link && rect.link === under.link)
      over.append(set(rect.cloneNode(), {class: "lit", fill: "none", stroke: INK, "stroke-width": 3}));
  }
  function note(at, amount, y) {
    const said = `${+amount.toPrecision(4)} ${unit}`, half = said.length * LETTER / 2 + 5, middle = clamp(at, half, wide - half);
    over.append(make("rect", {x: middle - half, y, width: 2 * half, height: 17, fill: "#fff", stroke: "#888", rx: 3}));
    over.append(make("text", {x: middle, y: y + 13}, said));
  }
  function tell(event) {
    const at = svg.getBoundingClientRect();
    tip.style.display = under ? "block" : "none";
    tip.style.left = 0;
    tip.textContent = under ? under.says : "";
    tip.style.left = `${clamp(event.clientX - at.left + 14, 0, Math.max(0, wide - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - at.top + 18}px`;
    point();
  }
  const inside = event => event.clientX - svg.getBoundingClientRect().left >= left;
  const listen = (kind, hear) => svg.addEventListener(kind, hear, {passive: false});
  listen("pointermove", event => {
    armed ||= event.movementX || event.movementY;
    under = rects.includes(event.target) ? event.target : null;
    cursor = inside(event) ? time(event) : null;
    if (event.buttons & 1 && measured) measured[1] = time(event);
    tell(event);
  });
  listen("pointerleave", event => { under = cursor = null; armed = false; tell(event); });
  listen("pointerdown", event => {
    measured = inside(event) ? [time(event), time(event)] : null;
    const y = event.clientY - svg.getBoundingClientRect().top, n = tops.findIndex((top, n) => y >= top && y < top + heights[n]);
    if (measured || n < 0 || cycle.firstChild) return;
    const first = lanes[n][1];
    heights[n] = heights[n] !== first ? first : first > 28 ? FOLDED : OPEN;
    draw();
  });
  listen("pointerup", () => { if (measured && Math.abs(x(measured[0]) - x(measured[1])) < 3) measured = null; point(); });
  listen("dblclick", () => { [from, to, measured] = [0, span, null]; draw(); });
  // If the page scrolls under a pointer at rest, it goes on scrolling.
  listen("wheel", event => {
    const pans = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY), whole = to - from >= span;
    if (!armed || whole && (pans || event.deltaY > 0)) return;
    event.preventDefault();
    const at = time(event), share = (at - from) / (to - from), by = event.deltaX || event.deltaY;
    const length = pans ? to - from : clamp((to - from) * Math.exp(clamp(event.deltaY, -100, 100) / 300), span / 1e3, span);
    from = clamp(pans ? from + by / room() * length : at - share * length, 0, span - length);
    to = from + length;
    draw();
  });
  new ResizeObserver(() => {
    const now = clamp(Math.floor(box.clientWidth), NARROW, 912);
    if (box.clientWidth && now !== wide) { wide = now; draw(); }
  }).observe(box);
}
document.querySelectorAll("img.manyranks.timeline").forEach(wake);
})();
