// common/parallel/signs_of_life.hpp - the ranks wait at the store for what rank 0 does alone, which
// may take longer than --timeout.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "common/parallel/process_group.hpp"

namespace ddp {

/// Tells the other ranks that rank 0 lives, several times per --timeout, as long as the object
/// does.
class SignsOfLife {
 public:
  /// @param process_group none: nobody waits
  /// @param key of the store, which rank 0 sets when it is done
  /// @param sign the key of its signs of life, of which there need be only one
  SignsOfLife(const ProcessGroup* process_group, const std::string& key, const std::string& sign);

 private:
  std::jthread thread_;
};

/// What rank 0 sets `key` to when it is done.
/// @param sign as above
/// @param activity "writes the snapshot"
/// @param lost_rank such as ProcessGroup's: a run that has lost any rank is over
/// @throws Error (1) if a rank is lost, if rank 0 gave no sign of life for --timeout (for some
/// seconds, if this rank was asked to stop), or if the store is gone
std::string wait_for_rank_0(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key,
                            const std::string& sign, const std::string& activity,
                            const std::function<std::string()>& lost_rank);
/// The same at the group's store, with its lost_rank().
std::string wait_for_rank_0(const ProcessGroup& process_group, const std::string& key,
                            const std::string& sign, const std::string& activity);

/// Every rank is about to end because rank 0 failed, which alone says why. Then it tells the others
/// by `key`, who leave without a word; and they let it end first, since a launcher ends all with
/// the first one, and takes that one's code and reason.
void part_after_failure(const ProcessGroup& process_group, const std::string& key);

}  // namespace ddp
