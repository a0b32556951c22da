#include "common/parallel/collective_log.hpp"

#include <fmt/format.h>

#include <string_view>

namespace ddp {
namespace {

/// What the paths of this project's files begin with, as the compiler names them.
std::string_view source_root() {
  constexpr std::string_view kHere = __FILE__;
  constexpr std::string_view kPath = "common/parallel/collective_log.cpp";
  return kHere.ends_with(kPath) ? kHere.substr(0, kHere.size() - kPath.size()) : "";
}

}  // namespace

std::string CallSite::text() const {
  std::string_view path = file;
  if (path.starts_with(source_root())) {
    path.remove_prefix(source_root().size());
  }
  return fmt::format(
      "{}{}",
      line == 0 ? fmt::format("called by {}", path) : fmt::format("called at {}:{}", path, line),
      bucket < 0 ? "" : fmt::format(", bucket {} of gradients", bucket));
}

void CollectiveLog::begin(const char* kind, const torch::Tensor& tensor,
                          const CallSite& site) noexcept {
  const uint64_t number = count_.load(std::memory_order_relaxed) + 1;
  entries_[number % entries_.size()] = {.kind = kind,
                                        .elements = tensor.numel(),
                                        .dtype = tensor.scalar_type(),
                                        .site = site,
                                        .work = nullptr};
  count_.store(number, std::memory_order_release);
}

void CollectiveLog::started(const c10d::Work* work) noexcept {
  entries_[count_.load(std::memory_order_relaxed) % entries_.size()].work = work;
}

std::string CollectiveLog::of(const c10d::Work& work) const {
  const uint64_t last = count_.load(std::memory_order_acquire);
  // From the newest, as an older one's memory may be in use again.
  for (uint64_t number = last; number > 0 && number + entries_.size() > last; --number) {
    if (entry(number).work == &work) {
      return text(number);
    }
  }
  return text(last);
}

std::string CollectiveLog::last() const {
  return text(count_.load(std::memory_order_acquire));
}

std::string CollectiveLog::last_call() const {
  const uint64_t number = count_.load(std::memory_order_acquire);
  return number == 0 ? "" : fmt::format("collective {}, {}", number, entry(number).site.text());
}

std::string CollectiveLog::text(uint64_t number) const {
  if (number == 0) {
    return "";
  }
  const Entry& one = entry(number);
  return fmt::format("{} of {} {} (collective {}), {}", one.kind, one.elements,
                     c10::getDtypeNames(one.dtype).first, number, one.site.text());
}

}  // namespace ddp
