#include "bench/run/lines_of_code.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "bench/report/catalog.hpp"

namespace ddp::bench {

namespace fs = std::filesystem;

std::optional<std::int64_t> lines_of_code(const fs::path& source) {
  constexpr std::string_view kQuotes = "\"\"\"";
  std::ifstream file(source);
  if (!file) {
    return std::nullopt;
  }
  const bool python = source.extension() == ".py";
  const std::string comment = python ? "#" : "//";
  bool in_docstring = false;
  std::int64_t lines = 0;
  for (std::string text; std::getline(file, text);) {
    const std::string line = text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
    if (python && (in_docstring || line.starts_with(kQuotes))) {
      const std::size_t from = in_docstring ? 0 : kQuotes.size();
      in_docstring = line.find(kQuotes, from) == std::string::npos;
    } else if (!line.empty() && !line.starts_with(comment)) {
      ++lines;
    }
  }
  return lines;
}

void count_lines_of_code(const fs::path& peers_dir, Report& report) {
  for (Run& run : report.runs) {
    if (!run.is_peer()) {
      run.lines_of_code =
          lines_of_code(peers_dir / ".." / ".." / run.stage / (run.variant + ".cpp"));
      continue;
    }
    const PeerVariant* const peer = find_first(known_peers(), [&](const PeerVariant& known) {
      return known.peer == run.stage && known.variant == run.variant;
    });
    run.lines_of_code = peer == nullptr ? std::nullopt : lines_of_code(peers_dir / peer->source);
  }
}

}  // namespace ddp::bench
