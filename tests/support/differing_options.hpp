// tests/support/differing_options.hpp - another value for any row of the table of options.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/launch/options.hpp"

namespace ddp::test {

/// Options of two command lines, the second with another value for `name`.
/// @throws std::runtime_error if none of the values that are tried changes the option's text
inline std::pair<Options, Options> differing_options(const std::string& name, int world_size) {
  const auto parse = [&](const std::string& more) {
    std::vector<std::string> arguments = {"a_stage", "--total-epochs=50", "--save-every=10"};
    if (name == "--memory-limit") {
      arguments.emplace_back("--batch-size=auto");
    }
    std::erase_if(arguments,
                  [&](const auto& one) { return !more.empty() && one.starts_with(name + "="); });
    if (!more.empty()) {
      arguments.push_back(more);
    }
    std::vector<const char*> argv;
    std::ranges::transform(arguments, std::back_inserter(argv), &std::string::c_str);
    Options options = parse_options(static_cast<int>(argv.size()), argv.data(), StartedBy::kProgram,
                                    {.graph = true, .step = true, .batch_finder = true});
    resolve_options(options, world_size);
    return options;
  };
  const auto text_of = [&](const Options& options) {
    return std::ranges::find(options.settings, name, &Setting::name)->text;
  };
  const Options usual = parse("");
  for (const char* const value :
       {"=lo", "=auto", "=24", "=30,1", "=cpu", "=gloo", "=adam", "=digits", ""}) {
    try {
      const Options other = parse(name + value);
      if (text_of(other) != text_of(usual)) {
        return {usual, other};
      }
    } catch (const UsageError&) {  // no value of this option
    }
  }
  throw std::runtime_error(fmt::format("no other value of {} is known, expected one here", name));
}

}  // namespace ddp::test
