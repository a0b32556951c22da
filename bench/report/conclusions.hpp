// bench/report/conclusions.hpp - sentences on what a reader should take from the numbers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// A question, and the code of the conclusions that answer it.
struct Question {
  std::string_view code;
  std::string_view text;
};

/// What a user asks, in the order in which it is answered; everything else follows these.
inline constexpr Question kQuestions[] = {
    {"fastest", "Which program?"},
    {"same_step", "Which launcher?"},
    {"ranks", "How many ranks help?"},
    {"bound",
     "What bounds a step: arithmetic, memory, communication, or overhead, which is all else?"},
    {"crossover", "From where on do ranks pay?"},
    {"time_to_accuracy", "How long to an accuracy?"},
    {"threads", "The same cores as threads of one process?"},
    {"peer", "Beside other frameworks?"},
};

/// What all conclusions are about that answer none of them.
inline constexpr std::string_view kTrust = "How far to trust this";

/// The questions that have an answer, in order, each with its texts; the last one is kTrust.
std::vector<std::pair<std::string, std::vector<std::string>>> by_question(
    const std::vector<Conclusion>& conclusions);

/// The answers to kQuestions, then how far the numbers can be trusted, then what was left out.
/// @param notes decisions that the reader should know
std::vector<Conclusion> conclude(const Report& report, const std::vector<std::string>& notes);

}  // namespace ddp::bench
