#include "simulator/drawing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp::sim {
namespace {

constexpr char kWaitingLetter = '.';
constexpr char kMostLetter = '~';

/// In the order in which they first appear.
std::vector<std::string> names_of(const Simulation& simulation) {
  std::vector<std::string> names;
  for (const RankRecord& rank : simulation.ranks) {
    for (const std::vector<Span>* spans : {&rank.compute, &rank.communication}) {
      for (const Span& span : *spans) {
        if (std::ranges::find(names, span.name) == names.end()) {
          names.push_back(span.name);
        }
      }
    }
  }
  return names;
}

/// A letter for each: one of its own where there is one left.
std::vector<char> letters_of(const std::vector<std::string>& names) {
  std::vector<char> letters;
  const auto is_free = [&](char letter) {
    return letter > ' ' && letter <= kMostLetter && letter != kWaitingLetter && letter != '_' &&
           std::ranges::find(letters, letter) == letters.end();
  };
  constexpr std::string_view kOthers =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz";
  for (const std::string& name : names) {
    const std::string candidates = name + std::string(kOthers);
    const auto found = std::ranges::find_if(candidates, is_free);
    letters.push_back(found == candidates.end() ? '#' : *found);
  }
  return letters;
}

/// @param columns of which each stands for an equal part of `end_us`
std::string lane(const std::vector<std::pair<Span, char>>& spans, double end_us, int columns) {
  std::string text(static_cast<std::size_t>(columns), ' ');
  for (int column = 0; column < columns; ++column) {
    const double begin = end_us * column / columns;
    const double end = end_us * (column + 1) / columns;
    double longest = 0;
    for (const auto& [span, letter] : spans) {
      const double inside = std::min(end, span.end_us) - std::max(begin, span.begin_us);
      // Rounding at a border between two columns is nothing to draw.
      if (inside > longest * (1 + 1e-9) && inside > 1e-9 * (end - begin)) {
        longest = inside;
        text[static_cast<std::size_t>(column)] = letter;
      }
    }
  }
  return text;
}

double end_of(const Simulation& simulation) {
  const double end_us = step_us.of(simulation);
  return end_us > 0 ? end_us : 1;
}

/// What a rank had at most in each column, as a bar.
std::string memory_lane(const RankRecord& rank, double end_us, int columns, double most) {
  constexpr std::array<const char*, 9> kBars = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string text;
  for (int column = 0; column < columns; ++column) {
    const double begin = end_us * column / columns;
    const double end = end_us * (column + 1) / columns;
    int64_t bytes = 0;
    for (const MemoryStep& step : rank.memory) {
      if (step.at_us <= begin) {
        bytes = step.bytes;
      } else if (step.at_us < end) {
        bytes = std::max(bytes, step.bytes);
      }
    }
    text += kBars.at(static_cast<std::size_t>(std::ceil(8 * static_cast<double>(bytes) / most)));
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr double kKib = 1024;
  if (bytes < kKib) {
    return fmt::format("{:.4g} bytes", bytes);
  }
  return bytes < kKib * kKib ? fmt::format("{:.1f} KiB", bytes / kKib)
                             : fmt::format("{:.1f} MiB", bytes / kKib / kKib);
}

std::string draw_text(const Simulation& simulation, int columns) {
  const double end_us = end_of(simulation);
  const double most = peak_bytes.of(simulation);
  const std::vector<std::string> names = names_of(simulation);
  const std::vector<char> letters = letters_of(names);
  const auto letter_of = [&](const std::string& name) {
    return letters[static_cast<std::size_t>(std::ranges::find(names, name) - names.begin())];
  };
  std::string text;
  for (std::size_t index = 0; index < simulation.ranks.size(); ++index) {
    const RankRecord& rank = simulation.ranks[index];
    std::vector<std::pair<Span, char>> computed;
    std::vector<std::pair<Span, char>> communicated;
    for (const Span& span : rank.compute) {
      computed.emplace_back(span, letter_of(span.name));
    }
    for (const Span& span : rank.waiting) {
      computed.emplace_back(span, kWaitingLetter);
    }
    for (const Span& span : rank.communication) {
      communicated.emplace_back(span, letter_of(span.name));
    }
    text += fmt::format("rank {:<4} compute       |{}|\n", index, lane(computed, end_us, columns));
    text += fmt::format("          communication |{}|\n", lane(communicated, end_us, columns));
    if (most > 0) {
      text += fmt::format("          memory        |{}| {} at most\n",
                          memory_lane(rank, end_us, columns, most),
                          bytes_text(static_cast<double>(rank.peak_bytes)));
    }
  }
  const std::string end = fmt::format("{:.1f} us", step_us.of(simulation));
  text += fmt::format("{:24}0{:>{}}\n", "", end, columns);
  std::vector<std::string> legend;
  for (std::size_t i = 0; i < names.size(); ++i) {
    legend.push_back(fmt::format("{} {}", letters[i], names[i]));
  }
  legend.push_back(fmt::format("{} waiting", kWaitingLetter));
  return text + fmt::format("{}\n", fmt::join(legend, ", "));
}

std::string draw_svg(const Simulation& simulation, const std::string& title) {
  // Each has a contrast of 3 and more to white and to GitHub's dark background.
  constexpr std::array<const char*, 8> kColors = {"#2f81f7", "#1a7f64", "#c4580a", "#9a6bd1",
                                                  "#b8860b", "#cf4a7d", "#5b8a1c", "#6e7781"};
  constexpr int kWidth = 760;
  constexpr int kLeft = 150;
  constexpr int kRight = 16;
  constexpr int kTop = 40;
  constexpr int kLane = 22;
  constexpr int kGap = 4;
  constexpr int kBetweenRanks = 12;
  constexpr int kTicks = 5;
  constexpr double kLetterWidth = 6.6;
  const double end_us = end_of(simulation);
  const double most = peak_bytes.of(simulation);
  const int lanes = most > 0 ? 3 : 2;
  const int rank_height = lanes * (kLane + kGap) + kBetweenRanks;
  const auto count = static_cast<int>(simulation.ranks.size());
  const int bottom = kTop + count * rank_height;
  const int height = bottom + 60;
  const double scale = (kWidth - kLeft - kRight) / end_us;
  const std::vector<std::string> names = names_of(simulation);
  const auto color_of = [&](const std::string& name) {
    const auto index = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
    return kColors.at(index % kColors.size());
  };
  const auto x = [&](double us) { return kLeft + us * scale; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n"
      "<title>{2}</title>\n"
      "<style>text{{fill:#6e7781}}.on{{fill:#fff}}.axis{{stroke:#8b949e}}.idle{{fill:#8b949e33}}"
      "</style>\n"
      "<text x=\"8\" y=\"22\" font-weight=\"bold\">{2}</text>\n",
      kWidth, height, escaped(title));
  const auto box = [&](const Span& span, int y, const std::string& fill) {
    const double width = (span.end_us - span.begin_us) * scale;
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" {}><title>{}: {:.1f} to {:.1f} "
        "us</title></rect>\n",
        x(span.begin_us), y, width, kLane, fill, escaped(span.name), span.begin_us, span.end_us);
    if (width > kLetterWidth * static_cast<double>(span.name.size()) + 4) {
      svg +=
          fmt::format("<text class=\"on\" x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                      x((span.begin_us + span.end_us) / 2), y + 15, escaped(span.name));
    }
  };
  for (int index = 0; index < count; ++index) {
    const RankRecord& rank = simulation.ranks[static_cast<std::size_t>(index)];
    int y = kTop + index * rank_height;
    const auto name_lane = [&](const std::string& name) {
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
                         y + 15, name);
    };
    svg +=
        fmt::format("<text x=\"8\" y=\"{}\" font-weight=\"bold\">rank {}</text>\n", y + 15, index);
    name_lane("compute");
    for (const Span& span : rank.compute) {
      box(span, y, fmt::format("fill=\"{}\"", color_of(span.name)));
    }
    for (const Span& span : rank.waiting) {
      box({span.begin_us, span.end_us, ""}, y, "class=\"idle\"");
    }
    y += kLane + kGap;
    name_lane("communication");
    for (const Span& span : rank.communication) {
      box(span, y, fmt::format("fill=\"{}\"", color_of(span.name)));
    }
    y += kLane + kGap;
    if (most > 0) {
      name_lane("memory");
      std::string path = fmt::format("M{:.2f} {}", x(0), y + kLane);
      const auto level = [&](int64_t bytes) {
        return y + kLane - kLane * static_cast<double>(bytes) / most;
      };
      for (const MemoryStep& step : rank.memory) {
        path += fmt::format(" H{:.2f} V{:.2f}", x(step.at_us), level(step.bytes));
      }
      path += fmt::format(" H{:.2f} V{} Z", x(rank.end_us), y + kLane);
      svg += fmt::format(
          "<path d=\"{}\" fill=\"#8b949e\" fill-opacity=\"0.6\"><title>{} at most</title></path>\n",
          path, bytes_text(static_cast<double>(rank.peak_bytes)));
    }
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{} {} H{}\"/>\n", kLeft, bottom, kWidth - kRight);
  for (int tick = 0; tick <= kTicks; ++tick) {
    const double us = step_us.of(simulation) * tick / kTicks;
    svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"{}\">{:.0f}{}</text>\n", x(us),
                       bottom + 16,
                       tick == 0        ? "start"
                       : tick == kTicks ? "end"
                                        : "middle",
                       us, tick == kTicks ? " us" : "");
  }
  double at = 8;
  for (const std::string& name : names) {
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{}\">{}</text>\n",
        at, bottom + 32, color_of(name), at + 16, bottom + 42, escaped(name));
    at += 28 + kLetterWidth * static_cast<double>(name.size());
  }
  return svg + fmt::format(
                   "<rect class=\"idle\" x=\"{0:.1f}\" y=\"{1}\" width=\"12\" height=\"12\"/>"
                   "<text x=\"{2:.1f}\" y=\"{3}\">waiting</text>\n</svg>\n",
                   at, bottom + 32, at + 16, bottom + 42);
}

}  // namespace ddp::sim
