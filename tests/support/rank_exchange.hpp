// tests/support/rank_exchange.hpp - how ranks that are threads, or children of one process, meet
// without a store.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/backends/shm/shm_kernels.hpp"

namespace ddp::test {

/// Memory that children inherit. Create it before they are forked.
class RankExchange {
 public:
  explicit RankExchange(int world_size) : world_size_(world_size) {
    void* const memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::runtime_error("no memory for the exchange");
    }
    board_ = new (memory) Board;
  }
  ~RankExchange() { munmap(board_, sizeof(Board)); }
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  /// For one rank. @throws std::runtime_error if the others do not come within 20 s
  Exchange of(int rank) {
    return [this, rank, round = size_t{0}](const std::string& mine) mutable {
      auto& texts = board_->texts.at(round);
      auto& arrived = board_->arrived.at(round);
      ++round;
      std::strncpy(texts[static_cast<size_t>(rank)].data(), mine.c_str(), kTextBytes - 1);
      ++arrived;
      for (int wait = 0; arrived < world_size_; ++wait) {
        if (wait > 20000) {
          throw std::runtime_error("the exchange lacks ranks");
        }
        usleep(1000);
      }
      std::vector<std::string> all;
      for (int r = 0; r < world_size_; ++r) {
        all.emplace_back(texts[static_cast<size_t>(r)].data());
      }
      return all;
    };
  }

 private:
  static constexpr size_t kTextBytes = 1024;
  struct Board {
    std::array<std::array<std::array<char, kTextBytes>, shm::kMaxRanks + 1>, 16> texts{};
    std::array<std::atomic<int>, 16> arrived{};
  };
  int world_size_;
  Board* board_;
};

}  // namespace ddp::test
