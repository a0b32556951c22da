#include "common/training/metrics_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"

namespace ddp {

MetricsFile::MetricsFile(std::string path)
    : path_(std::move(path)), file_(uninterrupted([this] {
        return open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      })) {
  struct stat status {};
  if (!file_.is_open() || fstat(file_.get(), &status) != 0) {
    fail();
  }
  is_regular_ = S_ISREG(status.st_mode);
}

void MetricsFile::keep_epochs(int64_t epochs_done) {
  if (!is_regular_) {
    return;
  }
  off_t kept_bytes = 0;
  if (epochs_done > 0) {
    std::ifstream in(path_);
    // A last line without newline may be half a line.
    for (std::string line; std::getline(in, line) && !in.eof();) {
      const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      const auto number = [&row](const char* name) {
        const auto found = row.is_object() ? row.find(name) : row.end();
        return found != row.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
      };
      if (number("epoch") < 0 || number("epoch") >= epochs_done || number("step") < 0) {
        break;
      }
      kept_bytes += static_cast<off_t>(line.size()) + 1;
      steps_ = number("step") + 1;
    }
  }
  if (ftruncate(file_.get(), kept_bytes) != 0) {
    fail();
  }
}

void MetricsFile::append_steps(int64_t epoch, const torch::Tensor& steps) {
  const auto rows = steps.accessor<double, 3>();
  std::string lines;
  for (int64_t step = 0; step < rows.size(1); ++step, ++steps_) {
    for (int64_t rank = 0; rank < rows.size(0); ++rank) {
      const auto row = rows[rank][step];  // end_ns, step_ms and loss of a Step
      // Numbers that are not finite become null.
      const nlohmann::ordered_json line = {
          {"rank", rank},      {"epoch", epoch},
          {"step", steps_},    {"end_ns", static_cast<int64_t>(row[0])},
          {"step_ms", row[1]}, {"loss", row[2]}};
      lines += line.dump() + '\n';
    }
  }
  append(lines);
}

void MetricsFile::append_summary(const nlohmann::ordered_json& summary) {
  append(nlohmann::ordered_json{{"summary", summary}}.dump() + '\n');
}

void MetricsFile::append(const std::string& lines) {
  size_t written = 0;
  while (written < lines.size()) {
    const ssize_t bytes = uninterrupted(
        [&] { return write(file_.get(), lines.data() + written, lines.size() - written); });
    if (bytes <= 0) {
      const int error = errno;
      if (is_regular_) {
        const off_t end = lseek(file_.get(), 0, SEEK_END);
        static_cast<void>(ftruncate(file_.get(), end - static_cast<off_t>(written)) == 0);
      }
      errno = error;
      fail();
    }
    written += static_cast<size_t>(bytes);
  }
}

void MetricsFile::fail() const {
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("--metrics: cannot write {} ({}), expected a writable file", path_,
                          std::strerror(errno)));
}

}  // namespace ddp
