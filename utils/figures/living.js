// Brings the timelines of living.py to life. It is in each output, and runs again for those that others left still.
(() => {
const NS = "http://www.w3.org/2000/svg", LETTER = 6.8, TICKS = 110, FOLDED = 14, OPEN = 72, LEAST = 320;
const make = (name, attributes, words) => {
  const one = document.createElementNS(NS, name);
  for (const key in attributes) one.setAttribute(key, attributes[key]);
  if (words !== undefined) one.textContent = words;
  return one;
};
const clamp = (x, least, most) => Math.max(least, Math.min(x, most));

function live(image) {
  image.classList.remove("timeline");
  // Each copy has ids of its own: a hidden figure's patterns don't paint in others.
  window.manyranks = (window.manyranks || 0) + 1;
  const source = Uint8Array.from(atob(image.src.split(",")[1]), c => c.charCodeAt(0));
  const xml = new TextDecoder().decode(source).replace(/(id='|url\(#)mr-/g, `$1mr${window.manyranks}-`);
  const svg = document.importNode(new DOMParser().parseFromString(xml, "image/svg+xml").documentElement, true);
  const box = document.createElement("div"), tip = document.createElement("div");
  box.className = "manyranks";
  box.style.cssText = "position:relative;max-width:912px;min-width:0;line-height:normal";
  tip.style.cssText = "position:absolute;display:none;pointer-events:none;z-index:9;max-width:330px;padding:4px 8px;"
    + "background:#fff;color:#222;border:1px solid #888;border-radius:4px;font:12px/1.35 Helvetica,Arial,sans-serif;"
    + "box-shadow:0 1px 4px #0003;overflow-wrap:anywhere;white-space:pre-line";
  svg.style.cssText = "display:block;touch-action:pan-y;user-select:none;-webkit-user-select:none";
  box.append(svg, tip);
  image.replaceWith(box);

  const find = (selector) => svg.querySelector(selector), data = JSON.parse(find("metadata").textContent);
  const {left, right, span, unit, lanes, words} = data;
  const rects = [...svg.querySelectorAll(".bars rect")], lines = [...find(".lanes").children];
  const arrows = find(".arrows"), foot = find(".foot"), keys = [...find(".keys").children];
  const was = rects.map(r => ["x", "y", "width", "height"].map(key => +r.getAttribute(key)));
  const still = svg.viewBox.baseVal.width - left - right, tall = svg.viewBox.baseVal.height;
  const unfolded = lanes.map(lane => lane[1]);
  const over = make("g", {"pointer-events": "none", "text-anchor": "middle"});
  svg.append(over);
  let from = 0, to = span, wide = 0, tops = [], measured = null, cursor = null, hovered = null, armed = false;

  const bottom = () => tops.at(-1) + unfolded.at(-1);
  const room = () => wide - left - right, x = time => left + (time - from) / (to - from) * room();
  const time = px => from + clamp((px - left) / room(), 0, 1) * (to - from);
  const written = t => `${+t.toPrecision(4)} ${unit}`;

  function draw() {
    let shift = 0;
    tops = lanes.map(([top, high], n) => { const at = top + shift; shift += unfolded[n] - high; return at; });
    lines.forEach((line, n) => {
      line.setAttribute("transform", `translate(0 ${tops[n] - lanes[n][0]})`);
      line.lastChild.setAttribute("transform", `translate(0 ${(unfolded[n] - lanes[n][1]) / 2})`);
    });
    const labels = find(".labels");
    labels.textContent = "";
    rects.forEach((rect, n) => {
      const [x0, y0, w0, h0] = was[n], [label, short, , , , , lane, high] = data.bars[n];
      const a = x((x0 - left) / still * span), b = x((x0 + w0 - left) / still * span), k = unfolded[lane] / lanes[lane][1];
      const l = clamp(a, left, wide - right), w = clamp(b, left, wide - right) - l, y = tops[lane] + (y0 - lanes[lane][0]) * k;
      rect.style.display = b < left || a > wide - right ? "none" : "";
      for (const [key, value] of Object.entries({x: l, y, width: w, height: h0 * k})) rect.setAttribute(key, value.toFixed(2));
      const said = [words[label], words[short]].find(word => word.length * LETTER + 4 <= w);
      if (said && high * k >= 12) labels.append(make("text", {x: l + w / 2, y: y + high * k / 2 + 4}, said));
    });
    let across = left, down = lanes.at(-1)[0] + lanes.at(-1)[1] + 48;
    for (const key of keys) {
      const much = 38 + key.textContent.length * LETTER;
      if (across + much > wide && across > left) [across, down] = [left, down + 19];
      key.setAttribute("transform", `translate(${across} ${down})`);
      across += much;
    }
    foot.setAttribute("transform", `translate(0 ${shift})`);
    arrows.setAttribute("transform", `translate(${wide - left - right - still} 0)`);
    const high = down + 19 + shift;
    for (const [key, value] of [["width", wide], ["height", high], ["viewBox", `0 0 ${wide} ${high}`]]) svg.setAttribute(key, value);
    axis(down - shift);
    point();
  }

  function axis() {
    const axis = find(".axis"), at = lanes.at(-1)[0] + lanes.at(-1)[1], least = (to - from) * TICKS / room();
    const power = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].find(f => f * power >= least) * power;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    axis.replaceChildren(make("path", {d: `M0 ${at}H${wide}`, stroke: "#222"}));
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; n++) {
      axis.append(make("path", {d: `M${x(n * step)} ${at}v5`, stroke: "#222"}));
      axis.append(make("text", {x: x(n * step), y: at + 18, "text-anchor": "middle"}, (n * step).toFixed(digits)));
    }
    axis.append(make("text", {x: left + room() / 2, y: at + 35, "text-anchor": "middle"}, `${unit} since ${data.about}`));
  }

  // The cursor, what was measured, and what is under the pointer.
  function point() {
    const end = bottom(), [, , , , , link] = hovered === null ? [] : data.bars[hovered];
    over.textContent = "";
    if (measured) {
      const [a, b] = measured.map(x).map(px => clamp(px, left, wide - right)).sort((p, q) => p - q);
      over.append(make("rect", {x: a, y: 26, width: b - a, height: end - 26, fill: "#2E7FBF", opacity: .2}));
      note((a + b) / 2, written(Math.abs(measured[1] - measured[0])), 20);
    }
    if (cursor !== null) {
      over.append(make("path", {d: `M${x(cursor)} 26V${end}`, stroke: "#222", "stroke-dasharray": "3 3"}));
      note(x(cursor), written(cursor), end + 2);
    }
    rects.forEach((rect, n) => {
      if (rect.style.display || n !== hovered && !(link && data.bars[n][5] === link)) return;
      const lit = rect.cloneNode();
      for (const [key, value] of [["fill", "none"], ["stroke", "#222"], ["stroke-width", n === hovered ? 2 : 3]]) lit.setAttribute(key, value);
      lit.setAttribute("class", "lit");
      over.append(lit);
    });
  }
  function note(at, words, y) {
    const half = words.length * LETTER / 2 + 5;
    at = clamp(at, half, wide - half);
    over.append(make("rect", {x: at - half, y, width: 2 * half, height: 17, fill: "#fff", stroke: "#888", rx: 3}));
    over.append(make("text", {x: at, y: y + 13}, words));
  }

  function tell(event) {
    tip.style.display = hovered === null ? "none" : "block";
    if (hovered === null) return;
    const [, , name, lasts, remark, , lane] = data.bars[hovered], at = svg.getBoundingClientRect();
    tip.textContent = [words[name], lanes[lane][2], words[lasts], words[remark]].filter(Boolean).join(" · ");
    const px = event.clientX - at.left, py = event.clientY - at.top;
    tip.style.left = `${clamp(px + 14, 0, Math.max(0, wide - tip.offsetWidth))}px`;
    tip.style.top = `${py + 18}px`;
  }
  const place = event => event.clientX - svg.getBoundingClientRect().left;

  svg.addEventListener("pointermove", event => {
    armed = armed || event.movementX || event.movementY;
    const index = rects.indexOf(event.target);
    [hovered, cursor] = [index < 0 ? null : index, place(event) < left ? null : time(place(event))];
    if (event.buttons & 1 && measured) measured[1] = time(place(event));
    point();
    tell(event);
  });
  svg.addEventListener("pointerleave", event => { hovered = cursor = null; armed = false; point(); tell(event); });
  svg.addEventListener("pointerdown", event => {
    const y = event.clientY - svg.getBoundingClientRect().top;
    const lane = tops.findIndex((top, n) => y >= top && y < top + unfolded[n]);
    measured = null;
    if (place(event) >= left) measured = [time(place(event)), time(place(event))];
    else if (lane >= 0 && !arrows.firstChild) {
      const first = lanes[lane][1];
      unfolded[lane] = unfolded[lane] !== first ? first : first > 28 ? FOLDED : OPEN;
      draw();
    }
  });
  svg.addEventListener("pointerup", () => { if (measured && Math.abs(x(measured[0]) - x(measured[1])) < 3) measured = null; point(); });
  svg.addEventListener("dblclick", () => { [from, to, measured] = [0, span, null]; draw(); });
  // A page that scrolls under a pointer at rest goes on scrolling.
  svg.addEventListener("wheel", event => {
    const along = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX, out = to - from >= span;
    const pans = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!armed || out && (pans || event.deltaY > 0)) return;
    event.preventDefault();
    const length = pans ? to - from : clamp((to - from) * Math.exp(clamp(event.deltaY, -100, 100) / 300), span / 1e5, span);
    const at = time(place(event)), share = (at - from) / (to - from);
    from = clamp(pans ? from + along / room() * length : at - share * length, 0, span - length);
    to = from + length;
    draw();
  }, {passive: false});
  new ResizeObserver(() => {
    const now = clamp(Math.floor(box.clientWidth), LEAST, 912);
    if (box.clientWidth && now !== wide) { wide = now; draw(); }
  }).observe(box);
}
document.querySelectorAll("img.manyranks.timeline").forEach(live);
})();
