"use strict";
const {rows, most, first} = JSON.parse(document.getElementById("data").textContent);
const find = id => document.getElementById(id);
const NAMES = ["target", "task", "T", "rule", "draft", "id"];

// What the sliders move. Those of milliseconds move by ratios, and their fields also take less, down to `lowest`.
const NUMBERS = {
  alpha: {words: "α: the acceptance rate", least: 0, most: 1, step: .001},
  gamma: {words: "γ: tokens drafted per pass", least: 1, most, step: 1, whole: true},
  c: {words: "c: a draft step, in target steps", least: 0, most: 2, step: .001},
  v_token: {words: "each further token that is verified, in target steps", least: -.1, most: 1, step: .001},
  step_ms: {words: "a target step, ms", least: .01, lowest: .0001, most: 1000, step: .01, ratio: true},
  loop_ms: {words: "accepting and the loop, ms per pass", least: .001, lowest: 0, most: 100, step: .01, ratio: true},
};
const lowest = one => one.lowest ?? one.least;

// Equation 1 as a sum, which holds at α = 1; Theorem 3.8; and the same with v and the loop.
const expectedTokens = (alpha, gamma) => {
  let sum = 1;
  for (let power = 1, i = 0; i < gamma; i++) sum += power *= alpha;
  return sum;
};
const predicted = s => expectedTokens(s.alpha, s.gamma) / (s.gamma * s.c + 1);
const v = s => 1 + s.gamma * s.v_token;
const calibrated = s => expectedTokens(s.alpha, s.gamma) / (s.gamma * s.c + v(s) + s.loop_ms / s.step_ms);

const gammas = Array.from({length: most}, (_, i) => i + 1);
const byGamma = s => gammas.map(gamma => [calibrated({...s, gamma}), gamma]).sort((a, b) => b[0] - a[0]);

let record, state = {};

// The choices from left to right: each lists what the records have under the choices before it, and keeps its choice,
// or takes that of `wanted`, where it can.
function choose(wanted) {
  let left = rows;
  for (const name of NAMES) {
    const menu = find(name), had = wanted ? String(wanted[name]) : menu.value;
    const values = [...new Map(left.map(row => [String(row[name]), row])).entries()];
    menu.replaceChildren(...values.map(([value, row]) => new Option(name === "id" ? `${row.gamma} (${value})` : value, value)));
    if (values.some(([value]) => value === had)) menu.value = had;
    left = left.filter(row => String(row[name]) === menu.value);
  }
  record = left[0];
  state = {};
  for (const name in NUMBERS) state[name] = record[name];
  show();
}

// `typed`: the field whose text stays as its writer has it.
function show(typed) {
  for (const [name, one] of Object.entries(NUMBERS)) {
    find(name + "-slider").value = one.ratio ? Math.log10(Math.max(state[name], one.least)) : state[name];
    if (typed !== name) find(name).value = +state[name].toPrecision(4);
  }
  const said = [];
  if (record.simulated) said.push("Simulated acceptance: α was chosen.");
  if (record.falls) said.push("This draft's acceptance falls with the position, so a single α says too much of its later tokens.");
  find("record").textContent = `Record ${record.id}, ${record.hardware}, ${record.created.slice(0, 10)}. ${said.join(" ")}`;
  const now = calibrated(state), [best, second] = byGamma(state);
  find("predicted").value = predicted(state).toFixed(2) + "×";
  find("calibrated").value = now.toFixed(2) + "×";
  const pass_ms = state.step_ms * (state.gamma * state.c + v(state)) + state.loop_ms;
  find("loop").textContent = `v = ${v(state).toFixed(2)}; the loop takes ${(100 * state.loop_ms / pass_ms).toPrecision(2)}% of a pass`;
  find("measured").value = record.measured.toFixed(2) + "×";
  find("when").textContent = (record.low === null ? "" : `[${record.low.toFixed(2)}, ${record.high.toFixed(2)}] `) + `at γ = ${record.gamma}, as recorded`;
  find("best").value = best[0] > 1 ? best[1] : "none";
  find("runner-up").textContent = (best[0] > 1 ? "" : `no γ gains; `) + `${best[0].toFixed(2)}× at γ = ${best[1]}, then ${second[0].toFixed(2)}× at γ = ${second[1]}`;
  moves(now, best);
  draw();
  // The address holds what is shown, so that it can be shared.
  history.replaceState(null, "", "#" + new URLSearchParams({id: record.id, ...state}));
}

function moves(now, best) {
  const changes = [
    [`γ = ${best[1]}`, {gamma: best[1]}],
    ["α higher by .05", {alpha: Math.min(1, state.alpha + .05)}],
    ["a draft twice as fast", {c: state.c / 2}],
    ["verification at the cost of one token (v = 1)", {v_token: 0}],
    ["no time in the loop", {loop_ms: 0}],
    ["a target ten times as slow, the same loop", {step_ms: 10 * state.step_ms}],
  ].map(([words, change]) => [words, calibrated({...state, ...change})]).sort((a, b) => b[1] - a[1]);
  find("moves").tBodies[0].replaceChildren(...changes.map(([words, gives]) => {
    const row = document.createElement("tr");
    for (const text of [words, gives.toFixed(2) + "×", (gives / now).toFixed(2)]) row.insertCell().textContent = text;
    return row;
  }));
}

function draw() {
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = {gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line")};
  const same = rows.filter(row => NAMES.slice(0, -1).every(name => row[name] === record[name]));
  const elsewhere = same.filter(row => row.hardware !== record.hardware);
  const points = (name, of, symbol) => ({
    x: of.map(row => row.gamma), y: of.map(row => row.measured), text: of.map(row => row.hardware), name, mode: "markers",
    marker: {color: colour("--ink"), size: 9, symbol},
    error_y: {type: "data", symmetric: false, color: colour("--ink"),
      array: of.map(row => row.low === null ? 0 : row.high - row.measured),
      arrayminus: of.map(row => row.low === null ? 0 : row.measured - row.low)},
  });
  const line = (name, of, kind) => ({x: gammas, y: gammas.map(gamma => of({...state, gamma})), name, mode: "lines", line: kind});
  Plotly.react("plot", [
    line("predicted", predicted, {color: colour("--theory"), dash: "dash"}),
    line("calibrated", calibrated, {color: colour("--ours")}),
    points("measured", same.filter(row => row.hardware === record.hardware), "circle"),
    ...(elsewhere.length ? [points("measured on other hardware", elsewhere, "square-open")] : []),
    {x: [state.gamma], y: [calibrated(state)], name: "here", mode: "markers", marker: {color: colour("--ours"), size: 13, symbol: "circle-open", line: {width: 3}}},
  ], {
    paper_bgcolor: colour("--paper"), plot_bgcolor: colour("--paper"), font: {color: colour("--ink")},
    margin: {l: 48, r: 8, t: 8, b: 44}, legend: {orientation: "h", y: 1.12},
    xaxis: {...axis, title: {text: "γ"}, dtick: 1, range: [.5, most + .5]},
    yaxis: {...axis, title: {text: "speedup"}, rangemode: "tozero"},
    shapes: [{type: "line", x0: .5, x1: most + .5, y0: 1, y1: 1, line: {color: colour("--faint"), width: 1, dash: "dot"}}],
  }, {responsive: true, displayModeBar: false});
}

function input(name, type, attributes) {
  const one = NUMBERS[name], made = document.createElement("input");
  Object.assign(made, {type, ariaLabel: one.words, ...attributes});
  made.addEventListener("input", () => {
    const value = type === "range" && one.ratio ? 10 ** made.valueAsNumber : made.valueAsNumber;
    const usable = value >= lowest(one) && value <= one.most && !(one.whole && value % 1);
    made.setCustomValidity(usable ? "" : `${one.whole ? "a whole number " : ""}from ${lowest(one)} to ${one.most}`);
    if (!usable) return made.reportValidity();
    state[name] = value;
    show(type === "number" ? name : undefined);
  });
  return made;
}

function build() {
  for (const [name, one] of Object.entries(NUMBERS)) {
    const label = document.createElement("label"), text = document.createElement("span");
    const ends = [one.least, one.most].map(end => one.ratio ? Math.log10(end) : end);
    text.textContent = one.words;
    label.append(text, input(name, "range", {id: name + "-slider", min: ends[0], max: ends[1], step: one.step}),
      input(name, "number", {id: name, min: lowest(one), max: one.most, step: one.whole ? 1 : "any"}));
    find("numbers").append(label);
  }
  for (const name of NAMES) find(name).addEventListener("change", () => choose());
  find("reset").addEventListener("click", () => choose());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// As the address says, if it says something that this page has.
function begin() {
  const said = new URLSearchParams(location.hash.slice(1));
  choose(rows.find(row => row.id === said.get("id")) ?? rows[first]);
  for (const [name, one] of Object.entries(NUMBERS)) {
    const value = Number(said.get(name) ?? NaN);
    if (value >= lowest(one) && value <= one.most) state[name] = one.whole ? Math.round(value) : value;
  }
  show();
}

if (rows.length) {
  build();
  begin();
} else {
  document.querySelector("main").textContent = "No record here has a fixed γ and a measured speedup: specbench run makes one.";
}
