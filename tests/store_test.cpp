// Where ranks meet, and who cannot come there.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "common/backends/file_store.hpp"
#include "common/backends/sealed_store.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/private_file.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"

namespace {

using ddp::FileDescriptor;
using ddp::test::contains;
using std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;

const std::string kKey = "00112233445566778899aabbccddeeff";
const std::string kOtherKey = "00112233445566778899aabbccddeefe";

Store file_store(const FileDescriptor& file, milliseconds timeout = std::chrono::minutes(1)) {
  return ddp::make_file_store(file.get(), timeout);
}

/// What `action` throws.
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ddp::Error& error) {
    return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
  }
  return "(nothing)";
}

/// What every store of c10d does.
void check_store(c10d::Store& store, c10d::Store& other) {
  store.set("a", "1");
  CHECK(other.get_to_str("a") == "1");
  other.set("a", "2");
  CHECK(store.get_to_str("a") == "2");
  store.set("empty", "");
  CHECK(other.get_to_str("empty").empty());
  store.set("bytes", std::vector<uint8_t>{0, 255, 10});
  CHECK(other.get("bytes") == std::vector<uint8_t>{0, 255, 10});

  CHECK(store.check({"a", "bytes"}));
  CHECK_FALSE(store.check({"a", "b"}));
  CHECK(store.add("sum", 5) == 5);
  CHECK(other.add("sum", -7) == -2);
  CHECK(store.add("sum", 0) == -2);
  CHECK(store.get_to_str("sum") == "-2");

  CHECK(store.compareSet("new", "", "x") == "x");
  CHECK(other.compareSet("new", "", "y") == "x");
  CHECK(other.compareSet("new", "x", "y") == "y");
  CHECK(store.get_to_str("new") == "y");
  CHECK(store.compareSet("absent", "x", "y") == "x");
  CHECK_FALSE(store.check({"absent"}));

  store.deleteKey("a");
  CHECK_FALSE(other.check({"a"}));

  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(30));
    other.set("late", "here");
  });
  CHECK(store.get_to_str("late") == "here");
  late.join();
  CHECK_THROWS_AS(store.wait({"bytes", "never"}, milliseconds(20)), c10::DistStoreError);

  const Store clone = store.clone();
  clone->set("by clone", "1");
  CHECK(other.get_to_str("by clone") == "1");
}

}  // namespace

TEST_CASE("a store in a file without a name") {
  const FileDescriptor file(ddp::create_nameless_file());
  check_store(*file_store(file), *file_store(file));
  // A later group of the same ranks finds the earlier one's entries, under another prefix.
  CHECK(file_store(file)->get_to_str("by clone") == "1");
  file_store(file).reset();
  CHECK(file_store(file)->check({"bytes"}));
}

TEST_CASE("a wait in a file store ends by its own timeout, and get() by the store's") {
  const FileDescriptor file(ddp::create_nameless_file());
  const Store store = file_store(file, milliseconds(20));
  CHECK_THROWS_AS(store->get("never"), c10::DistStoreError);
  CHECK_THROWS_AS(store->wait({"never"}), c10::DistStoreError);
  std::string message;
  try {
    store->wait({"never"}, milliseconds(7));
  } catch (const c10::DistStoreError& error) {
    message = error.what_without_backtrace();
  }
  CHECK(contains(message, "7ms, keys: /never"));
}

TEST_CASE("many threads add to a file store") {
  const FileDescriptor file(ddp::create_nameless_file());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&file] {
      const Store store = file_store(file);
      for (int j = 0; j < 50; ++j) {
        store->add("sum", 1);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(file_store(file)->add("sum", 0) == 400);
}

TEST_CASE("a sealed store is a store for those who have the key") {
  const auto inner = c10::make_intrusive<c10d::HashStore>();
  check_store(*ddp::seal_store(inner, kKey), *ddp::seal_store(inner, kKey));
  const FileDescriptor file(ddp::create_nameless_file());
  check_store(*ddp::seal_store(file_store(file), kKey), *ddp::seal_store(file_store(file), kKey));
}

TEST_CASE("who lacks the key of a sealed store finds nothing, reads nothing, and writes nothing") {
  const auto inner = c10::make_intrusive<c10d::HashStore>();
  const Store store = ddp::seal_store(inner, kKey);
  store->set("settings", "--lr 0.01 --lr 0.01 --lr 0.01");
  store->set("other", "elsewhere");
  store->add("processes", 1);

  CHECK_FALSE(ddp::seal_store(inner, kOtherKey)->check({"settings"}));
  const std::vector<std::string> names = inner->listKeys();
  REQUIRE(names.size() == 3);
  for (const std::string& name : names) {
    const std::string value = inner->get_to_str(name);
    CHECK(name.size() == 64);
    CHECK_FALSE(contains(name + value, "settings"));
    CHECK_FALSE(contains(value, "--lr"));
    CHECK_FALSE(contains(value, "elsewhere"));
  }
  const std::string refusal = "was not written by a rank of this job, expected one sealed with its";
  const auto name_of = [&](const std::string& key) {
    // The one that goes when the key is deleted.
    const auto value_of_key = store->get(key);
    for (const std::string& name : inner->listKeys()) {
      const auto box = inner->get(name);
      inner->deleteKey(name);
      const bool found = !store->check({key});
      inner->set(name, box);
      if (found) {
        return name;
      }
    }
    return std::string();
  };
  const std::string settings = name_of("settings");
  const auto genuine = inner->get(settings);
  SECTION("a value of his own") {
    for (const std::vector<uint8_t>& forged :
         {std::vector<uint8_t>(), std::vector<uint8_t>(200, 'x')}) {
      inner->set(settings, forged);
      CHECK(contains(message_of([&] { store->get("settings"); }),
                     "1: the store's entry settings " + refusal));
    }
  }
  SECTION("a changed one") {
    for (size_t byte = 0; byte < genuine.size(); ++byte) {
      auto changed = genuine;
      changed[byte] ^= 1;
      inner->set(settings, changed);
      CHECK(contains(message_of([&] { store->get("settings"); }), refusal));
    }
    inner->set(settings, genuine);
    CHECK(store->get_to_str("settings") == "--lr 0.01 --lr 0.01 --lr 0.01");
  }
  SECTION("one of another name") {
    inner->set(settings, inner->get(name_of("other")));
    CHECK(contains(message_of([&] { store->get("settings"); }), refusal));
  }
  SECTION("a number to count with") {
    inner->set(name_of("processes"), std::vector<uint8_t>{'7'});
    CHECK(contains(message_of([&] { store->add("processes", 1); }), refusal));
  }
}

TEST_CASE("equal values are sealed differently, and keys are random") {
  const auto inner = c10::make_intrusive<c10d::HashStore>();
  const Store store = ddp::seal_store(inner, kKey);
  store->set("a", "same");
  const std::string name = inner->listKeys().at(0);
  const auto first = inner->get(name);
  store->set("a", "same");
  CHECK(inner->get(name) != first);
  const std::string key = ddp::random_store_key();
  CHECK(key.size() == 32);
  CHECK(key.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(ddp::random_store_key() != key);
}

TEST_CASE("a meeting file is there as long as who made it") {
  const ddp::ScratchFolder scratch("ddp-store-test");
  const std::string path = ddp::meeting_file_path(scratch.path(), "job");
  const std::string folder = std::filesystem::path(path).parent_path();
  CHECK(folder == scratch.path() + "/ddp-store-" + std::to_string(geteuid()) + "-job");
  CHECK(ddp::open_meeting_file(path) == -1);
  auto made = std::make_unique<ddp::MeetingFile>(path);
  struct stat status {};
  REQUIRE(stat(folder.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0700);
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  CHECK(status.st_size == 0);
  CHECK(status.st_blocks * 512 >= 1 << 20);  // room for what is written
  const FileDescriptor opened(ddp::open_meeting_file(path));
  REQUIRE(opened.is_open());
  const Store store = ddp::make_file_store(made->get(), std::chrono::minutes(1));
  store->set("from", "rank 0");
  CHECK(file_store(opened)->get_to_str("from") == "rank 0");
  CHECK(message_of([&] { ddp::MeetingFile second(path); }) ==
        "75: " + path + " is in use, expected one rank 0 that makes it");
  CHECK(store->get_to_str("from") == "rank 0");

  made.reset();
  CHECK_FALSE(std::filesystem::exists(folder));
  CHECK(ddp::open_meeting_file(path) == -1);
  file_store(opened)->set("to", "rank 0");
  CHECK(store->get_to_str("to") == "rank 0");
}

TEST_CASE("what a killed rank 0 left is nobody's meeting file, and the next one takes it away") {
  const ddp::ScratchFolder scratch("ddp-store-test");
  const std::string path = ddp::meeting_file_path(scratch.path(), "job");
  const std::string other = ddp::meeting_file_path(scratch.path(), "other");
  for (const std::string& left : {path, other}) {
    const pid_t child = fork();
    if (child == 0) {
      const ddp::MeetingFile made(left);
      ddp::make_file_store(made.get(), std::chrono::minutes(1))->set("from", "a killed one");
      kill(getpid(), SIGKILL);
    }
    int wait_status = 0;
    REQUIRE(waitpid(child, &wait_status, 0) == child);
    REQUIRE(WIFSIGNALED(wait_status));
    REQUIRE(std::filesystem::exists(left));
    CHECK(ddp::open_meeting_file(left) == -1);
  }
  // `other` found what the first had left, too.
  CHECK_FALSE(std::filesystem::exists(path));
  const ddp::MeetingFile next(path);
  CHECK_FALSE(std::filesystem::exists(std::filesystem::path(other).parent_path()));
  const FileDescriptor found(ddp::open_meeting_file(path));
  REQUIRE(found.is_open());
  CHECK_FALSE(file_store(found)->check({"from"}));
  const ddp::MeetingFile beside(other);  // what is in use is no leftover
  CHECK(FileDescriptor(ddp::open_meeting_file(path)).is_open());
}

TEST_CASE("a folder that others can enter, or a link, is no place to meet") {
  const ddp::ScratchFolder scratch("ddp-store-test");
  const std::string path = ddp::meeting_file_path(scratch.path(), "job");
  const std::string folder = std::filesystem::path(path).parent_path();
  const auto refused_with = [&path](const std::string& part) {
    for (const auto& action : std::vector<std::function<void()>>{
             [&path] { ddp::MeetingFile made(path); }, [&path] { ddp::open_meeting_file(path); }}) {
      const std::string message = message_of(action);
      INFO(message);
      CHECK(contains(message, "2: "));
      CHECK(contains(message, part));
      CHECK(contains(message, "expected a folder of user"));
    }
  };
  SECTION("a mode that lets others in") {
    std::filesystem::create_directory(folder);
    REQUIRE(chmod(folder.c_str(), 0711) == 0);
    refused_with("mode 711");
  }
  SECTION("a link to a folder of ours") {
    std::filesystem::create_directory(scratch.path() + "/elsewhere");
    REQUIRE(chmod((scratch.path() + "/elsewhere").c_str(), 0700) == 0);
    std::filesystem::create_symlink("elsewhere", folder);
    refused_with("cannot be opened as one");
  }
  SECTION("a file") {
    FileDescriptor(ddp::create_private_file(folder)).close();
    refused_with("cannot be opened as one");
  }
  if (geteuid() == 0) {
    SECTION("another user's") {
      std::filesystem::create_directory(folder);
      REQUIRE(chmod(folder.c_str(), 0700) == 0);
      REQUIRE(chown(folder.c_str(), 65534, 65534) == 0);
      refused_with("one of user 65534");
    }
  }
  CHECK(contains(message_of([] { ddp::MeetingFile made("/no/such/folder/store"); }),
                 "2: /no/such/folder: cannot be made (No such file or directory), expected"));
}

TEST_CASE("a private file replaces nothing and follows no link") {
  const ddp::ScratchFolder scratch("ddp-store-test");
  const std::string path = scratch.path() + "/file";
  const std::string link = scratch.path() + "/link";
  umask(0);
  const FileDescriptor file(ddp::create_private_file(path));
  umask(022);
  struct stat status {};
  REQUIRE(fstat(file.get(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  CHECK(contains(message_of([&] { ddp::create_private_file(path); }), "File exists"));
  std::filesystem::create_symlink(scratch.path() + "/victim", link);
  CHECK(contains(message_of([&] { ddp::create_private_file(link); }), "File exists"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/victim"));
}
