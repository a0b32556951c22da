// Draws the plots of a report from the JSON in this page, and adds what paper has not: a theme, a download, tables that
// sort. Without it the page has the same numbers in its tables.
"use strict";

(() => {
  const root = document.documentElement;
  const nothing = "–";

  // ---- The document. bench has checked its types: numbers may be null, and have any value.

  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const scaling = read("document").ddp_scaling;
  const names = read("names");

  // What no axis can show is left out.
  const number = (value) => (typeof value === "number" && Math.abs(value) < 1e15 ? value : null);
  const positive = (value) => (number(value) > 1e-9 ? value : null);
  const median = (values) => {
    const sorted = values.filter(positive).sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return (sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2) || 0;
  };
  const unique = (values) => [...new Set(values)];
  // Lists of what has equal keys, in the order of the first of each.
  const groupsOf = (values, keyOf) => {
    const groups = new Map();
    for (const value of values) {
      const key = JSON.stringify(keyOf(value));
      groups.set(key, [...(groups.get(key) ?? []), value]);
    }
    return [...groups.values()];
  };
  const shortened = (label, most = 30) => (label.length > most ? `${label.slice(0, most - 1)}…` : label);

  // Each run with the series, the workload and the label that the page has for it.
  const allSeries = names.series.map((one, index) => ({ ...one, index, label: shortened(one.label, 25) }));
  const runs = scaling.runs.map((run, i) => {
    const series = allSeries[names.runs[i].series];
    const { workload, is_swept } = names.runs[i];
    return { ...run, series, workload, is_swept, label: `${series.label} ×${run.world_size}` };
  });
  const findRun = (name) => runs.find((run) => run.name === name);
  const shown = runs.filter((run) => run.kind !== "control" && !run.is_swept);
  const measured = shown.filter((run) => !run.error && positive(run.step_ms.median));
  // [workload, its entries], for each workload that has some.
  const byWorkload = (entries, runOf = (run) => run) => unique(shown.map((run) => run.workload))
    .map((workload) => [workload, entries.filter((entry) => runOf(entry).workload === workload)])
    .filter(([, group]) => group.length > 0);

  // ---- Numbers as text

  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 9 });
  const show = (value) => {
    if (number(value) === null) return nothing;
    const size = Math.abs(value);
    if (size >= 1e7 || (size > 0 && size < 1e-4)) return value.toExponential(2);
    return size >= 1000 ? whole.format(value) : String(Number(value.toPrecision(3)));
  };
  const showTick = (value) => {
    const size = Math.abs(value);
    if (size > 0 && (size >= 1e7 || size < 1e-4)) return Number(value.toPrecision(3)).toExponential();
    return exact.format(value);
  };
  const showBytes = (bytes) => {
    const unit = Math.max(0, Math.min(4, Math.floor(Math.log2(bytes) / 10)));
    return `${show(bytes / 1024 ** unit)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };
  const showRanks = (ranks) => (ranks === 1 ? "one rank" : `${ranks} ranks`);
  const showResidual = (share) => `${share > 0 ? "+" : ""}${(100 * share).toFixed(1)} %`;
  const showSpread = (p10, p90) =>
    (number(p10) !== null && number(p90) !== null ? ` (p10 ${show(p10)}, p90 ${show(p90)})` : "");

  // ---- Axes

  const niceStep = (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 2.5, 5, 10].find((step) => step * power >= rough * 0.999);
  };
  const multiples = (step, low, high) => {
    const values = [];
    const last = high * (1 + 1e-9) + step * 1e-6;
    for (let i = Math.ceil(low / step - 1e-6); i * step <= last; ++i) values.push(i * step + 0);  // not -0
    return values;
  };
  // Powers of `base` times the first list of factors that gives few enough, from low to high.
  const logTicks = (low, high, most, base, factorLists) => {
    const first = Math.floor(Math.log(low) / Math.log(base));
    const last = Math.ceil(Math.log(high) / Math.log(base));
    for (let stride = 1; ; ++stride) {
      for (const factors of stride === 1 ? factorLists : [[1]]) {
        const values = [];
        for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
          values.push(...factors.map((factor) => factor * base ** power));
        }
        const inside = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
        if (inside.length <= most) return inside;
      }
    }
  };
  const ticksOf = (kind, low, high, most) => {
    if (kind === "bytes") return logTicks(low, high, most, 4, [[1]]);
    if (kind === "log" && high / low > 6) return logTicks(low, high, most, 10, [[1, 2, 5], [1, 3], [1]]);
    return multiples(niceStep((high - low) / (most - 1)), low, high);
  };

  const isLogarithmic = (kind) => kind === "log" || kind === "bytes";
  const fits = (kind, value) => (isLogarithmic(kind) ? positive(value) : number(value)) !== null;
  // All that the axis "x" or "y" has to reach to show these. Of bars, which are stacked, only the caller knows.
  const reach = (datasets, axis) => datasets.flatMap(({ type, data, whiskers }) => (type !== "scatter" ? []
    : data.flatMap((point) => (whiskers === axis ? [point[axis], point.low, point.high] : [point[axis]]))));
  // kind: "log", "bytes" (logarithmic too), "linear" or "zero", which starts there; include: values to reach besides
  // those of the datasets; most: of ticks that are not given; line: a tick that stands out.
  const makeAxis = ({ kind, title, ticks, most = kind === "bytes" ? 5 : 6, line, include = [] }, values) => {
    const usable = [...values, ...include].filter((value) => fits(kind, value));
    let low = Math.min(...usable);
    let high = Math.max(...usable);
    if (isLogarithmic(kind)) {
      const margin = Math.max((high / low) ** 0.06, 1.02);
      [low, high] = [low / margin, high * margin];
    } else {
      const margin = 0.06 * (high - low || Math.abs(high) || 1);
      [low, high] = [kind === "zero" ? Math.min(0, low) : low - margin, high + margin];
    }
    const tickValues = (ticks ?? ticksOf(kind, low, high, most)).filter((value) => value >= low && value <= high);
    return {
      type: isLogarithmic(kind) ? "logarithmic" : "linear", min: low, max: high, bounds: "data",
      title: { display: Boolean(title), text: title, color: color("muted") },
      border: { color: color("muted") },
      grid: { color: ({ tick }) => color(tick?.value === line ? "muted" : "grid"), drawTicks: false },
      ticks: {
        color: color("muted"), padding: 6, autoSkip: false, maxRotation: 0,
        callback: (value) => (kind === "bytes" ? showBytes : showTick)(value),
      },
      afterBuildTicks: (axis) => { axis.ticks = tickValues.map((value) => ({ value })); },
    };
  };
  const rowAxis = (rows) => ({
    type: "linear", min: -0.5, max: rows.length - 0.5, reverse: true, bounds: "data",
    grid: { display: false, drawBorder: false },
    ticks: { color: color("ink"), autoSkip: false, callback: (i) => rows[i] },
    afterBuildTicks: (axis) => { axis.ticks = rows.map((_, value) => ({ value })); },
  });

  // ---- Charts

  // The style sheet's colours, as they are in the theme of the moment.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const color = (name, opacity = 1) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.replace(/^rgb\((.*)\)$/, `rgba($1, ${opacity})`);
  };

  const markers = ["circle", "rect", "triangle", "rectRot", "crossRot", "star"];
  const dashes = [[], [6, 3], [2, 2.5], [8, 3, 2, 3]];

  // points: {x, y, tip}, and low and high for a whisker along the axis that `whiskers` names.
  const makeCurve = ({ points, hue, marker = 0, hollow, dash = 0, showLine = true, whiskers = "y", ...more }) => ({
    type: "scatter", data: showLine ? [...points].sort((a, b) => a.x - b.x) : points, showLine, whiskers,
    borderColor: color(`hue-${hue}`), borderWidth: 1.6, borderDash: dashes[dash],
    pointStyle: markers[marker % markers.length], pointRadius: 4, pointHoverRadius: 6, pointHitRadius: 6,
    pointBackgroundColor: color(hollow ? "paper" : `hue-${hue}`), pointBorderColor: color(`hue-${hue}`),
    pointBorderWidth: hollow ? 1.6 : 1,
    ...more,
  });
  const makeGuide = (label, points) => ({
    type: "scatter", label, data: points, showLine: true, pointRadius: 0, pointHitRadius: 0,
    borderColor: color("muted"), borderWidth: 1.1, borderDash: [1.5, 3], labelColor: color("muted"), order: 1,
  });
  // A short line across the rows, or whatever the style is.
  const makeMarks = (label, points, more) => ({
    type: "scatter", label, data: points, stack: label, order: -1,
    pointStyle: "line", pointRotation: 90, pointRadius: 7, pointHoverRadius: 7,
    pointBorderColor: color("ink"), pointBorderWidth: 2, pointBackgroundColor: color("paper"), ...more,
  });
  // One curve for each series that has a point; isSpread: points of the same x side by side.
  const curvesOf = (entries, pointOf, { isSpread = false, ...more } = {}) => {
    const groups = groupsOf(entries, (run) => run.series.index).sort(([a], [b]) => a.series.index - b.series.index);
    return groups.flatMap((group, place) => {
      const aside = isSpread ? 2 ** ((place - (groups.length - 1) / 2) * Math.min(0.08, 0.5 / groups.length)) : 1;
      const { label, full_name, hue, dash, is_peer, index } = group[0].series;
      const points = group.map((run) => {
        const { x, tip, ...point } = pointOf(run);
        return { x: x * aside, ...point, tip: `${full_name}, ${showRanks(run.world_size)}: ${tip}` };
      }).filter(({ y }) => number(y) !== null);
      const curve = makeCurve({ label, hue, dash, marker: index, hollow: is_peer, points, ...more });
      return points.length > 0 ? [curve] : [];
    });
  };

  const strokeLines = (ctx, lines) => {
    ctx.beginPath();
    for (const [fromX, fromY, toX, toY] of lines) {
      ctx.moveTo(fromX, fromY);
      ctx.lineTo(toX, toY);
    }
    ctx.stroke();
  };
  const drawWhiskers = ({ ctx, scales }, { whiskers, data }, elements) => {
    elements.forEach(({ x, y, options }, i) => {
      const [from, to] = [data[i].low, data[i].high]
        .map((end) => whiskers && number(end) !== null && scales[whiskers].getPixelForValue(end));
      if (!Number.isFinite(from) || !Number.isFinite(to)) return;
      ctx.strokeStyle = options.borderColor;
      ctx.lineWidth = whiskers === "x" ? 2 : 1;
      strokeLines(ctx, whiskers === "x" ? [[from, y, to, y]]
        : [[x, from, x, to], ...[from, to].map((end) => [x - 3, end, x + 3, end])]);
    });
  };
  // Right of the last point of each curve, moved apart; beside a point that is far from there.
  const drawEndLabels = (chart) => {
    const { ctx, chartArea, height } = chart;
    const labels = chart.data.datasets.flatMap(({ label, showLine, labelColor, borderColor }, i) => {
      const last = chart.getDatasetMeta(i).data.at(-1);
      return label && showLine && last ? [{ label, x: last.x, y: last.y, color: labelColor ?? borderColor }] : [];
    }).sort((a, b) => a.y - b.y);
    const isFar = ({ x }) => x < chartArea.left + 0.3 * chartArea.width;
    const atRight = labels.filter((one) => !isFar(one));
    atRight.reduceRight((below, one) => (one.at = Math.min(one.y, below - 14)), height - 6);
    atRight.reduce((above, one) => (one.at = Math.max(one.at, above + 14)), chartArea.top - 14);
    ctx.lineWidth = 0.6;
    for (const one of labels) {
      ctx.strokeStyle = ctx.fillStyle = one.color;
      if (isFar(one)) {
        ctx.fillText(one.label, one.x + 7, one.y - 9);
        continue;
      }
      ctx.globalAlpha = 0.4;
      strokeLines(ctx, [[one.x + 6, one.y, chartArea.right + 10, one.at]]);
      ctx.globalAlpha = 1;
      ctx.fillText(one.label, chartArea.right + 13, one.at);
    }
  };
  // What a bar has `inside`, if it is long enough.
  const drawInside = (chart) => {
    const { ctx } = chart;
    chart.data.datasets.forEach((dataset, i) => chart.getDatasetMeta(i).data.forEach((bar, row) => {
      const { inside } = dataset.data[row];
      if (!inside || ctx.measureText(inside).width + 4 > Math.abs(bar.x - bar.base)) return;
      ctx.fillStyle = color(dataset.insideColor);
      ctx.fillText(inside, (bar.x + bar.base) / 2, bar.y);
    }));
  };
  // What the library has not: whiskers, texts in the plot, a band, and the others fade when one is pointed at.
  const additions = {
    id: "additions",
    beforeDatasetsDraw({ ctx, chartArea: { top, height }, scales: { x } }, _, { band }) {
      if (!band) return;
      const [from, to] = band.map((end) => x.getPixelForValue(end));
      ctx.fillStyle = color("grid");
      ctx.fillRect(from, top, to - from, height);
    },
    beforeDatasetDraw(chart, { index, meta }) {
      const pointedAt = chart.getActiveElements();
      chart.ctx.save();
      chart.ctx.globalAlpha = pointedAt.length === 0 || pointedAt.some((one) => one.datasetIndex === index) ? 1 : 0.2;
      drawWhiskers(chart, chart.data.datasets[index], meta.data);
    },
    afterDatasetDraw({ ctx }) { ctx.restore(); },
    afterDatasetsDraw(chart, _, { rowNotes = [] }) {
      const { ctx, chartArea, scales } = chart;
      ctx.save();
      ctx.font = `11.5px ${Chart.defaults.font.family}`;
      ctx.textBaseline = "middle";
      drawEndLabels(chart);
      ctx.fillStyle = color("ink");
      rowNotes.forEach((note, i) => ctx.fillText(note, chartArea.right + 8, scales.y.getPixelForValue(i)));
      ctx.textAlign = "center";
      ctx.font = `10px ${Chart.defaults.font.family}`;
      drawInside(chart);
      ctx.restore();
    },
  };

  const charts = [];
  let onPaper = false;  // where all are drawn at one size, and the style sheet makes them fit
  // A figure in `place`, unless nothing is left to point at. x and y are what makeAxis takes; rows are the labels of a
  // plot that has rows instead of a y axis, with notes at their ends.
  const draw = (place, { title, note = "", x, y = {}, rows, rowNotes, band, isStacked = false, datasets: all }) => {
    const datasets = all.map((dataset) => ({
      ...dataset, label: shortened(dataset.label ?? ""),
      data: dataset.data.filter((point) => fits(x.kind, point.x) && fits(y.kind, point.y)),
    }));
    if (!datasets.some(({ data }) => data.some(({ tip }) => tip))) return;
    const [figure, caption, detail, box, canvas] =
      ["figure", "figcaption", "span", "div", "canvas"].map((tag) => document.createElement(tag));
    const [labels, notes] = [rows, rowNotes].map((texts) => texts?.map((one) => shortened(one)));
    const atRight = notes ?? datasets.filter(({ showLine, label }) => showLine && label).map(({ label }) => label);
    const widest = Math.max(0, ...atRight.map((label) => label.length));
    const height = rows ? 64 + 24 * rows.length : Math.max(300, 60 + 14 * atRight.length);
    const what = place.id.replace("plot-", "").replace("-", " ");
    detail.textContent = note;
    caption.append(title, detail);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", [what, title, note].filter(Boolean).join(", "));
    box.style.height = `${height}px`;
    box.append(canvas);
    if (onPaper) [canvas.width, canvas.height] = [480, height];
    figure.append(caption, box);
    place.append(figure);
    charts.push(new Chart(canvas, {
      type: isStacked ? "bar" : "scatter",
      data: { datasets },
      plugins: [additions],
      options: {
        indexAxis: rows ? "y" : "x",
        responsive: !onPaper, maintainAspectRatio: false, animation: false,
        devicePixelRatio: Math.max(2, globalThis.devicePixelRatio ?? 1),
        layout: { padding: { top: 6, right: widest > 0 ? 22 + 6.4 * widest : 8 } },
        scales: {
          x: { ...makeAxis(x, reach(all, "x")), stacked: isStacked },
          y: rows ? { ...rowAxis(labels), stacked: isStacked } : makeAxis(y, reach(all, "y")),
        },
        interaction: { mode: "nearest", intersect: true },
        plugins: {
          legend: { display: false }, additions: { rowNotes: notes, band },
          tooltip: {
            displayColors: false, filter: ({ raw }) => Boolean(raw.tip),
            callbacks: { title: () => "", label: ({ raw }) => raw.tip },
          },
        },
      },
    }));
  };

  // ---- The plots, by the id of their place less "plot-"

  const plots = {};
  const byRanks = (kind, title, pointOf, guidesOf, options) => (place) => {
    for (const [workload, group] of byWorkload(measured)) {
      const curves = curvesOf(group, (run) => ({ x: run.world_size, ...pointOf(run) }), options);
      const counts = unique(group.map((run) => run.world_size)).sort((a, b) => a - b);
      const guides = counts.length < 2 ? [] : guidesOf(group);
      draw(place, {
        title: workload,
        datasets: [...curves, ...guides.map(([label, at]) => makeGuide(label, counts.map((x) => ({ x, y: at(x) }))))],
        x: { kind: "log", title: "ranks", ticks: counts }, y: { kind, title },
      });
    }
  };
  const idealStepTime = (group) => {
    const base = group.find((run) => run.kind !== "peer" && run.stage.startsWith("01") && (run.threads ?? 1) === 1);
    const exponent = { weak: 0, strong: -1 }[group[0].scaling];
    return base && exponent !== undefined ? [["ideal", (ranks) => base.step_ms.median * ranks ** exponent]] : [];
  };
  plots["step-time"] = byRanks("log", "step time, ms", ({ step_ms: { median: ms, p10, p90 } }) => ({
    y: ms, low: positive(p10), high: positive(p90), tip: `${show(ms)} ms${showSpread(p10, p90)}`,
  }), idealStepTime, { isSpread: true });
  plots["speed-up"] = byRanks("log", "samples/s, relative to one process",
    ({ relative_speedup: factor }) => ({ y: positive(factor), tip: `${show(factor)}× one process` }),
    () => [["ideal", (ranks) => ranks], ["one process", () => 1]]);
  plots.efficiency = byRanks("zero", "efficiency", ({ efficiency }) => ({ y: efficiency, tip: show(efficiency) }),
    () => [["ideal", () => 1]]);

  const phaseNames = ["data", "forward", "backward", "exposed_comm", "imbalance", "optimizer"];
  plots.phases = (place) => {
    const phasesMs = (run) => phaseNames.map((phase) => positive(run.phases_ms[phase]) ?? 0);
    const sumMs = (run) => phasesMs(run).reduce((a, b) => a + b);
    for (const [workload, group] of byWorkload(measured.filter((run) => sumMs(run) > 0))) {
      const bars = phaseNames.map((phase, index) => {
        const label = phase.replace("_comm", " communication");
        return {
          label, backgroundColor: color(`phase-${phase}`), insideColor: `inside-${phase}`, barThickness: 15,
          borderColor: color("paper"), borderWidth: 0.5, stack: "step",
          data: group.map((run, y) => {
            const ms = phasesMs(run)[index];
            const share = `${Math.round((100 * ms) / sumMs(run))} %`;
            return { x: ms, y, inside: share, tip: `${label}: ${show(ms)} ms, ${share}` };
          }),
        };
      });
      const marks = (label, field, style) => makeMarks(label, group.map((run, y) =>
        ({ x: run[field], y, tip: `${label}: ${show(run[field])} ms` })).filter(({ x }) => positive(x)), style);
      const diamond = { pointStyle: "rectRot", pointRotation: 0, pointRadius: 5, pointBorderWidth: 1.4 };
      draw(place, {
        title: workload, isStacked: true,
        rows: group.map((run) => run.label), rowNotes: group.map((run) => `${show(run.step_ms.median)} ms`),
        datasets: [...bars, marks("floor", "floor_ms"), marks("predicted", "predicted_step_ms", diamond)],
        x: { kind: "zero", title: "ms per step", include: group.map(sumMs) },
      });
    }
  };

  plots.prediction = (place) => {
    const predicted = measured.filter((run) => positive(run.predicted_step_ms));
    const curves = curvesOf(predicted, ({ workload, step_ms, predicted_step_ms: ms, prediction: { residual } }) => ({
      x: ms, y: number(residual) && 100 * residual,
      tip: `${workload}, ${show(step_ms.median)} ms, predicted ${show(ms)} ms, ${showResidual(residual)}`,
    }), { showLine: false });
    const xs = reach(curves, "x");
    const guides = [["+20 %", 20], ["as predicted", 0], ["−20 %", -20]]
      .map(([label, y]) => makeGuide(label, [Math.min(...xs), Math.max(...xs)].map((x) => ({ x, y }))));
    draw(place, {
      title: "Every configuration", note: "colours and markers as above", datasets: [...curves, ...guides],
      x: { kind: "log", title: "predicted step, ms" }, y: { kind: "linear", title: "residual, %" },
    });
  };

  plots.extrapolation = (place) => {
    const all = scaling.extrapolations.map((one) => ({ ...one, run: findRun(one.from) }))
      .filter(({ run, world_size }) => positive(world_size) && measured.includes(run));
    for (const [workload, group] of byWorkload(all, ({ run }) => run)) {
      const series = unique(group.map(({ run }) => run.series));
      const own = measured.filter((run) => run.workload === workload && series.includes(run.series));
      const last = Math.max(...[...own, ...group].map(({ world_size }) => world_size));
      const panel = (note, y, ofRun, ofPrediction) => {
        const known = curvesOf(own, (run) => ({
          x: run.world_size, y: ofRun(run), tip: `measured: ${show(ofRun(run))}`,
        }), { label: "", borderDash: [] });
        const predicted = groupsOf(group, ({ from, algorithm }) => [from, algorithm]).map((steps) => {
          const [{ run, algorithm }] = steps;
          const label = `${run.series.label} ${algorithm}`;
          const point = (x, y, what) => ({ x, y, tip: `${label}, ${showRanks(x)}, ${what}: ${show(y)}` });
          return makeCurve({
            label, hue: run.series.hue, marker: run.series.index, hollow: true, dash: algorithm === "tree" ? 2 : 1,
            points: [point(run.world_size, ofRun(run), "measured"),
              ...steps.map((one) => point(one.world_size, ofPrediction(one), "predicted"))],
          });
        });
        draw(place, {
          title: workload, note, datasets: [...known, ...predicted], y,
          x: { kind: "log", title: "ranks", ticks: logTicks(1, last, 6, 2, [[1]]) },
        });
      };
      panel("step time", { kind: "log", title: "step time, ms" },
        (run) => run.step_ms.median, (one) => one.predicted_step_ms);
      panel("efficiency", { kind: "zero", title: "efficiency", include: [1] },
        (run) => run.efficiency, (one) => one.efficiency);
    }
  };

  plots.crossover = (place) => {
    for (const { axis, sweep, world_size, values } of scaling.crossover ?? []) {
      const points = values.map(({ value, speedup, ci95 }) => ({
        x: value, y: speedup, low: ci95?.[0], high: ci95?.[1], tip: `${axis} ${value}: ${show(speedup)}× one process`,
      })).filter(({ y }) => positive(y));
      const ends = points.map(({ x }) => x);
      const guide = makeGuide("one process", [Math.min(...ends), Math.max(...ends)].map((x) => ({ x, y: 1 })));
      draw(place, {
        title: sweep, note: showRanks(world_size), datasets: [makeCurve({ label: "", hue: "03", points }), guide],
        x: { kind: "log", title: axis, ticks: unique(ends) }, y: { kind: "log", title: "samples/s, relative to one process", include: [1] },
      });
    }
  };

  // Microseconds of one all-reduce of so many bytes: docs/bench.md, "Limits and predictions".
  const modelUs = (algorithm, { alpha_us, beta_us_per_mib }, bytes, ranks) => {
    const betaUs = (bytes / 2 ** 20) * beta_us_per_mib;
    if (!algorithm) {
      return alpha_us + betaUs;
    }
    return algorithm === "tree" ? 2 * Math.log2(ranks) * alpha_us + 2 * betaUs
      : 2 * (ranks - 1) * alpha_us + ((2 * (ranks - 1)) / ranks) * betaUs;
  };
  // {bytes, us} along the model, a list for each regime: at its border the model may jump.
  const modelLines = ({ algorithm, regimes }, least, most, ranks) => regimes.map((regime, i) => {
    const from = Math.max(least, regime.from_bytes);
    const to = Math.min(most, regimes[i + 1]?.from_bytes ?? most);
    return Array.from({ length: from < to ? 25 : 0 }, (_, k) => from * (to / from) ** (k / 24))
      .map((bytes) => ({ bytes, us: modelUs(algorithm, regime, bytes, ranks) }));
  });
  plots["all-reduce"] = (place) => {
    const samples = scaling.all_reduce.filter((one) => one.world_size >= 2 && positive(one.bytes));
    const backends = unique(samples.map(({ backend }) => backend));
    const bestFirst = [...scaling.communication_models]
      .sort((a, b) => (a.median_relative_error ?? Infinity) - (b.median_relative_error ?? Infinity));
    const panels = groupsOf(samples, ({ device, world_size }) => [device, world_size])
      .sort(([a], [b]) => a.device.localeCompare(b.device) || a.world_size - b.world_size);
    for (const here of panels) {
      const { device, world_size: ranks } = here[0];
      const panel = (note, title, ofSample, ofModel) => {
        const datasets = groupsOf(here, ({ backend }) => backend).flatMap((own) => {
          const { backend } = own[0];
          const marker = backends.indexOf(backend);
          const hue = `x${marker % 6}`;
          const points = own.map((one) => ({
            x: one.bytes, ...ofSample(one),
            tip: `${backend}, ${showBytes(one.bytes)}: ${show(one.time_us.median)} µs`
              + `${showSpread(one.time_us.p10, one.time_us.p90)}, bus ${show(one.bus_bandwidth_gbps)} GB/s`,
          }));
          const sizes = points.filter(({ y }) => positive(y)).map(({ x }) => x);
          const model = bestFirst.find((one) => one.backend === backend && one.device === device
            && (one.algorithm || one.world_sizes.includes(ranks)));
          const lines = model ? modelLines(model, Math.min(...sizes), Math.max(...sizes), ranks) : [];
          return [makeCurve({ points, hue, marker, label: backend }), ...lines.map((line) => makeCurve({
            points: line.map(({ bytes, us }) => ({ x: bytes, y: ofModel(bytes, us) })),
            hue, dash: 1, pointRadius: 0, pointHitRadius: 0, borderWidth: 1.1,
          }))];
        });
        draw(place, {
          title: `${showRanks(ranks)}, ${device}`, note, datasets,
          x: { kind: "bytes", title: "message" }, y: { kind: "log", title },
        });
      };
      panel("time", "time of one all-reduce, µs", ({ time_us: { median: us, p10, p90 } }) =>
        ({ y: us, low: positive(p10), high: positive(p90) }), (_, us) => us);
      panel("bus bandwidth", "bus bandwidth, GB/s", (one) => ({ y: one.bus_bandwidth_gbps }),
        (bytes, us) => ((bytes / us) * 1e-3 * 2 * (ranks - 1)) / ranks);
    }
  };

  plots.ratios = (place) => {
    const tolerance = Number(place.dataset.tolerance);
    const band = [1 - tolerance, 1 + tolerance];
    const isTooFar = ({ ci95 }) => !ci95?.every((end) => Math.abs(end - 1) <= tolerance);
    const comparisons = scaling.comparisons.map((one) => ({ ...one, a: findRun(one.a), b: findRun(one.b) }))
      .filter(({ a, b, ratio_median }) => a && b && positive(ratio_median));
    const ofKind = (kind) => byWorkload(comparisons.filter((one) => one.kind === kind), ({ a }) => a);
    const isUndecided = (one) => !one.verdict;
    const showVerdict = (one) => one.verdict ?? "";
    const panel = (all, { isGrey = isUndecided, labelOf, noteOf = showVerdict, evenOf, x, ...more }) => {
      const hues = all.map((one) => color(isGrey(one) ? "muted" : `hue-${one.a.series.hue}`));
      const points = all.map(({ a, b, ratio_median: ratio, ci95 }, y) => {
        const [low, high] = ci95?.every(positive) ? ci95 : [];
        const interval = low ? ` (95 %: ${show(low)} to ${show(high)})` : "";
        return { x: ratio, y, low, high, tip: `${a.name} over ${b.name}: ${show(ratio)}×${interval}` };
      });
      const even = all.map((one, y) => ({ x: evenOf?.(one), y })).filter((point) => positive(point.x) && point.x !== 1)
        .map((point) => ({ ...point, tip: `${show(point.x)}×: equally many samples per second` }));
      draw(place, {
        ...more, rows: all.map(labelOf), rowNotes: all.map((one) => `${show(one.ratio_median)}× ${noteOf(one)}`),
        x: { kind: "log", most: 5, line: 1, include: [1], ...x },
        datasets: [makeCurve({
          points, hue: "x0", showLine: false, whiskers: "x", pointBorderColor: hues,
          pointBackgroundColor: all.map((one, i) => (one.a.series.is_peer ? color("paper") : hues[i])),
          pointStyle: all.map((one) => markers[one.a.series.index % markers.length]),
        }), makeMarks("even", even, { pointBorderColor: color("muted"), order: 1 })],
      });
    };
    for (const [title, all] of ofKind("baseline")) {
      panel(all, {
        title, note: "against one process", x: { title: "step time over that of one process" },
        labelOf: ({ a }) => a.label, evenOf: ({ a, b }) => a.global_batch / b.global_batch,
      });
    }
    for (const [title, all] of ofKind("peer")) {
      panel(all, {
        title, note: "against peers", x: { title: "our step time over the peer’s" },
        labelOf: ({ a, b }) => `${a.label} / ${b.label}`,
      });
    }
    panel(ofKind("control").flatMap(([, all]) => all), {
      title: "Controls", note: "the same configuration, measured twice", band,
      x: { kind: "linear", title: "step time over that of the same once more", include: [1, ...band] },
      labelOf: ({ a }) => `${a.model} ${a.scaling}, ${a.label}`,
      isGrey: isTooFar, noteOf: (one) => (isTooFar(one) ? "too far" : ""),
    });
  };

  plots.resources = (place) => {
    const groups = groupsOf(shown.filter((run) => !run.error), (run) => [run.series.index, run.world_size])
      .sort(([a], [b]) => a.series.index - b.series.index || a.world_size - b.world_size);
    const panel = (title, note, unit, valueOf, totalOf) => {
      const kept = groups.map((group) => {
        const value = median(group.map(valueOf));
        return { group, value, total: Math.max(value, median(group.map(totalOf))) };
      }).filter(({ value }) => value > 0);
      const bar = (label, opacity, xOf, tipOf) => ({
        label, stack: "all", barThickness: 13,
        backgroundColor: kept.map(({ group: [run] }) => color(`hue-${run.series.hue}`, opacity)),
        data: kept.map((one, y) => ({ x: xOf(one), y, tip: `${tipOf(one)} ${unit}` })),
      });
      const dots = kept.flatMap(({ group }, y) => (group.length < 2 ? [] : group)
        .map((run) => ({ x: valueOf(run), y, tip: `${run.workload}: ${show(valueOf(run))} ${unit}` })));
      draw(place, {
        title, note, isStacked: true, rows: kept.map(({ group: [run] }) => run.label),
        rowNotes: kept.map(({ value, total }) => show(value) + (total > value ? ` / ${show(total)}` : "")),
        x: { kind: "zero", title: unit, include: kept.map(({ total }) => total) },
        datasets: [
          bar("largest rank", 1, ({ value }) => value, ({ value }) => show(value)),
          bar("all ranks", 0.35, ({ value, total }) => total - value, ({ total }) => `all ranks: ${show(total)}`),
          makeMarks("workloads", dots.filter(({ x }) => positive(x)), {
            pointStyle: "circle", pointRadius: 2.5, pointHoverRadius: 4, pointBorderWidth: 0.8,
            pointBackgroundColor: color("ink"), pointBorderColor: color("paper"),
          }),
        ],
      });
    };
    panel("Peak resident memory", "largest rank / all ranks, MiB", "MiB",
      (run) => run.peak_rss_mib, (run) => run.job_peak_rss_mib);
    panel("Start-up", "from the command to the end of the first step", "s", (run) => run.startup_ms / 1e3, () => 0);
  };

  const drawAll = () => {
    charts.splice(0).forEach((chart) => chart.destroy());
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 11.5;
    for (const [name, drawPlot] of Object.entries(plots)) {
      const place = document.getElementById(`plot-${name}`);
      place?.replaceChildren();
      if (place) drawPlot(place);
    }
  };

  // ---- Theme, download, sorting

  const themes = ["auto", "light", "dark"];
  // A page opened from a file may have no storage.
  const stored = (key, value) => {
    try {
      if (value !== undefined) localStorage.setItem(key, value);
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  };
  const themeButton = document.getElementById("theme");
  const showTheme = (theme) => {
    root.dataset.theme = theme;
    themeButton.textContent = `Theme: ${theme}`;
    drawAll();
  };
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    stored("theme", next);
    showTheme(next);
  });
  themeButton.hidden = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  // Paper is white whatever the theme.
  const onScreen = () => (themes.includes(stored("theme")) ? stored("theme") : "auto");
  const setPaper = (isPaper) => {
    onPaper = isPaper;
    showTheme(isPaper ? "light" : onScreen());
  };
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));

  const download = document.getElementById("download");
  const json = document.getElementById("document").textContent;
  download.href = URL.createObjectURL(new Blob([json], { type: "application/json" }));
  download.hidden = false;

  // A click on a column's title sorts the rows of each group by it, a second click the other way.
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b, direction) => {
    if (a === nothing || b === nothing) return (a === nothing) - (b === nothing);
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  const sortBy = (header) => {
    const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction < 0 ? "descending" : "ascending");
    for (const body of header.closest("table").tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
      const keys = new Map(rows.map((row) => [row, keyOf(row, header.cellIndex)]));
      body.append(...rows.sort((a, b) => compare(keys.get(a), keys.get(b), direction)));
    }
  };
  for (const header of document.querySelectorAll("thead th")) {
    // Not <button>: Chromium then no longer repeats the head of a table on every printed page.
    const button = document.createElement("span");
    button.tabIndex = 0;
    button.setAttribute("role", "button");
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(header));
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sortBy(header);
    });
  }

  showTheme(onScreen());
})();
