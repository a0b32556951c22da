// Exchange of texts between ranks that share only a store.
#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "common/base/exit_codes.hpp"
#include "common/meet/board.hpp"
#include "tests/support/catch.hpp"

using ddp::Board;
using std::chrono::milliseconds;

TEST_CASE("ranks that do not come are named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Board board(store, 0, 3, milliseconds(300));
  CHECK_THROWS_MATCHES(
      board.gather("shm", "here", "the start of --backend shm"), ddp::TransientError,
      Catch::Matchers::Message(
          "within 0.3 s the start of --backend shm lacks rank 1, 2 of world size 3, expected all "
          "of them"));
  CHECK_THROWS_WITH(Board(store, 0, 40, milliseconds(50)).gather("shm", "here"),
                    Catch::Matchers::ContainsSubstring("15, 16, ... of world size 40"));
  board.leave("late");
  CHECK(board.missing("late") == std::vector<int>{1, 2});
}

TEST_CASE("every round of a topic has its own texts, and empty ones are texts") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto talk = [&store](int rank) {
    Board board(store, rank, 2, std::chrono::seconds(30));
    const std::string own = rank == 0 ? "" : "two\nlines\n";
    std::vector<std::vector<std::string>> rounds;
    rounds.push_back(board.gather("topic", own));
    rounds.push_back({board.from_rank_0("topic", own + "first")});
    rounds.push_back(board.gather("topic", own + "again"));
    return rounds;
  };
  auto other = std::async(std::launch::async, talk, 1);
  const std::vector<std::vector<std::string>> expected = {
      {"", "two\nlines\n"}, {"first"}, {"again", "two\nlines\nagain"}};
  CHECK(talk(0) == expected);
  CHECK(other.get() == expected);
}

TEST_CASE("the rank that serves the store goes last") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto board_of = [&store](int rank) {
    return Board(store, rank, 2, std::chrono::seconds(30));
  };
  auto first = std::async(std::launch::async, [&] { board_of(0).wait_for_readers("settings"); });
  CHECK(first.wait_for(milliseconds(50)) == std::future_status::timeout);
  board_of(1).wait_for_readers("settings");
  first.get();
  Board(store, 0, 2, milliseconds(50)).wait_for_readers("other");  // a killed rank reads nothing
}
