// common/parallel/agreement.hpp - ranks compare texts through the store. Else ranks with different
// settings could hang, abort or add up wrong numbers in a collective.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/parallel/process_group.hpp"

namespace ddp {

/// Collective. Checks that all ranks have the same `text`. @param topic for messages, "model"
/// @throws UsageError, on all ranks, naming the rank and the first line that differs
/// @throws TransientError naming the ranks that did not come within --timeout
void verify_same(const ProcessGroup& process_group, const std::string& topic,
                 const std::string& text);

/// Collective. Checks the texts of all ranks by `objection`, which rank 0 calls.
/// @param objection returns the problem of the texts, by rank; "" if there is none
void verify(const ProcessGroup& process_group, const std::string& topic, const std::string& text,
            const std::function<std::string(const std::vector<std::string>& texts)>& objection);

/// Collective. @return rank 0's text, on every rank
std::string share(const ProcessGroup& process_group, const std::string& topic,
                  const std::string& text);

/// Names the first pair of ranks that use the same CUDA device. Objection for verify().
/// @param devices UUIDs by rank; "" if unknown
std::string shared_device(const std::vector<std::string>& devices);

}  // namespace ddp
