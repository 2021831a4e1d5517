"use strict";
// Everything a process says goes into the page as text, never as markup.

// Whose plots are shown; the address remembers them: /#r0,r1
const open = new Set(location.hash.slice(1).split(",").filter(Boolean).map(decodeURIComponent));
let chosen = open.size > 0;

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "polyline", "line"].includes(tag);
  const node = svg ? document.createElementNS("http:" + "//www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (n < 1000) return (n >= 100 || unit === "B" ? n.toFixed(0) : n.toFixed(1)) + " " + unit;
    n /= 1024;
  }
  return n.toFixed(1) + " PiB";
}

function time(us) {
  return us < 1000 ? us.toFixed(0) + " us" : us < 1e6 ? (us / 1000).toFixed(1) + " ms" : (us / 1e6).toFixed(1) + " s";
}

function count(n) {
  return n < 100 ? n.toFixed(n < 10 && n > 0 ? 1 : 0) : Math.round(n).toString();
}

function diskClass(state) {
  if (state === "UpToDate") return "good";
  return ["Consistent", "Attaching", "Negotiating"].includes(state) ? "warn" : "bad";
}

function weight(resource) {
  if (resource.silent || resource.absent) return "error";
  const found = resource.matters.map((m) => m.weight);
  return ["error", "warning", "running"].find((w) => found.includes(w)) || "well";
}

function node(name, role, disks) {
  const states = disks.map((d) => make("div", { class: diskClass(d.disk) }, (disks.length > 1 ? d.volume + " " : "") + d.disk));
  return make("div", { class: "node" }, make("b", {}, name), " ", role, ...states);
}

// This node once, and beside it, or below it, a wire to each peer.
function topology(host, r) {
  const own = node(host, r.role, r.devices);
  const links = r.connections.map((c) => {
    const there = c.connection === "Connected";
    const states = [...new Set(c.peer_devices.map((p) => p.replication))].filter((s) => s !== "Off");
    const word = there ? states.join(", ") || c.connection : c.connection;
    const hue = !there ? "bad" : states.every((s) => s === "Established") ? "good" : "run";
    const peer = node(c.name, there ? c.role : "not connected", there ? c.peer_devices : []);
    return make("div", { class: "link" }, make("div", { class: "wire " + hue, title: c.address }, "\u2014 " + word + " \u2014"), peer);
  });
  return make("div", { class: "nodes" }, own, make("div", { class: "links" }, ...links));
}

function figures(r) {
  const of = (label, value) => make("span", {}, label + " ", make("b", {}, value));
  const x = r.rates;
  return make("div", { class: "figures" }, of("writes", count(x.writes) + "/s"), of("reads", count(x.reads) + "/s"),
    of("sent", bytes(x.sent) + "/s"), of("received", bytes(x.received) + "/s"),
    of("disk", bytes(x.disk_written + x.disk_read) + "/s"));
}

function sentences(r) {
  const hue = { error: "bad", warning: "warn", running: "run", note: "" };
  return r.matters.map((m) => make("div", { class: "matter " + hue[m.weight] }, m.object + ": " + m.text,
    m.next ? make("code", {}, m.next) : null));
}

// A bar for each resync or verify; of several each says which it is.
function progress(r) {
  const running = r.connections.flatMap((c) => c.peer_devices.filter((p) => p.done !== null).map((p) => [c, p]));
  return running.map(([c, p]) => make("label", { class: "bar" },
    running.length > 1 ? c.name + (r.devices.length > 1 ? ", volume " + p.volume : "") : null,
    make("progress", { max: 100, value: p.done, "aria-label": p.replication + " " + c.name })));
}

// One plot: a line per series, all on one scale that begins at 0. `series`: name to a list of [t, value].
function plot(title, series, label) {
  const names = Object.keys(series);
  const values = names.flatMap((n) => series[n].map(([, v]) => v));
  const times = names.flatMap((n) => series[n].map(([t]) => t));
  const most = Math.max(...values, 0);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const svg = make("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img",
    "aria-label": title + ", at most " + label(most) });
  for (const y of [25, 50, 75]) svg.append(make("line", { x1: 0, x2: 600, y1: y, y2: y }));
  names.forEach((n, k) => {
    const points = series[n].map(([t, v]) => {
      const x = last > first ? (t - first) / (last - first) * 600 : 600;
      return x.toFixed(1) + "," + (98 - (most > 0 ? v / most : 0) * 94).toFixed(1);
    });
    svg.append(make("polyline", { class: "k" + k % 8, points: points.join(" ") }));
  });
  const span = values.length ? "last " + Math.round(last - first) + " s" : "no requests";
  const legend = names.map((n, k) => {
    const latest = series[n].length ? series[n][series[n].length - 1][1] : 0;
    return make("span", { class: "k" + k % 8 }, n + " " + label(latest));
  });
  return make("div", { class: "plot" }, make("h3", {}, title), svg,
    make("div", { class: "scale" }, make("span", {}, span), make("span", {}, "top: " + label(most))),
    make("div", { class: "legend" }, ...legend));
}

function plots(points) {
  const of = (pick) => points.map((p) => [p.t, pick(p) || 0]);
  const stages = {};
  for (const p of points) for (const [name, [, p99]] of Object.entries(p.stages)) (stages[name] ||= []).push([p.t, p99]);
  const all = [
    plot("Latency by stage, 99th percentile", stages, time),
    plot("Requests per second", { writes: of((p) => p.writes), reads: of((p) => p.reads) }, count),
    plot("Throughput per second", { network: of((p) => p.net), disk: of((p) => p.disk) }, bytes),
  ];
  if (points.some((p) => p.done !== null)) {
    all.push(plot("Resync or verify, per second", { speed: of((p) => p.sync) }, bytes));
  }
  return make("div", { class: "plots" }, ...all);
}

function remember() {
  history.replaceState(null, "", "#" + [...open].map(encodeURIComponent).join(","));
}

function card(host, r, points) {
  const kind = weight(r);
  const shown = open.has(r.name);
  const press = () => { shown ? open.delete(r.name) : open.add(r.name); chosen = true; remember(); refresh(); };
  const title = make("div", { class: "title" }, make("h2", {}, r.name),
    make("button", { type: "button", "aria-expanded": shown, onclick: press }, shown ? "less" : "plots"));
  const article = make("article", { class: kind + (shown ? " open" : ""), "data-resource": r.name }, title);
  if (r.absent) article.append(make("div", { class: "matter bad" }, r.name + ": not running: " + r.absent));
  else if (r.silent) article.append(make("div", { class: "matter bad" }, "The process does not answer: " + r.silent));
  else article.append(topology(host, r), ...progress(r), figures(r), ...sentences(r));
  if (shown && points) article.append(plots(points));
  return article;
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status + " " + answer.statusText);
  return answer.json();
}

async function refresh() {
  const summary = document.getElementById("summary");
  try {
    const state = await get("status");
    const order = ["error", "warning", "running", "well"];
    state.resources.sort((a, b) => order.indexOf(weight(a)) - order.indexOf(weight(b)) || a.name.localeCompare(b.name));
    // Until somebody chooses: the busiest one has its plots.
    const busy = (r) => r.silent || r.absent ? -1 : r.rates.writes + r.rates.reads + r.rates.sent + r.rates.received;
    if (!chosen && state.resources.length && !open.size) {
      open.add(state.resources.reduce((a, b) => (busy(b) > busy(a) ? b : a)).name);
    }
    const wanted = state.resources.filter((r) => open.has(r.name) && !r.silent && !r.absent).map((r) => r.name);
    const points = {};
    for (const name of wanted) points[name] = await get("history?resource=" + encodeURIComponent(name));
    const bad = state.resources.filter((r) => ["error", "warning"].includes(weight(r))).length;
    const single = state.resources.filter((r) => r.matters && r.matters.some((m) => m.code === "one-good-copy")).length;
    document.getElementById("host").textContent = state.host;
    document.title = (bad ? "(" + bad + ") " : "") + "urbd " + state.host;
    summary.className = bad ? "bad" : "";
    summary.textContent = !state.resources.length ? "No resource runs on this node. Start one with: urbd up RESOURCE"
      : state.resources.length + (state.resources.length === 1 ? " resource, " : " resources, ") + (bad ? bad + " with something the matter." : single ? single + " with one good copy left." : "nothing is the matter.");
    const focused = document.activeElement && document.activeElement.closest("article");
    const again = focused ? focused.dataset.resource : null;
    document.getElementById("resources").replaceChildren(...state.resources.map((r) => card(state.host, r, points[r.name])));
    if (again) [...document.querySelectorAll("article")].find((a) => a.dataset.resource === again)?.querySelector("button").focus();
  } catch (error) {
    summary.className = "bad";
    summary.textContent = "urbd web does not answer (" + error.message + "). What is shown is old.";
  }
}

async function forever() {
  await refresh();
  setTimeout(forever, 1000);
}

forever();
