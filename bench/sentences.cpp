#include "bench/launchers.hpp"
#include "bench/report.hpp"

#include <fmt/ranges.h>

#include <ranges>

namespace ddp::bench {
namespace {

using Texts = std::vector<std::string>;

/// Comparison of the report, with its runs.
struct Compared {
  const Run* a;
  const Run* b;
  double ratio;
  bool significant;
  std::string chance;  ///< why a ratio that looks certain may not be; empty: it does not look so
};

/// "1.85x".
std::string times(double ratio) {
  const int decimals = ratio < 0.0995 ? 3 : ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}x", ratio, decimals);
}

/// "4.7 %": how far a factor is from 1.
std::string percent(double factor) {
  const double share = 100 * (factor - 1);
  return fmt::format("{:.{}f} %", share, share < 9.95 ? 1 : 0);
}

/// Ratio, with a star if it is not significant.
std::string starred(const Compared& compared) {
  return times(compared.ratio) + (compared.significant ? "" : "*");
}

/// " over shm", " with 2 threads", " on 2 replicas"; nothing for one thread.
std::string manner(const Run& run) {
  return run.backend != "none" ? " over " + run.backend
         : run.threads > 1     ? fmt::format(" with {} threads", run.threads)
         : run.world_size > 1 && !run.is_distributed()
             ? fmt::format(" on {} replicas", run.world_size)
             : "";
}

/// "2 ranks over shm".
std::string ranks_of(const Run& run) {
  return fmt::format("{} rank{}{}", run.world_size, run.world_size == 1 ? "" : "s", manner(run));
}

/// "04_ddp_launcher under mpirun on 2 ranks over shm".
std::string label(const Run& run) {
  const bool has_launcher = find_starter(run.launcher).starts == LaunchKind::kLauncher;
  return run.program() + (has_launcher ? " under " + run.launcher : "") +
         (run.is_distributed() ? " on " + ranks_of(run) : manner(run));
}

/// A workload, of which a sentence says something.
struct Topic {
  const Report& report;
  const Workload& runs;
  Texts& mentioned;  ///< names of the sentence's runs

  void mention(const Run& run) const {
    if (!contains(mentioned, run.name)) {
      mentioned.push_back(run.name);
    }
  }

  std::vector<Compared> compared(const char* kind) const {
    std::vector<Compared> found;
    for (const Comparison& one : report.comparisons) {
      const Run* const a = report.find(one.a);
      if (one.kind == kind && same_work(*a, *runs.front())) {
        const std::string chance =
            one.may_be_chance()
                ? fmt::format(
                      "{} ({:.2f}-{:.2f}), but equal commands differed by {}: may be chance",
                      times(*one.ratio), one.ci95->low, one.ci95->high,
                      percent(*one.equal_commands))
                : "";
        found.push_back({a, report.find(one.b), *one.ratio, one.significant, chance});
      }
    }
    return found;
  }
};

// Each makes a sentence's part about a workload; empty for nothing.

std::string fastest(const Topic& topic) {
  const Run* const best = fastest_stage(topic.runs);
  if (best == nullptr) {
    return "nothing could be measured";
  }
  if (best->repetitions.size() < 2) {
    return "";
  }
  topic.mention(*best);
  std::vector<Compared> others = topic.compared("best");
  if (others.empty() && contenders(topic.runs).size() > 1) {
    return "";
  }
  std::erase_if(others, std::mem_fn(&Compared::significant));
  std::ranges::sort(others, {}, &Compared::ratio);  // the closest first
  Texts names;
  for (const Compared& other : others) {
    topic.mention(*other.b);
    names.push_back(label(*other.b));
  }
  if (names.empty()) {
    return label(*best);
  }
  if (names.size() > 2) {
    names = {names.front(), fmt::format("{} more", names.size() - 1)};
  }
  return fmt::format("{} (not significantly faster than {})", label(*best),
                     fmt::join(names, " or "));
}

std::string ranks_beside_one(const Topic& topic) {
  std::map<int, std::string> said;  // by world size
  for (const auto& [run, one, ratio, significant, chance] : topic.compared("baseline")) {
    const Run* const fastest_ranks =
        fastest_stage(topic.runs, [size = run->world_size](const Run& other) {
          return other.is_distributed() && other.world_size == size && has_autograd(other);
        });
    if (run == fastest_ranks && run->world_size > 1) {
      topic.mention(*run);
      const std::string ranks = ranks_of(*run);
      said[run->world_size] =
          !chance.empty() ? fmt::format("{} {}", ranks, chance)
          : !significant  ? fmt::format("whether {} help cannot be told ({})", ranks, times(ratio))
          : ratio > 1     ? fmt::format("{} help ({})", ranks, times(ratio))
                          : fmt::format("{} do not help ({})", ranks, times(ratio));
    }
  }
  return fmt::format("{}", fmt::join(std::views::values(said), ", "));
}

std::string ranks_beside_threads(const Topic& topic) {
  Texts said;
  for (const auto& [a, b, ratio, significant, chance] : topic.compared("threads")) {
    const std::string ranks = ranks_of(*a);
    const std::string threads = "one process" + manner(*b);
    topic.mention(*a);
    topic.mention(*b);
    said.push_back(
        !chance.empty() ? fmt::format("{} against {} {}", ranks, threads, chance)
        : !significant
            ? fmt::format("whether {} beat {} cannot be told ({})", ranks, threads, times(ratio))
        : ratio > 1 ? fmt::format("{} are {} as fast as {}", ranks, times(ratio), threads)
                    : fmt::format("{} is {} as fast as {}", threads, times(1 / ratio), ranks));
  }
  return fmt::format("{}", fmt::join(said, ", "));
}

std::string peers(const Topic& topic) {
  const std::vector<Compared> compared = topic.compared("peer");
  std::vector<const Run*> best;  // of each framework, in the report's order
  for (const Compared& one : compared) {
    const auto known = std::ranges::find(best, one.b->stage, &Run::stage);
    if (known == best.end()) {
      best.push_back(one.b);
    } else if (one.b->rate() > (*known)->rate()) {
      *known = one.b;
    }
  }
  Texts said;
  std::string ours;
  for (const Run* peer : best) {
    std::vector<Compared> own = compared;
    std::erase_if(own, [peer](const Compared& one) { return one.b != peer; });
    const Run& first = *own.front().a;  // our fastest; own.back() is over the same transport
    topic.mention(first);
    topic.mention(*peer);
    ours = first.program() + manner(first);
    std::string text = fmt::format("{} as {}{}{}", starred(own.front()),
                                   said.empty() ? "fast as " : "", peer->program(), manner(*peer));
    if (own.size() > 1) {
      topic.mention(*own.back().a);
      text += fmt::format(" (both {}: {})",
                          peer->backend == "none" ? "in one process" : "over " + peer->backend,
                          starred(own.back()));
    }
    said.push_back(text);
  }
  return said.empty() ? "" : fmt::format("{} is {}", ours, fmt::join(said, ", "));
}

std::string controls(const Topic& topic) {
  Texts said;
  for (const bool several : {false, true}) {
    std::optional<double> factor;
    for (const Run* run : topic.runs) {
      if ((run->cores() > 1) == several) {
        factor = control_factor(topic.report, *run);
      }
    }
    if (factor) {
      said.push_back(fmt::format("{} with {}", percent(*factor), several ? "several" : "one core"));
    }
  }
  for (const Compared& control : topic.compared("control")) {
    topic.mention(*control.b);
  }
  return fmt::format("{}", fmt::join(said, ", "));
}

/// Of a user's program: why nobody knows whether its ranks train as one process.
std::string unchecked(const Topic& topic) {
  for (const Run* run : topic.runs) {
    if (run->has_speed() && run->parity.unchecked) {
      topic.mention(*run);
      return *run->parity.unchecked;
    }
  }
  return "";
}

constexpr struct {
  const char* code;
  const char* text;
  std::string (*part)(const Topic& topic);
} kSentences[] = {
    {"fastest", "Fastest: {}.", fastest},
    {"ranks", "Ranks beside one process: {}.", ranks_beside_one},
    {"threads", "Ranks beside threads: {}.", ranks_beside_threads},
    {"peers", "Frameworks, same cores and batch (* not significant): {}.", peers},
    {"unchecked", "Nobody checked what was trained: {}.", unchecked},
    {"controls", "How far equal commands differed: {}; smaller differences may be chance.",
     controls},
};

}  // namespace

void write_sentences(Report& report) {
  report.sentences.clear();
  const std::vector<Workload> all = workloads(report);
  for (const auto& [code, text, part] : kSentences) {
    Sentence sentence = {.code = code, .runs = {}, .text = ""};
    Texts parts;
    for (const Workload& runs : all) {
      if (const std::string said = part({report, runs, sentence.runs}); !said.empty()) {
        const Run& any = *runs.front();
        parts.push_back(fmt::format("on {}{} {}", any.model,
                                    any.scaling == "weak" || any.command ? "" : " strong", said));
      }
    }
    if (!parts.empty()) {
      sentence.text = fmt::format(fmt::runtime(text), fmt::join(parts, ";\n"));
      report.sentences.push_back(sentence);
    }
  }
}

}  // namespace ddp::bench
