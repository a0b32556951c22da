#include "bench/launchers.hpp"
#include "bench/report.hpp"

#include <fmt/ranges.h>

#include <ranges>

namespace ddp::bench {
namespace {

using Texts = std::vector<std::string>;
using Comparisons = std::vector<const Comparison*>;

/// "1.85x".
std::string times(double ratio) {
  const int decimals = ratio < 0.0995 ? 3 : ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}x", ratio, decimals);
}

/// Ratio, with a star if it is not significant.
std::string starred(const Comparison& comparison) {
  return times(*comparison.ratio) + (comparison.significant ? "" : "*");
}

/// " over shm", " with 2 threads", " on 2 replicas"; nothing for one thread.
std::string manner(const Run& run) {
  return run.backend != "none" ? " over " + run.backend
         : run.threads > 1     ? fmt::format(" with {} threads", run.threads)
         : run.world_size > 1  ? fmt::format(" on {} replicas", run.world_size)
                               : "";
}

/// "2 ranks over shm".
std::string ranks_of(const Run& run) {
  return fmt::format("{} rank{}{}", run.world_size, run.world_size == 1 ? "" : "s", manner(run));
}

/// "04_ddp_launcher under mpirun on 2 ranks over shm".
std::string label(const Run& run) {
  const bool has_launcher = find_launcher(run.launcher).starts == LaunchKind::kLauncher;
  return run.program() + (has_launcher ? " under " + run.launcher : "") +
         (run.backend != "none" ? " on " + ranks_of(run) : manner(run));
}

/// Collects the sentences. Each sentence is a list with a part for each workload.
class Sentences {
 public:
  explicit Sentences(const Report& report) : report_(report), workloads_(workloads(report)) {}

  std::vector<Sentence> all() {
    write("fastest", "Most samples/s of the stages: {}.", &Sentences::fastest);
    write("ranks", "Samples/s of ranks beside one process: {}.", &Sentences::ranks_beside_one);
    write("threads", "Ranks beside threads on the same cores: {}.",
          &Sentences::ranks_beside_threads);
    write("peers", "Frameworks, same cores and global batch (* not significant): {}.",
          &Sentences::peers);
    write("controls", "How far equal commands differed: {}; what differs less is not significant.",
          &Sentences::controls);
    return std::move(sentences_);
  }

 private:
  /// @param part_of makes the part of a workload; empty for nothing
  void write(const char* code, const char* text,
             std::string (Sentences::*part_of)(const Workload&)) {
    sentence_ = {.code = code, .runs = {}, .text = ""};
    Texts parts;
    for (const Workload& runs : workloads_) {
      if (const std::string part = (this->*part_of)(runs); !part.empty()) {
        const Run& any = *runs.front();
        parts.push_back(
            fmt::format("on {}{} {}", any.model, any.scaling == "weak" ? "" : " strong", part));
      }
    }
    if (!parts.empty()) {
      sentence_.text = fmt::format(fmt::runtime(text), fmt::join(parts, "; "));
      sentences_.push_back(std::move(sentence_));
    }
  }

  void mention(const Run& run) {
    if (std::ranges::find(sentence_.runs, run.name) == sentence_.runs.end()) {
      sentence_.runs.push_back(run.name);
    }
  }

  const Run& a_of(const Comparison& comparison) const { return *report_.find(comparison.a); }
  const Run& b_of(const Comparison& comparison) const { return *report_.find(comparison.b); }

  Comparisons comparisons_of(const char* kind, const Workload& runs) const {
    Comparisons found;
    for (const Comparison& comparison : report_.comparisons) {
      if (comparison.kind == kind && same_work(a_of(comparison), *runs.front())) {
        found.push_back(&comparison);
      }
    }
    return found;
  }

  std::string fastest(const Workload& runs) {
    const Run* const best = fastest_stage(runs);
    if (best == nullptr) {
      return "nothing could be measured";
    }
    mention(*best);
    Comparisons others = comparisons_of("best", runs);
    std::erase_if(others, [](const Comparison* other) { return other->significant; });
    std::ranges::sort(others, {}, &Comparison::ratio);  // the closest first
    Texts names;
    for (const Comparison* other : others) {
      mention(b_of(*other));
      names.push_back(label(b_of(*other)));
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

  std::string ranks_beside_one(const Workload& runs) {
    std::map<int, std::string> said;  // by world size
    for (const Comparison* baseline : comparisons_of("baseline", runs)) {
      const Run& run = a_of(*baseline);
      const Run* const fastest = fastest_stage(runs, [&](const Run& other) {
        return other.is_distributed() && other.world_size == run.world_size;
      });
      if (&run == fastest && run.world_size > 1) {
        mention(run);
        const char* const text = !baseline->significant ? "whether {} help cannot be told ({})"
                                 : *baseline->ratio > 1 ? "{} help ({})"
                                                        : "{} do not help ({})";
        said[run.world_size] =
            fmt::format(fmt::runtime(text), ranks_of(run), times(*baseline->ratio));
      }
    }
    return fmt::format("{}", fmt::join(std::views::values(said), ", "));
  }

  std::string ranks_beside_threads(const Workload& runs) {
    Texts said;
    for (const Comparison* comparison : comparisons_of("threads", runs)) {
      const double ratio = *comparison->ratio;
      const std::string of_ranks = ranks_of(a_of(*comparison));
      const std::string of_threads = "one process" + manner(b_of(*comparison));
      mention(a_of(*comparison));
      mention(b_of(*comparison));
      said.push_back(
          !comparison->significant ? fmt::format("whether {} beat {} cannot be told ({})", of_ranks,
                                                 of_threads, times(ratio))
          : ratio > 1
              ? fmt::format("{} are {} as fast as {}", of_ranks, times(ratio), of_threads)
              : fmt::format("{} is {} as fast as {}", of_threads, times(1 / ratio), of_ranks));
    }
    return fmt::format("{}", fmt::join(said, ", "));
  }

  std::string peers(const Workload& runs) {
    const Comparisons comparisons = comparisons_of("peer", runs);
    std::vector<const Run*> peers;  // the best of each framework, in the report's order
    for (const Comparison* comparison : comparisons) {
      const Run& peer = b_of(*comparison);
      const auto known = std::ranges::find(peers, peer.stage, &Run::stage);
      if (known == peers.end()) {
        peers.push_back(&peer);
      } else if (*peer.samples_per_second > *(*known)->samples_per_second) {
        *known = &peer;
      }
    }
    Texts said;
    std::string ours;
    for (const Run* peer : peers) {
      Comparisons own = comparisons;
      std::erase_if(own, [&](const Comparison* other) { return other->b != peer->name; });
      const Comparison& first = *own.front();  // our fastest; own.back() is over the same transport
      mention(a_of(first));
      mention(*peer);
      ours = a_of(first).program() + manner(a_of(first));
      std::string text = said.empty() ? " as fast as " : " as ";
      text = starred(first) + text + peer->program() + manner(*peer);
      if (own.size() > 1) {
        const Comparison& same = *own.back();
        mention(a_of(same));
        text += fmt::format(" (both {}: {})",
                            peer->backend == "none" ? "in one process" : "over " + peer->backend,
                            starred(same));
      }
      said.push_back(text);
    }
    return said.empty() ? "" : fmt::format("{} is {}", ours, fmt::join(said, ", "));
  }

  std::string controls(const Workload& runs) {
    const auto percent = [&](bool several) {
      std::optional<double> factor;
      for (const Run* run : runs) {
        if ((run->cores() > 1) == several) {
          factor = control_factor(report_, *run);
        }
      }
      return factor ? fmt::format("{:.1f} %", 100 * (*factor - 1)) : "unknown";
    };
    for (const Comparison* control : comparisons_of("control", runs)) {
      mention(b_of(*control));
    }
    return fmt::format("{} with one core, {} with several", percent(false), percent(true));
  }

  const Report& report_;
  std::vector<Workload> workloads_;
  std::vector<Sentence> sentences_;
  Sentence sentence_;  ///< the current sentence
};

}  // namespace

void write_sentences(Report& report) {
  report.sentences = Sentences(report).all();
}

}  // namespace ddp::bench
