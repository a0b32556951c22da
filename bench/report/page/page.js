// Draws the plots of a report from the JSON in this page, and adds what paper has not: a theme, a download, tables that sort.
// Without it the page has the same numbers in its tables.
"use strict";

(() => {
  const root = document.documentElement;
  const nothing = "–";

  // -------------------------------------------------------------------------------------------------------------
  // The document: whatever is missing or of another type is null, an empty text or an empty list.

  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const scaling = read("document")?.ddp_scaling ?? {};
  const objects = (value) =>
    Array.isArray(value) ? value.filter((one) => one && typeof one === "object" && !Array.isArray(one)) : [];
  const text = (value) => (typeof value === "string" ? value : "");
  // What no axis can show is left out.
  const number = (value) => (typeof value === "number" && Math.abs(value) < 1e15 ? value : null);
  const positive = (value) => (number(value) > 1e-9 ? value : null);
  const worldSize = (value) => (number(value) >= 1 && value <= 1e7 ? value : null);

  // Each run with the series, the workload and the label that the page has for it.
  const names = read("names");
  const runs = names.runs.flatMap((name, i) => {
    if (!name) return [];
    const run = scaling.runs[i];
    const series = { ...names.series[name.series], index: name.series };
    const ranks = worldSize(run.world_size);
    return [{ ...run, series, ranks, workload: name.workload, label: series.label + (ranks ? ` ×${ranks}` : "") }];
  });
  const findRun = (name) => runs.find((run) => run.name === name);
  const isControl = (run) => run.kind === "control";
  const measured = runs.filter((run) => !isControl(run) && !text(run.error) && positive(run.step_ms?.median));
  const unique = (values) => [...new Set(values)];
  const workloads = unique(runs.filter((run) => !isControl(run)).map((run) => run.workload));

  // -------------------------------------------------------------------------------------------------------------
  // Numbers as text

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
  const shortened = (label) => (label.length > 30 ? `${label.slice(0, 29)}…` : label);
  const showRanks = (ranks) => (ranks === 1 ? "one rank" : `${ranks ?? "unknown"} ranks`);
  const percent = (share) => (number(share) === null ? nothing : `${share > 0 ? "+" : ""}${(100 * share).toFixed(1)} %`);
  const spread = ({ p10, p90 }) => (number(p10) !== null && number(p90) !== null ? ` (p10 ${show(p10)}, p90 ${show(p90)})` : "");

  // -------------------------------------------------------------------------------------------------------------
  // Axes

  const niceStep = (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 2.5, 5, 10].find((step) => step * power >= rough * 0.999);
  };
  const multiples = (step, low, high) => {
    const values = [];
    for (let i = Math.ceil(low / step - 1e-6); i * step <= high * (1 + 1e-9) + step * 1e-6; ++i) values.push(i * step + 0);  // not -0
    return values;
  };
  // Powers of `base` times the first list of factors that gives few enough, from low to high.
  const logTicks = (low, high, most, base, factorLists) => {
    const first = Math.floor(Math.log(low) / Math.log(base)), last = Math.ceil(Math.log(high) / Math.log(base));
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

  const isLogarithmic = ({ kind }) => kind === "log" || kind === "bytes";
  // kind: "log", "bytes" (logarithmic too), "linear" or "zero", which starts there; values: all that it has to reach; line: a
// tick that stands out.
  const makeAxis = ({ kind, title, values, ticks, most = kind === "bytes" ? 5 : 6, line, label = kind === "bytes" ? showBytes : showTick }) => {
    const logarithmic = isLogarithmic({ kind });
    const usable = values.filter((value) => (logarithmic ? positive(value) : number(value)) !== null);
    let low = Math.min(...usable), high = Math.max(...usable);
    if (logarithmic) {
      const margin = Math.max((high / low) ** 0.06, 1.02);
      [low, high] = [low / margin, high * margin];
    } else {
      const margin = 0.06 * (high - low || Math.abs(high) || 1);
      [low, high] = [kind === "zero" ? Math.min(0, low) : low - margin, high + margin];
    }
    const tickValues = (ticks ?? ticksOf(kind, low, high, most)).filter((value) => value >= low && value <= high);
    return {
      type: logarithmic ? "logarithmic" : "linear", min: low, max: high, bounds: "data",
      title: { display: Boolean(title), text: title, color: color("muted") },
      border: { color: color("muted") },
      grid: { color: ({ tick }) => color(tick?.value === line ? "muted" : "grid"), drawTicks: false },
      ticks: { color: color("muted"), padding: 6, autoSkip: false, maxRotation: 0, callback: (value) => label(value) },
      afterBuildTicks: (axis) => { axis.ticks = tickValues.map((value) => ({ value })); },
    };
  };
  const rowAxis = (rows) => ({
    type: "linear", min: -0.5, max: rows.length - 0.5, reverse: true, bounds: "data",
    grid: { display: false, drawBorder: false },
    ticks: { color: color("ink"), autoSkip: false, callback: (i) => rows[i] },
    afterBuildTicks: (axis) => { axis.ticks = rows.map((_, value) => ({ value })); },
  });

  // -------------------------------------------------------------------------------------------------------------
  // Charts

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
  const makeCurve = ({ points, hue, marker = 0, hollow = false, dash = 0, showLine = true, whiskers = "y", ...more }) => ({
    type: "scatter", data: [...points].sort((a, b) => a.x - b.x), showLine, whiskers,
    borderColor: color(`hue-${hue}`), borderWidth: 1.6, borderDash: dashes[dash],
    pointStyle: markers[marker % markers.length], pointRadius: 4, pointHoverRadius: 6, pointHitRadius: 6,
    pointBackgroundColor: color(hollow ? "paper" : `hue-${hue}`), pointBorderColor: color(`hue-${hue}`), pointBorderWidth: hollow ? 1.6 : 1,
    ...more,
  });
  const makeGuide = (label, points) => ({
    type: "scatter", label, data: points, showLine: true, pointRadius: 0, pointHitRadius: 0,
    borderColor: color("muted"), borderWidth: 1.1, borderDash: [1.5, 3], labelColor: color("muted"), order: 1,
  });
  // A short line across the rows, or whatever the style is.
  const makeMarks = (points, more) => ({
    type: "scatter", data: points, pointStyle: "line", pointRotation: 90, pointRadius: 7, pointHoverRadius: 7,
    pointBorderColor: color("ink"), pointBorderWidth: 2, pointBackgroundColor: color("paper"), stack: more.label, order: -1, ...more,
  });

  // What the library has not: whiskers, labels at the ends of curves and rows, a band, and the others fade when one is pointed at.
  const additions = {
    id: "additions",
    beforeDatasetsDraw(chart, _, { band }) {
      if (!band) return;
      const { ctx, chartArea: { top, height }, scales: { x } } = chart;
      ctx.fillStyle = color("grid");
      ctx.fillRect(x.getPixelForValue(band[0]), top, x.getPixelForValue(band[1]) - x.getPixelForValue(band[0]), height);
    },
    beforeDatasetDraw(chart, { index, meta }) {
      const { ctx, scales } = chart;
      const pointedAt = chart.getActiveElements();
      ctx.save();
      ctx.globalAlpha = pointedAt.length === 0 || pointedAt.some((one) => one.datasetIndex === index) ? 1 : 0.2;
      const { whiskers, data } = chart.data.datasets[index];
      meta.data.forEach((element, i) => {
        const ends = [data[i].low, data[i].high].map((end) => whiskers && number(end) !== null && scales[whiskers].getPixelForValue(end));
        if (!ends.every(Number.isFinite)) return;
        ctx.beginPath();
        ctx.strokeStyle = element.options.borderColor;
        ctx.lineWidth = whiskers === "x" ? 2 : 1;
        if (whiskers === "x") { ctx.moveTo(ends[0], element.y); ctx.lineTo(ends[1], element.y); }
        else for (const end of ends) {
          ctx.moveTo(element.x, element.y); ctx.lineTo(element.x, end);
          ctx.moveTo(element.x - 3, end); ctx.lineTo(element.x + 3, end);
        }
        ctx.stroke();
      });
    },
    afterDatasetDraw(chart) { chart.ctx.restore(); },
    afterDatasetsDraw(chart, _, { rowNotes }) {
      const { ctx, chartArea, scales, data } = chart;
      ctx.save();
      ctx.font = `11.5px ${Chart.defaults.font.family}`;
      ctx.textBaseline = "middle";
      // Right of the last point of each curve, moved apart; beside a point that is far from there.
      const labels = data.datasets.flatMap((dataset, i) => {
        const last = chart.getDatasetMeta(i).data.at(-1);
        return dataset.label && dataset.showLine && last ? [{ text: dataset.label, x: last.x, y: last.y, color: dataset.labelColor ?? dataset.borderColor }] : [];
      }).sort((a, b) => a.y - b.y);
      const isFar = ({ x }) => x < chartArea.left + 0.3 * chartArea.width;
      const atRight = labels.filter((one) => !isFar(one));
      atRight.reduceRight((below, one) => (one.at = Math.min(one.y, below - 14)), chart.height - 6);
      atRight.reduce((above, one) => (one.at = Math.max(one.at, above + 14)), chartArea.top - 14);
      for (const one of labels) {
        ctx.strokeStyle = ctx.fillStyle = one.color;
        if (isFar(one)) {
          ctx.fillText(one.text, one.x + 7, one.y - 9);
          continue;
        }
        ctx.lineWidth = 0.6;
        ctx.globalAlpha = 0.4;
        ctx.beginPath();
        ctx.moveTo(one.x + 6, one.y); ctx.lineTo(chartArea.right + 10, one.at);
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.fillText(one.text, chartArea.right + 13, one.at);
      }
      ctx.fillStyle = color("ink");
      (rowNotes ?? []).forEach((note, i) => ctx.fillText(note, chartArea.right + 8, scales.y.getPixelForValue(i)));
      ctx.textAlign = "center";
      ctx.font = `10px ${Chart.defaults.font.family}`;
      data.datasets.forEach((dataset, i) => chart.getDatasetMeta(i).data.forEach((bar, row) => {
        const { inside } = dataset.data[row];
        if (!inside || ctx.measureText(inside).width + 4 > Math.abs(bar.x - bar.base)) return;
        ctx.fillStyle = color(dataset.insideColor);
        ctx.fillText(inside, (bar.x + bar.base) / 2, bar.y);
      }));
      ctx.restore();
    },
  };

  const charts = [];
  let onPaper = false;  // where all are drawn at one size, and the style sheet makes them fit
  // A figure in `place`; x and y are what makeAxis takes, rows the labels of a plot that has rows instead of a y axis.
  const draw = (place, { title, note = "", x, y, band, stacked = false, ...all }) => {
    const [rows, rowNotes] = [all.rows?.map(shortened), all.rowNotes?.map(shortened)];
    const fits = (axis, value) => !axis || (isLogarithmic(axis) ? positive(value) : number(value)) !== null;
    const datasets = all.datasets.map((dataset) => ({
      ...dataset, label: shortened(dataset.label ?? ""), data: dataset.data.filter((point) => fits(x, point.x) && fits(y, point.y)),
    }));
    if (!datasets.some(({ data }) => data.some(({ tip }) => tip))) return;
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const detail = document.createElement("span");
    const box = document.createElement("div");
    const canvas = document.createElement("canvas");
    const endLabels = rowNotes ?? datasets.filter((dataset) => dataset.showLine && dataset.label).map((dataset) => dataset.label);
    const widest = Math.max(0, ...endLabels.map((label) => label.length));
    detail.textContent = note;
    caption.append(title, detail);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", [place.id.replace("plot-", "").replace("-", " "), title, note].filter(Boolean).join(", "));
    box.style.height = `${rows ? 64 + 24 * rows.length : Math.max(300, 60 + 14 * endLabels.length)}px`;
    box.append(canvas);
    if (onPaper) [canvas.width, canvas.height] = [480, parseInt(box.style.height, 10)];
    figure.append(caption, box);
    place.append(figure);
    charts.push(new Chart(canvas, {
      type: stacked ? "bar" : "scatter",
      data: { datasets },
      plugins: [additions],
      options: {
        indexAxis: rows ? "y" : "x",
        responsive: !onPaper, maintainAspectRatio: false, animation: false, devicePixelRatio: Math.max(2, globalThis.devicePixelRatio ?? 1),
        layout: { padding: { top: 6, right: widest > 0 ? 22 + 6.4 * widest : 8 } },
        scales: { x: { ...makeAxis(x), stacked }, y: rows ? { ...rowAxis(rows), stacked } : makeAxis(y) },
        interaction: { mode: "nearest", intersect: true },
        plugins: {
          legend: { display: false }, additions: { rowNotes, band },
          tooltip: { displayColors: false, filter: (item) => Boolean(item.raw.tip), callbacks: { title: () => "", label: (item) => item.raw.tip } },
        },
      },
    }));
  };

  const xs = (datasets) => datasets.flatMap(({ data }) => data.flatMap(({ x, low, high }) => [x, low, high]));
  const ys = (datasets) => datasets.flatMap(({ data, whiskers }) => data.flatMap(({ y, low, high }) => (whiskers === "y" ? [y, low, high] : [y])));
  // One curve for each series that has a point; spread: points of the same x side by side.
  const curvesOf = (entries, pointOf, { spread = false, ...more } = {}) => {
    const series = unique(entries.map((run) => run.series.index)).sort((a, b) => a - b);
    return series.flatMap((index, place) => {
      const own = entries.filter((run) => run.series.index === index);
      const aside = spread ? 2 ** ((place - (series.length - 1) / 2) * Math.min(0.08, 0.5 / series.length)) : 1;
      const points = own.map((run) => ({ run, ...pointOf(run) })).filter(({ y }) => number(y) !== null);
      const { label, hue, dash, is_peer } = own[0].series;
      return points.length === 0 ? [] : [makeCurve({
        label, hue, dash, marker: index, hollow: is_peer, ...more,
        points: points.map(({ run, x, y, low, high, tip }) => ({ x: x * aside, y, low, high, tip: `${run.series.full_name}, ${showRanks(run.ranks)}: ${tip}` })),
      })];
    });
  };

  // -------------------------------------------------------------------------------------------------------------
  // The plots, by the id of their place

  const byRanks = (kind, title, pointOf, guidesOf, options) => (place) => {
    for (const workload of workloads) {
      const group = measured.filter((run) => run.workload === workload && run.ranks);
      const curves = curvesOf(group, (run) => ({ x: run.ranks, ...pointOf(run) }), options);
      if (curves.length === 0) continue;
      const counts = unique(group.map((run) => run.ranks)).sort((a, b) => a - b);
      const guides = counts.length < 2 ? [] : guidesOf(group).map(([label, at]) => makeGuide(label, counts.map((x) => ({ x, y: at(x) }))));
      const datasets = [...curves, ...guides];
      draw(place, {
        title: workload, datasets,
        x: { kind: "log", title: "ranks", values: xs(datasets.map(({ data }) => ({ data: data.map(({ x }) => ({ x })) }))), ticks: counts },
        y: { kind, title, values: ys(datasets) },
      });
    }
  };
  const idealStepTime = (group) => {
    const base = group.find((run) => run.kind !== "peer" && text(run.stage).startsWith("01"));
    const exponent = { weak: 0, strong: -1 }[group[0].scaling];
    return base && exponent !== undefined ? [["ideal", (ranks) => base.step_ms.median * ranks ** exponent]] : [];
  };

  const phaseNames = { data: "data", forward: "forward", backward: "backward", exposed_comm: "exposed communication", optimizer: "optimizer" };
  const drawPhases = (place) => {
    for (const workload of workloads) {
      const phasesMs = (run) => Object.keys(phaseNames).map((phase) => positive(run.phases_ms?.[phase]) ?? 0);
      const sum = (values) => values.reduce((a, b) => a + b, 0);
      const rows = measured.filter((run) => run.workload === workload && sum(phasesMs(run)) > 0);
      if (rows.length === 0) continue;
      const bars = Object.entries(phaseNames).map(([phase, name], index) => ({
        label: name, backgroundColor: color(`phase-${phase}`), insideColor: `inside-${phase}`, barThickness: 15,
        borderColor: color("paper"), borderWidth: 0.5, stack: "step",
        data: rows.map((run, y) => {
          const ms = phasesMs(run)[index];
          const share = `${Math.round((100 * ms) / sum(phasesMs(run)))} %`;
          return { x: ms, y, inside: share, tip: `${name}: ${show(ms)} ms, ${share}` };
        }),
      }));
      const marks = (label, pointer, more) => makeMarks(rows.flatMap((run, y) =>
        positive(run[pointer]) ? [{ x: run[pointer], y, tip: `${label}: ${show(run[pointer])} ms` }] : []), { label, ...more });
      const datasets = [...bars, marks("floor", "floor_ms"),
        marks("predicted", "predicted_step_ms", { pointStyle: "rectRot", pointRotation: 0, pointRadius: 5, pointBorderWidth: 1.4 })];
      draw(place, {
        title: workload, rows: rows.map((run) => run.label), rowNotes: rows.map((run) => `${show(run.step_ms.median)} ms`), stacked: true, datasets,
        x: { kind: "zero", title: "ms per step", values: [...rows.map((run) => sum(phasesMs(run))), ...xs(datasets.slice(-2))] },
      });
    }
  };

  const drawPrediction = (place) => {
    const predicted = measured.filter((run) => positive(run.predicted_step_ms) && number(run.prediction?.residual) !== null);
    const curves = curvesOf(predicted, (run) => ({
      x: run.predicted_step_ms, y: 100 * run.prediction.residual,
      tip: `${run.workload}, ${show(run.step_ms.median)} ms, predicted ${show(run.predicted_step_ms)} ms, ${percent(run.prediction.residual)}`,
    }), { showLine: false });
    if (curves.length === 0) return;
    const ends = [Math.min(...xs(curves).filter(positive)), Math.max(...xs(curves).filter(positive))];
    const datasets = [...curves, ...[["+20 %", 20], ["as predicted", 0], ["−20 %", -20]].map(([label, y]) => makeGuide(label, ends.map((x) => ({ x, y }))))];
    draw(place, {
      title: "Every configuration", note: "colours and markers as above", datasets,
      x: { kind: "log", title: "predicted step, ms", values: ends }, y: { kind: "linear", title: "residual, %", values: ys(datasets) },
    });
  };

  const drawExtrapolation = (place) => {
    const all = objects(scaling.extrapolations).map((one) => ({ ...one, run: findRun(one.from), ranks: worldSize(one.world_size) }))
      .filter(({ run, ranks }) => ranks && measured.includes(run));
    for (const workload of workloads) {
      const group = all.filter(({ run }) => run.workload === workload);
      for (const [note, kind, title, ofRun, ofPrediction] of [
        ["step time", "log", "step time, ms", (run) => run.step_ms.median, (one) => one.predicted_step_ms],
        ["efficiency", "zero", "efficiency", (run) => run.efficiency, (one) => one.efficiency],
      ]) {
        const series = unique(group.map(({ run }) => run.series.index));
        const own = measured.filter((run) => run.workload === workload && run.ranks && series.includes(run.series.index));
        const known = curvesOf(own, (run) => ({ x: run.ranks, y: ofRun(run), tip: `measured: ${show(ofRun(run))}` }))
          .map((curve) => ({ ...curve, label: "", borderDash: [] }));
        const predicted = unique(group.map(({ from, algorithm }) => JSON.stringify([from, algorithm]))).map((key) => {
          const steps = group.filter(({ from, algorithm }) => JSON.stringify([from, algorithm]) === key);
          const [{ run, algorithm }] = steps;
          const label = [run.series.label, text(algorithm)].filter(Boolean).join(" ");
          const point = (x, y, tip) => ({ x, y, tip: `${label}, ${showRanks(x)}, ${tip}: ${show(y)}` });
          return makeCurve({
            label, hue: run.series.hue, marker: run.series.index, hollow: true, dash: algorithm === "tree" ? 2 : 1,
            points: [point(run.ranks ?? 1, ofRun(run), "measured"), ...steps.map((one) => point(one.ranks, ofPrediction(one), "predicted"))]
              .filter(({ y }) => number(y) !== null),
          });
        });
        const datasets = [...known, ...predicted];
        if (group.length === 0) continue;
        draw(place, {
          title: workload, note, datasets,
          x: { kind: "log", title: "ranks", values: xs(datasets), ticks: logTicks(1, Math.max(...xs(datasets).filter(positive)), 6, 2, [[1]]) },
          y: { kind, title, values: kind === "zero" ? [1, ...ys(datasets)] : ys(datasets) },
        });
      }
    }
  };

  // Microseconds of one all-reduce of so many bytes: docs/bench.md, "Alpha and beta".
  const modelUs = ({ algorithm }, { alpha_us, beta_us_per_mib }, bytes, ranks) => {
    const betaUs = (bytes / 2 ** 20) * beta_us_per_mib;
    return algorithm === "tree" ? 2 * Math.log2(ranks) * alpha_us + 2 * betaUs : 2 * (ranks - 1) * alpha_us + ((2 * (ranks - 1)) / ranks) * betaUs;
  };
  const drawAllReduce = (place) => {
    const samples = objects(scaling.all_reduce).filter((one) => worldSize(one.world_size) >= 2 && positive(one.bytes));
    const backends = unique(samples.map(({ backend }) => text(backend)));
    const models = objects(scaling.communication_models)
      .sort((a, b) => (number(a.median_relative_error) ?? Infinity) - (number(b.median_relative_error) ?? Infinity));
    const panels = unique(samples.map(({ device, world_size }) => JSON.stringify([text(device), world_size]))).map((key) => JSON.parse(key))
      .sort((a, b) => a[0].localeCompare(b[0]) || a[1] - b[1]);
    for (const [device, ranks] of panels) {
      const here = samples.filter((one) => text(one.device) === device && one.world_size === ranks);
      const busGbps = (bytes, us) => ((bytes / us) * 1e-3 * 2 * (ranks - 1)) / ranks;
      for (const isBandwidth of [false, true]) {
        const datasets = backends.flatMap((backend, index) => {
          const hue = `x${index % 6}`;
          const own = here.filter((one) => text(one.backend) === backend);
          const points = own.map(({ bytes, time_us, bus_bandwidth_gbps }) => ({
            x: bytes, y: isBandwidth ? bus_bandwidth_gbps : time_us?.median, ...(isBandwidth ? {} : { low: positive(time_us?.p10), high: positive(time_us?.p90) }),
            tip: `${backend}, ${showBytes(bytes)}: ${show(time_us?.median)} µs${spread(time_us ?? {})}, bus ${show(bus_bandwidth_gbps)} GB/s`,
          })).filter(({ y }) => positive(y));
          if (points.length === 0) return [];
          const model = models.find((one) => text(one.backend) === backend && text(one.device) === device && objects(one.regimes).length > 0);
          const least = Math.min(...points.map(({ x }) => x)), most = Math.max(...points.map(({ x }) => x));
          const regimes = objects(model?.regimes).filter((one) => number(one.alpha_us) !== null && number(one.beta_us_per_mib) !== null)
            .sort((a, b) => a.from_bytes - b.from_bytes);
          // A line for each regime: at its border the model may jump.
          const lines = regimes.flatMap((regime, i) => {
            const from = Math.max(least, number(regime.from_bytes) ?? 0), to = Math.min(most, number(regimes[i + 1]?.from_bytes) ?? most);
            if (!(from < to)) return [];
            const line = Array.from({ length: 25 }, (_, k) => from * (to / from) ** (k / 24)).map((bytes) => {
              const us = modelUs(model, regime, bytes, ranks);
              return { x: bytes, y: isBandwidth ? busGbps(bytes, us) : us };
            }).filter(({ y }) => positive(y));
            return [makeCurve({ points: line, hue, dash: 1, pointRadius: 0, pointHitRadius: 0, borderWidth: 1.1, label: "" })];
          });
          return [makeCurve({ points, hue, marker: index, label: backend || "unnamed" }), ...lines];
        });
        if (datasets.length === 0) continue;
        draw(place, {
          title: showRanks(ranks) + (device ? `, ${device}` : ""), note: isBandwidth ? "bus bandwidth" : "time", datasets,
          x: { kind: "bytes", title: "message", values: datasets.flatMap(({ data }) => data.map(({ x }) => x)) },
          y: { kind: "log", title: isBandwidth ? "bus bandwidth, GB/s" : "time of one all-reduce, µs", values: ys(datasets) },
        });
      }
    }
  };

  const drawRatios = (place) => {
    const tolerance = Number(place.dataset.tolerance);
    const comparisons = objects(scaling.comparisons).filter((one) => positive(one.ratio_median))
      .map((one) => ({ ...one, kind: text(one.kind) || "baseline", a: findRun(one.a) ?? { label: text(one.a) }, b: findRun(one.b) ?? {} }));
    const panel = (kind, all, title, note, axisTitle) => {
      if (all.length === 0) return;
      const isTooFar = (one) => !(Math.abs(one.ratio_median - 1) <= tolerance);
      const isGrey = (one) => (kind === "control" ? isTooFar(one) : !text(one.verdict));
      const hues = all.map((one) => color(isGrey(one) ? "muted" : one.a.series ? `hue-${one.a.series.hue}` : "hue-x0"));
      const points = all.map((one, y) => {
        const ends = Array.isArray(one.ci95) && one.ci95.every(positive) ? one.ci95 : [];
        const interval = ends.length === 2 ? ` (95 %: ${show(ends[0])} to ${show(ends[1])})` : "";
        return { x: one.ratio_median, y, low: ends[0], high: ends[1], tip: `${one.a.name ?? one.a.label} over ${text(one.b.name)}: ${show(one.ratio_median)}×${interval}` };
      });
      const even = kind !== "baseline" ? [] : all.flatMap((one, y) => {
        const x = one.a.global_batch / one.b.global_batch;
        return positive(x) && x !== 1 ? [{ x, y, tip: `${show(x)}×: equally many samples per second` }] : [];
      });
      const datasets = [
        { ...makeCurve({ points: [], hue: "x0", showLine: false, whiskers: "x" }), data: points, pointBorderColor: hues,
          pointBackgroundColor: all.map((one, i) => (one.a.series?.is_peer ? color("paper") : hues[i])), pointStyle: all.map((one) => markers[(one.a.series?.index ?? 0) % markers.length]) },
        makeMarks(even, { label: "even", pointBorderColor: color("muted"), order: 1 }),
      ];
      const band = kind === "control" ? [1 - tolerance, 1 + tolerance] : null;
      const x = { kind: kind === "control" ? "linear" : "log", title: axisTitle, values: [1, ...xs(datasets), ...(band ?? [])], most: 5, line: 1 };
      draw(place, {
        title, note, datasets, band, x,
        rows: all.map((one) => (kind === "control" ? `${text(one.a.model)} ${text(one.a.scaling)}, ` : "") + one.a.label + (kind === "peer" ? ` / ${one.b.label ?? ""}` : "")),
        rowNotes: all.map((one) => `${show(one.ratio_median)}× ${kind === "control" ? (isTooFar(one) ? "too far" : "") : text(one.verdict)}`),
      });
    };
    for (const [kind, note, axisTitle] of [
      ["baseline", "against one process", "step time over that of one process"],
      ["peer", "against peers", "our step time over the peer’s"],
    ]) {
      for (const workload of [...workloads, undefined]) {
        panel(kind, comparisons.filter((one) => one.kind === kind && one.a.workload === workload), workload ?? "Others", note, axisTitle);
      }
    }
    panel("control", comparisons.filter((one) => one.kind === "control"), "Controls", "the same configuration, measured twice", "step time over that of the same once more");
  };

  const drawResources = (place) => {
    const finished = runs.filter((run) => !isControl(run) && !text(run.error));
    const places = unique(finished.map((run) => JSON.stringify([run.series.index, run.ranks]))).sort()
      .map((key) => finished.filter((run) => JSON.stringify([run.series.index, run.ranks]) === key))
      .sort(([a], [b]) => a.series.index - b.series.index || a.ranks - b.ranks);
    const median = (values) => {
      const sorted = values.filter(positive).sort((a, b) => a - b);
      const middle = sorted.length >> 1;
      return sorted.length === 0 ? 0 : sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    };
    const panel = (title, note, unit, valueOf, totalOf) => {
      const kept = places.filter((group) => median(group.map(valueOf)) > 0);
      if (kept.length === 0) return;
      const values = kept.map((group) => median(group.map(valueOf)));
      const totals = kept.map((group, i) => Math.max(values[i], median(group.map(totalOf))));
      const bar = (label, opacity, xOf, tipOf) => ({
        label, stack: "all", barThickness: 13, backgroundColor: kept.map(([run]) => color(`hue-${run.series.hue}`, opacity)),
        data: kept.map((_, y) => ({ x: xOf(y), y, tip: `${tipOf(y)} ${unit}` })),
      });
      const dots = kept.flatMap((group, y) => (group.length > 1 ? group.filter((run) => positive(valueOf(run))) : [])
        .map((run) => ({ x: valueOf(run), y, tip: `${run.workload}: ${show(valueOf(run))} ${unit}` })));
      draw(place, {
        title, note, stacked: true, rows: kept.map(([run]) => run.label),
        rowNotes: kept.map((_, i) => show(values[i]) + (totals[i] > values[i] ? ` / ${show(totals[i])}` : "")),
        x: { kind: "zero", title: unit, values: [...totals, ...dots.map(({ x }) => x)] },
        datasets: [
          bar("largest rank", 1, (i) => values[i], (i) => show(values[i])), bar("all ranks", 0.35, (i) => totals[i] - values[i], (i) => `all ranks: ${show(totals[i])}`),
          makeMarks(dots, { label: "workloads", pointStyle: "circle", pointRadius: 2.5, pointHoverRadius: 4, pointBorderWidth: 0.8, pointBackgroundColor: color("ink"), pointBorderColor: color("paper") }),
        ],
      });
    };
    panel("Peak resident memory", "largest rank / all ranks, MiB", "MiB", (run) => run.peak_rss_mib, (run) => run.job_peak_rss_mib);
    panel("Start-up", "from the command to the end of the first step", "s", (run) => run.startup_ms / 1e3, () => 0);
  };

  const plots = {
    "plot-step-time": byRanks("log", "step time, ms", ({ step_ms }) => ({
      y: step_ms.median, low: positive(step_ms.p10), high: positive(step_ms.p90), tip: `${show(step_ms.median)} ms${spread(step_ms)}`,
    }), idealStepTime, { spread: true }),
    "plot-speed-up": byRanks("log", "samples/s, relative to one process",
      ({ relative_speedup }) => ({ y: positive(relative_speedup), tip: `${show(relative_speedup)}× one process` }),
      () => [["ideal", (ranks) => ranks], ["one process", () => 1]]),
    "plot-efficiency": byRanks("zero", "efficiency", ({ efficiency }) => ({ y: efficiency, tip: show(efficiency) }), () => [["ideal", () => 1]]),
    "plot-phases": drawPhases,
    "plot-prediction": drawPrediction,
    "plot-extrapolation": drawExtrapolation,
    "plot-all-reduce": drawAllReduce,
    "plot-ratios": drawRatios,
    "plot-resources": drawResources,
  };
  const drawAll = () => {
    charts.splice(0).forEach((chart) => chart.destroy());
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 11.5;
    for (const [id, drawPlot] of Object.entries(plots)) {
      const place = document.getElementById(id);
      place?.replaceChildren();
      if (place) drawPlot(place);
    }
  };

  // -------------------------------------------------------------------------------------------------------------
  // Theme, download, sorting

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
  download.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([document.getElementById("document").textContent], { type: "application/json" }));
    link.download = "report.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
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
  for (const header of document.querySelectorAll("thead th")) {
    // Not <button>: Chromium then no longer repeats the head of a table on every printed page.
    const button = document.createElement("span");
    button.tabIndex = 0;
    button.setAttribute("role", "button");
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      button.click();
    });
    button.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") === "ascending";
      for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      for (const body of header.closest("table").tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
        rows.sort((a, b) => compare(keyOf(a, header.cellIndex), keyOf(b, header.cellIndex), descending ? -1 : 1));
        body.append(...rows);
      }
    });
  }

  showTheme(onScreen());
})();
