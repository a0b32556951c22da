#include "common/parallel/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/parallel/rendezvous.hpp"

namespace ddp {
namespace {

const std::string kSame = "same";

/// Key of the store that is new at each call, because texts of earlier exchanges are still there,
/// and the same on all ranks that call alike.
std::string exchange_key(const ProcessGroup& process_group, const std::string& topic) {
  return fmt::format(
      "{}/{}", topic,
      process_group.store()->add(fmt::format("{}/count/{}", topic, process_group.rank()), 1));
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

/// Compares the texts on rank 0, and all ranks end with its message: a rank that agrees with rank 0
/// must not wait for a rank that has left.
/// @return kSame, or exit code and message: the objection, or the ranks that gave no text
std::string compare(
    c10d::Store& store, const std::vector<std::string>& keys, const std::string& topic,
    const std::function<std::string(const std::vector<std::string>& texts)>& objection) {
  const auto refusal = [](ExitCode code, const std::string& what) {
    return fmt::format("{} {}", static_cast<int>(code), what);
  };
  try {
    wait_for_ranks(store, keys, "the comparison of " + topic, store.getTimeout());
  } catch (const TransientError& error) {
    return refusal(error.code(), error.what());
  }
  std::vector<std::string> texts;
  for (const std::string& key : keys) {
    texts.push_back(store.get_to_str(key));
  }
  const std::string found = objection(texts);
  return found.empty() ? kSame : refusal(ExitCode::kUsage, found);
}

/// Waits for rank 0's text. @throws TransientError naming rank 0 if it does not set `key` in time
std::string of_rank_0(c10d::Store& store, const std::string& key, const std::string& topic) {
  // Longer than rank 0 waits for another rank, so that its message comes first.
  constexpr std::chrono::seconds kLonger{5};
  if (!wait_patiently(store, {key}, store.getTimeout() + kLonger)) {
    throw TransientError(
        fmt::format("within {} s rank 0 did not tell the other ranks about {}, expected it to",
                    in_seconds(store.getTimeout()), topic));
  }
  return store.get_to_str(key);
}

}  // namespace

void verify_same(const ProcessGroup& process_group, const std::string& topic,
                 const std::string& text) {
  verify(process_group, topic, text, [&](const std::vector<std::string>& texts) -> std::string {
    const auto other = std::ranges::find_if(texts, [&](const auto& its) { return its != text; });
    if (other == texts.end()) {
      return "";
    }
    const auto [theirs, ours] = first_difference(*other, text);
    return fmt::format(R"({}: rank {} has "{}", rank 0 has "{}", expected the same)", topic,
                       other - texts.begin(), theirs, ours);
  });
}

void verify(const ProcessGroup& process_group, const std::string& topic, const std::string& text,
            const std::function<std::string(const std::vector<std::string>& texts)>& objection) {
  const int rank = process_group.rank();
  c10d::Store& store = *process_group.store();
  const std::string verdict = at_store("the comparison of " + topic, [&] {
    const std::string key = exchange_key(process_group, topic);
    const std::vector<std::string> keys = keys_of_ranks(key, process_group.world_size());
    store.set(keys[static_cast<size_t>(rank)], text);
    if (rank != 0) {
      return of_rank_0(store, key + "/verdict", topic);
    }
    const std::string found = compare(store, keys, topic, objection);
    store.set(key + "/verdict", found);
    return found;
  });
  if (verdict == kSame) {
    return;
  }
  let_others_read(store, topic, rank, process_group.world_size(), store.getTimeout());
  const std::string what = verdict.substr(verdict.find(' ') + 1);
  if (static_cast<ExitCode>(std::stoi(verdict)) == ExitCode::kUsage) {
    throw UsageError(what);
  }
  throw TransientError(what);
}

std::string share(const ProcessGroup& process_group, const std::string& topic,
                  const std::string& text) {
  return at_store("the exchange of the " + topic, [&] {
    const std::string key = exchange_key(process_group, topic);
    if (process_group.rank() != 0) {
      return of_rank_0(*process_group.store(), key, topic);
    }
    process_group.store()->set(key, text);
    return text;
  });
}

std::string shared_device(const std::vector<std::string>& devices) {
  for (size_t rank = 1; rank < devices.size(); ++rank) {
    const auto here = devices.begin() + static_cast<ptrdiff_t>(rank);
    const auto first = std::find(devices.begin(), here, *here);
    if (first != here && !here->empty()) {
      return fmt::format(
          "ranks {} and {} have one CUDA device, UUID {}, expected one for each: give each process "
          "all devices of its node, or one of its own (--gpus-per-task=1)",
          first - devices.begin(), rank, *here);
    }
  }
  return "";
}

}  // namespace ddp
