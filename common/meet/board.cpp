#include "common/meet/board.hpp"

#include <fmt/ranges.h>

#include "common/base/patience.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp {
namespace {

/// Waits for all keys. @return false if one is not there within `patience`
/// @throws c10::DistNetworkError if the connection to the store breaks
bool wait_patiently(c10d::Store& store, const std::vector<std::string>& keys,
                    std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLook(500);
  for (Patience patience(limit);;) {
    try {
      store.wait(keys, std::min(limit, kLook));
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

/// First line in which two texts differ: {ours, theirs}.
std::pair<std::string, std::string> first_difference(const std::string& ours,
                                                     const std::string& theirs) {
  const auto differs = std::ranges::mismatch(ours, theirs).in1;
  const size_t begin = std::string(ours.begin(), differs).rfind('\n') + 1;  // npos + 1 is 0
  const auto line = [begin](const std::string& text) {
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  return {line(ours), line(theirs)};
}

}  // namespace

std::string Board::next(const std::string& topic) {
  return fmt::format("{}/{}", topic, rounds_[topic]++);
}

std::string Board::key(const std::string& prefix, int rank) const {
  return fmt::format("{}/{}", prefix, rank);
}

// With an end, because stores take an empty text for none.
void Board::put(const std::string& key, const std::string& text) {
  store_->set(key, text + "\n");
}

std::string Board::take(const std::string& key) const {
  std::string text = store_->get_to_str(key);
  text.pop_back();
  return text;
}

std::vector<std::string> Board::texts_of_ranks(const std::string& prefix,
                                               const std::string& what) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank) {
    keys.push_back(key(prefix, rank));
  }
  if (!wait_patiently(*store_, keys, patience_)) {
    constexpr size_t kMostNames = 16;
    std::vector<std::string> names;
    for (const int rank : missing(prefix)) {
      if (names.size() <= kMostNames) {
        names.push_back(names.size() < kMostNames ? std::to_string(rank) : "...");
      }
    }
    throw TransientError(
        fmt::format("within {} s {} lacks rank {} of world size {}, expected all of them",
                    in_seconds(patience_), what, fmt::join(names, ", "), world_size_));
  }
  std::vector<std::string> texts;
  std::ranges::transform(keys, std::back_inserter(texts),
                         [this](const std::string& key) { return take(key); });
  return texts;
}

std::string Board::wait_for_rank_0(const std::string& key, const std::string& topic) const {
  // Longer than rank 0 waits for another rank, so that its message comes first.
  constexpr std::chrono::seconds kLonger{5};
  if (!wait_patiently(*store_, {key}, patience_ + kLonger)) {
    throw TransientError(
        fmt::format("within {} s rank 0 did not tell the other ranks about {}, expected it to",
                    in_seconds(patience_), topic));
  }
  return take(key);
}

std::vector<std::string> Board::gather(const std::string& topic, const std::string& text,
                                       const std::string& what) {
  const std::string& event = what.empty() ? topic : what;
  return at_store(event, [&] {
    const std::string prefix = next(topic);
    put(key(prefix, rank_), text);
    return texts_of_ranks(prefix, event);
  });
}

void Board::same(const std::string& topic, const std::string& text) {
  check(topic, text, [&](const std::vector<std::string>& texts) -> std::string {
    const auto other = std::ranges::find_if(texts, [&](const auto& its) { return its != text; });
    if (other == texts.end()) {
      return "";
    }
    const auto [theirs, ours] = first_difference(*other, text);
    return fmt::format(R"({}: rank {} has "{}", rank 0 has "{}", expected the same)", topic,
                       other - texts.begin(), theirs, ours);
  });
}

/// @return "", or exit code and message: the objection, or the ranks that gave no text
std::string Board::verdict_on(const std::string& prefix, const std::string& topic,
                              const Objection& objection) const {
  const auto refusal = [](ExitCode code, const std::string& what) {
    return fmt::format("{} {}", static_cast<int>(code), what);
  };
  try {
    const std::string found = objection(texts_of_ranks(prefix, "the comparison of " + topic));
    return found.empty() ? "" : refusal(ExitCode::kUsage, found);
  } catch (const TransientError& error) {
    return refusal(error.code(), error.what());
  }
}

// Rank 0 compares, and all ranks end with its message: a rank that agrees with rank 0 must not wait
// for a rank that has left.
void Board::check(const std::string& topic, const std::string& text, const Objection& objection) {
  const std::string prefix = next(topic);
  const std::string verdict = at_store("the comparison of " + topic, [&] {
    put(key(prefix, rank_), text);
    if (rank_ != 0) {
      return wait_for_rank_0(prefix + "/verdict", topic);
    }
    const std::string found = verdict_on(prefix, topic, objection);
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
      return wait_for_rank_0(key(prefix, 0), topic);
    }
    put(key(prefix, 0), text);
    return text;
  });
}

void Board::wait_for_readers(const std::string& topic) {
  constexpr std::chrono::milliseconds kPatience{10000};
  const std::string prefix = topic + "/read";
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank) {
    keys.push_back(key(prefix, rank));
  }
  try {
    leave(prefix);
    wait_patiently(*store_, keys, std::min(patience_, kPatience));
  } catch (const c10::Error&) {
    // A rank that was killed meanwhile reads nothing. Or the server has left, when all had read.
  }
}

void Board::leave(const std::string& topic) {
  put(key(topic, rank_), "");
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
