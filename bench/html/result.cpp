// What was fastest, as a sentence and as a table.
#include <algorithm>

#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

const Run* fastest_of(const Group& group) {
  const Run* fastest = nullptr;
  for (const Run* run : group.runs) {
    if (run->has_speed() && run->samples_per_second &&
        (fastest == nullptr || *run->samples_per_second > *fastest->samples_per_second)) {
      fastest = run;
    }
  }
  return fastest;
}

/// "03_ddp_spawn on 4 ranks (shm)".
std::string describe(const Material& material, const Run& run) {
  const std::string& how = material.series.of(run).how;
  std::string text = run.program;
  if (run.world_size > 0 && !run.is_baseline()) {
    text += " on " + ranks(run.world_size);
  }
  return text + (how.empty() ? "" : " (" + how + ")");
}

struct Winner {
  const Group* group;
  const Run* run;
};

/// The fastest of each workload, in the document's order.
std::vector<Winner> find_winners(const Material& material) {
  std::vector<Winner> winners;
  for (const Group& group : material.groups) {
    if (const Run* const run = fastest_of(group)) {
      winners.push_back({&group, run});
    }
  }
  return winners;
}

/// What is fastest for some of the models, and how much so for each.
struct Clause {
  std::string fastest;
  std::vector<std::string> models;
};

/// "03_ddp_spawn on 4 ranks (shm) for <b>S</b> (2.8× one process) and <b>M</b> (3.1×)".
std::vector<Clause> make_clauses(const Material& material, const std::vector<Winner>& winners,
                                 bool names_scaling) {
  std::vector<Clause> clauses;
  bool explained = false;
  for (const auto& [group, run] : winners) {
    std::string fastest = escape(describe(material, *run));
    std::string model = "<b>" + escape(group->model) + "</b>";
    if (run->is_baseline()) {
      fastest = "one process (" + escape(run->program) + ")";
    } else {
      fastest += names_scaling ? ", " + escape(group->scaling) + " scaling," : "";
      const Number speedup = speedup_of(*run, *group);
      model += speedup ? " (" + show_factor(speedup) + (explained ? ")" : " one process)") : "";
      explained |= speedup.has_value();
    }
    const auto same = std::find_if(clauses.begin(), clauses.end(),
                                   [&](const Clause& clause) { return clause.fastest == fastest; });
    if (same == clauses.end()) {
      clauses.push_back({fastest, {model}});
    } else {
      same->models.push_back(model);
    }
  }
  return clauses;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < parts.size() ? ", " : " and ") + parts[i];
  }
  return text;
}

/// Of samples per second, from that of the step times.
std::optional<Interval> speedup_interval(const Material& material, const Winner& winner) {
  const Run* const base = winner.group->baseline();
  if (base == nullptr || !base->global_batch || !winner.run->global_batch ||
      !(*base->global_batch > 0)) {
    return std::nullopt;
  }
  const double even = *winner.run->global_batch / *base->global_batch;
  for (const Comparison& comparison : material.document.comparisons) {
    if (comparison.kind == "baseline" && comparison.a == winner.run->name && comparison.ci95 &&
        comparison.ci95->low > 0) {
      return Interval{even / comparison.ci95->high, even / comparison.ci95->low};
    }
  }
  return std::nullopt;
}

}  // namespace

Number speedup_of(const Run& run, const Group& group) {
  if (run.relative_speedup) {
    return run.relative_speedup;
  }
  const Run* const base = group.baseline();
  return base != nullptr && base->samples_per_second && *base->samples_per_second > 0 &&
                 run.samples_per_second
             ? Number(*run.samples_per_second / *base->samples_per_second)
             : std::nullopt;
}

std::string result_sentence(const Material& material) {
  const std::vector<Winner> winners = find_winners(material);
  std::vector<Winner> best;
  bool several_scalings = false;
  for (const Winner& winner : winners) {
    several_scalings |= winner.group->scaling != winners.front().group->scaling;
    const auto same = std::find_if(best.begin(), best.end(), [&](const Winner& other) {
      return other.group->model == winner.group->model;
    });
    if (same == best.end()) {
      best.push_back(winner);
    } else if (*winner.run->samples_per_second > *same->run->samples_per_second) {
      *same = winner;
    }
  }
  if (best.empty()) {
    return material.document.runs.empty() ? "Nothing was measured."
                                          : "No configuration has a speed: see the errors below.";
  }
  if (std::all_of(best.begin(), best.end(),
                  [](const Winner& winner) { return winner.run->is_baseline(); })) {
    std::vector<std::string> models;
    models.reserve(best.size());
    for (const Winner& winner : best) {
      models.push_back("<b>" + escape(winner.group->model) + "</b>");
    }
    return "Nothing measured here handles more samples per second than one process (" +
           escape(best.front().run->program) + "), for " + joined(models) + ".";
  }
  std::string text;
  for (const Clause& clause : make_clauses(material, best, several_scalings)) {
    text += (text.empty() ? "Most samples per second: " : "; ") + clause.fastest + " for " +
            joined(clause.models);
  }
  return text + ".";
}

std::string winners_table(const Material& material) {
  Table table("The fastest of each workload", {{"workload", false},
                                               {"fastest", false},
                                               {"samples/s"},
                                               {"vs one process"},
                                               {"95 % interval"},
                                               {"efficiency"}});
  for (const Winner& winner : find_winners(material)) {
    const Run& run = *winner.run;
    const std::optional<Interval> interval =
        run.is_baseline() ? std::nullopt : speedup_interval(material, winner);
    const Number speedup = speedup_of(run, *winner.group);
    table.add({
        text_cell(winner.group->title()),
        text_cell(describe(material, run)),
        number_cell(run.samples_per_second, show_count(run.samples_per_second)),
        number_cell(speedup, show_factor(speedup)),
        number_cell(std::nullopt,
                    interval ? show(interval->low) + " – " + show(interval->high) : kNothing),
        number_cell(run.efficiency, show_efficiency(run.efficiency)),
    });
  }
  return table.html();
}

}  // namespace ddp::bench::html
