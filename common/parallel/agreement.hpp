// common/parallel/agreement.hpp - ranks compare texts through the store, before any collective in
// which ranks with different ideas of the job could hang, abort or add up the wrong numbers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/parallel/process_group.hpp"

namespace ddp {

/// Collective. Compares `text` with the other ranks'. @param topic for messages, "model"
/// @throws UsageError, on all ranks, naming the rank and the first line that differs
/// @throws TransientError naming the ranks that did not come within --timeout
void verify_same(const ProcessGroup& process_group, const std::string& topic,
                 const std::string& text);

/// The same exchange with another question, which rank 0 answers for all.
/// @param objection to the ranks' texts, by rank; "" if there is none
void verify(const ProcessGroup& process_group, const std::string& topic, const std::string& text,
            const std::function<std::string(const std::vector<std::string>& texts)>& objection);

/// Collective. @return rank 0's text, on every rank
std::string share(const ProcessGroup& process_group, const std::string& topic,
                  const std::string& text);

/// The first pair of ranks that compute on one CUDA device, as an objection for verify().
/// @param devices UUIDs by rank; "" is unknown
std::string shared_device(const std::vector<std::string>& devices);

}  // namespace ddp
