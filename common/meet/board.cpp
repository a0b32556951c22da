#include "common/meet/board.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/patience.hpp"

namespace ddp {

// With an end, because stores take an empty text for none.
void Board::put(const std::string& prefix, const std::string& text) {
  store_->set(key(prefix, rank_), text + "\n");
}

std::string Board::take(const std::string& prefix, int rank) const {
  std::string text = store_->get_to_str(key(prefix, rank));
  text.pop_back();
  return text;
}

/// Waits for the texts of the first `ranks` ranks. @return false if one is not there within `limit`
/// @throws c10::DistNetworkError if the connection to the store breaks
bool Board::wait_for_ranks(const std::string& prefix, int ranks,
                           std::chrono::milliseconds limit) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < ranks; ++rank) {
    keys.push_back(key(prefix, rank));
  }
  for (Patience patience(limit);;) {
    try {
      store_->wait(keys, std::min(limit, std::chrono::milliseconds(500)));
      return true;
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const c10::Error&) {
      if (patience.is_over()) {
        return false;
      }
    }
  }
}

std::vector<std::string> Board::texts_of_ranks(const std::string& prefix,
                                               const std::string& what) const {
  if (!wait_for_ranks(prefix, world_size_, patience_)) {
    constexpr size_t kMostNames = 16;
    std::vector<int> absent = missing(prefix);
    const char* const more = absent.size() > kMostNames ? ", ..." : "";
    absent.resize(std::min(absent.size(), kMostNames));
    throw TransientError(
        fmt::format("within {} s {} lacks rank {}{} of world size {}, expected all of them",
                    in_seconds(patience_), what, fmt::join(absent, ", "), more, world_size_));
  }
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_size_; ++rank) {
    texts.push_back(take(prefix, rank));
  }
  return texts;
}

std::string Board::wait_for_rank_0(const std::string& prefix, const std::string& topic) const {
  // Longer than rank 0 waits for another rank, so that its message comes first.
  if (!wait_for_ranks(prefix, 1, patience_ + std::chrono::seconds(5))) {
    throw TransientError(
        fmt::format("within {} s rank 0 did not tell the other ranks about {}, expected it to",
                    in_seconds(patience_), topic));
  }
  return take(prefix, 0);
}

std::vector<std::string> Board::gather(const std::string& topic, const std::string& text,
                                       const std::string& what) {
  const std::string& event = what.empty() ? topic : what;
  return at_store(event, [&] {
    const std::string prefix = next(topic);
    put(prefix, text);
    return texts_of_ranks(prefix, event);
  });
}

void Board::same(const std::string& topic, const std::string& text) {
  check(topic, text, [&](const std::vector<std::string>& texts) -> std::string {
    const auto other = std::ranges::find_if(texts, [&](const auto& its) { return its != text; });
    if (other == texts.end()) {
      return "";
    }
    const auto differs = std::ranges::mismatch(*other, text).in1;
    const size_t begin = std::string(other->begin(), differs).rfind('\n') + 1;  // npos + 1 is 0
    const auto line = [begin](const std::string& lines) {
      return lines.substr(begin, lines.find('\n', begin) - begin);
    };
    return fmt::format(R"({}: rank {} has "{}", rank 0 has "{}", expected the same)", topic,
                       other - texts.begin(), line(*other), line(text));
  });
}

// Rank 0 compares, and all ranks end with its message: a rank that agrees with rank 0 must not wait
// for a rank that has left. The verdict is "", or exit code and message.
void Board::check(const std::string& topic, const std::string& text, const Objection& objection) {
  const std::string event = "the comparison of " + topic;
  const std::string prefix = next(topic);
  const std::string verdict = at_store(event, [&] {
    put(prefix, text);
    if (rank_ != 0) {
      return wait_for_rank_0(prefix + "/verdict", topic);
    }
    std::string found;
    try {
      found = objection(texts_of_ranks(prefix, event));
      found = found.empty() ? "" : fmt::format("{} {}", static_cast<int>(ExitCode::kUsage), found);
    } catch (const TransientError& error) {
      found = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
    put(prefix + "/verdict", found);
    return found;
  });
  if (verdict.empty()) {
    return;
  }
  wait_for_readers(topic);
  const std::string what = verdict.substr(verdict.find(' ') + 1);
  if (static_cast<ExitCode>(std::stoi(verdict)) == ExitCode::kUsage) {
    throw UsageError(what);
  }
  throw TransientError(what);
}

std::string Board::from_rank_0(const std::string& topic, const std::string& text) {
  return at_store("the exchange of the " + topic, [&] {
    const std::string prefix = next(topic);
    if (rank_ != 0) {
      return wait_for_rank_0(prefix, topic);
    }
    put(prefix, text);
    return text;
  });
}

void Board::wait_for_readers(const std::string& topic) {
  const std::string prefix = topic + "/read";
  try {
    leave(prefix);
    wait_for_ranks(prefix, world_size_, std::min(patience_, std::chrono::milliseconds(10'000)));
  } catch (const c10::Error&) {
    // A rank that was killed meanwhile reads nothing. Or the server has left, when all had read.
  }
}

std::vector<int> Board::missing(const std::string& topic) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!store_->check({key(topic, rank)})) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

}  // namespace ddp
