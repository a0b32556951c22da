#include "tests/support/fuzzed_readers.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>

#include "bench/run/metrics.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/dataset.hpp"
#include "common/data/images/image_file.hpp"
#include "common/data/tensor_file.hpp"
#include "common/launch/launch_environment.hpp"
#include "tools/submit/settings.hpp"

namespace ddp::test {
namespace {

/// A file that is nowhere but in memory.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(memfd_create("fuzzed", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("cannot write a file in memory");
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void reads_or_refuses(const std::function<void()>& read) {
  constexpr size_t kMostMessage = 4096;  // what a line may quote is long, but not all of the input
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.empty() || message.size() > kMostMessage) {
      throw std::logic_error("a message of " + std::to_string(message.size()) + " bytes");
    }
  }
}

void is_one_line(const std::function<void()>& read) {
  try {
    read();
  } catch (const UsageError& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) {
      throw std::logic_error(std::string("more than one line: ") + error.what());
    }
    throw;
  }
}

void read_snapshot(const std::string& bytes) {
  for (const std::string& tried : {bytes, with_checksum(bytes)}) {
    const MemoryFile file(tried);
    reads_or_refuses([&] { read_tensor_file(file.path()); });
  }
}

/// As the dataset's first file, packed and plain.
void read_data(const std::string& dataset, const std::string& file, const std::string& bytes) {
  static const ScratchFolder folder("ddp-fuzz");
  Options options;
  options.data_dir = folder.path();
  options.dataset = dataset;
  for (const std::string ending : {"", ".gz"}) {
    const std::string path = folder.path() + "/" + file + ending;
    std::ofstream(path, std::ios::binary) << bytes;
    reads_or_refuses([&] { load_dataset(options); });
    unlink(path.c_str());
  }
}

void read_csv(const std::string& bytes) {
  read_data("digits", "digits.csv", bytes);
}

void read_idx(const std::string& bytes) {
  read_data("fashion-mnist", "train-images-idx3-ubyte", bytes);
}

/// As the user's own file with that ending.
void read_data_file(const std::string& ending, const std::string& bytes) {
  static const ScratchFolder folder("ddp-fuzz");
  Options options;
  options.dataset = folder.path() + "/fuzzed" + ending;
  std::ofstream(options.dataset, std::ios::binary | std::ios::trunc) << bytes;
  reads_or_refuses([&] {
    is_one_line([&] {
      const Dataset dataset = load_dataset(options);
      if (dataset.train.read().input.size(0) != dataset.train.size() ||
          dataset.test.read().target.size(0) != dataset.test.size()) {
        throw std::logic_error("samples that are not there");
      }
    });
  });
}

void read_table(const std::string& bytes) {
  read_data_file(".csv", bytes);
}

void read_tensors(const std::string& bytes) {
  read_data_file(".safetensors", bytes);
}

/// Either kind, and then as pixels of the size that it claims.
void read_image(const std::string& bytes) {
  constexpr size_t kMostBytes = size_t{1} << 24;
  reads_or_refuses([&] {
    is_one_line([&] {
      const ImageShape shape = image_shape("i", bytes);
      std::vector<uint8_t> pixels(std::min(shape.bytes(), kMostBytes));
      if (pixels.size() == shape.bytes()) {
        decode_image("i", bytes, shape, pixels.data());
      }
    });
  });
}

void read_settings_file(const std::string& bytes) {
  reads_or_refuses([&] { is_one_line([&] { submit::parse_settings("s.yaml", bytes, "/home"); }); });
}

void read_node_list(const std::string& bytes) {
  reads_or_refuses([&] { is_one_line([&] { expand_node_list(bytes); }); });
}

/// One variable a line.
void read_environment(const std::string& bytes) {
  std::map<std::string, std::string> variables;
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) {
      const std::string value = line.substr(equals + 1);
      variables[line.substr(0, equals)] = value.c_str();  // ends at a zero, as a real one
    }
  }
  const auto getenv = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  reads_or_refuses([&] {
    is_one_line([&] {
      const LaunchEnvironment environment = read_launch_environment({}, getenv);
      if (environment.rank < 0 || environment.rank >= environment.world_size ||
          environment.local_rank < 0 || environment.local_rank >= environment.local_world_size ||
          environment.local_world_size > environment.world_size) {
        throw std::logic_error("an impossible identity");
      }
      describe(environment, true);
      describe(environment, false);
    });
  });
}

void read_metrics_file(const std::string& bytes) {
  const MemoryFile file(bytes);
  reads_or_refuses([&] { compare_ranks(bench::read_metrics(file.path(), 2, /*one_host=*/true)); });
}

}  // namespace

std::string with_checksum(std::string bytes) {
  uint64_t header_bytes = 0;
  const std::string key = "\"xxh3_128\":\"";
  const std::string zeros(32, '0');
  if (bytes.size() < sizeof(header_bytes)) {
    return bytes;
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > bytes.size() - sizeof(header_bytes)) {
    return bytes;
  }
  const size_t end = sizeof(header_bytes) + header_bytes;
  const size_t found = bytes.find(key, sizeof(header_bytes));
  if (found == std::string::npos || found + key.size() + zeros.size() > end) {
    return bytes;
  }
  bytes.replace(found + key.size(), zeros.size(), zeros);
  const std::string hash = Hash().update(bytes.substr(sizeof(header_bytes))).hex();
  return bytes.replace(found + key.size(), zeros.size(), hash);
}

const std::vector<FuzzedReader>& fuzzed_readers() {
  static const std::vector<FuzzedReader> all = {
      {"snapshot", read_snapshot},
      {"csv", read_csv},
      {"idx", read_idx},
      {"table", read_table},
      {"tensors", read_tensors},
      {"image", read_image},
      {"settings", read_settings_file},
      {"node_list", read_node_list},
      {"environment", read_environment},
      {"metrics", read_metrics_file},
  };
  return all;
}

}  // namespace ddp::test
