#include "tools/submit/settings.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "common/base/parse.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::int64_t seconds_of(std::int64_t days, std::int64_t hours, std::int64_t minutes,
                        std::int64_t seconds) {
  return ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
}

std::string two_digits(std::int64_t number) {
  return (number < 10 ? "0" : "") + std::to_string(number);
}

}  // namespace

std::int64_t parse_time(const std::string& name, std::string_view text) {
  const auto refuse = [&](const std::string& hint) {
    throw UsageError(name + ": got " + quote(text) +
                     ", expected HH:MM:SS or DAYS-HH:MM:SS, e.g. 12:00:00" + hint);
  };
  const std::size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos;
  const std::string_view days = has_days ? text.substr(0, dash) : "0";
  std::vector<std::string_view> parts;
  for (std::string_view rest = has_days ? text.substr(dash + 1) : text;;) {
    const std::size_t colon = rest.find(':');
    parts.push_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(colon + 1);
  }
  if (parts.size() < 3 && std::all_of(parts.begin(), parts.end(), is_digits)) {
    refuse(parts.size() == 1 ? " (a number alone is minutes to Slurm, seconds to others)"
                             : " (Slurm reads this as MM:SS, others as HH:MM)");
  }
  constexpr std::size_t kMostDigits = 4;
  const bool formed = parts.size() == 3 && is_digits(days) && days.size() <= kMostDigits &&
                      is_digits(parts[0]) && parts[0].size() >= 2 &&
                      parts[0].size() <= kMostDigits && is_digits(parts[1]) &&
                      parts[1].size() == 2 && is_digits(parts[2]) && parts[2].size() == 2;
  if (!formed) {
    refuse("");
  }
  const auto number = [](std::string_view digits) {
    return static_cast<std::int64_t>(std::stoll(std::string(digits)));
  };
  if (number(parts[1]) > 59 || number(parts[2]) > 59 || (has_days && number(parts[0]) > 23)) {
    refuse(" (at most 59 minutes and seconds, and 23 hours after days)");
  }
  const std::int64_t seconds =
      seconds_of(number(days), number(parts[0]), number(parts[1]), number(parts[2]));
  if (seconds == 0) {
    refuse(" (not zero)");
  }
  return seconds;
}

std::string format_time(std::int64_t seconds) {
  const std::int64_t days = seconds / 86400;
  return (days > 0 ? std::to_string(days) + "-" : "") + two_digits(seconds / 3600 % 24) + ":" +
         two_digits(seconds / 60 % 60) + ":" + two_digits(seconds % 60);
}

void check_name(const std::string& name, const std::string& text, std::string_view others) {
  constexpr std::size_t kLongest = 256;
  const bool starts_well = !text.empty() && (is_plain(text.substr(0, 1), "_[(") || text[0] == '*');
  if (text.size() > kLongest || !starts_well || !is_plain(text, others)) {
    std::string allowed;
    for (const char c : others) {
      allowed += std::string(" ") + c;
    }
    throw UsageError(name + ": got " + quote_bytes(text) +
                     ", expected a name of letters, digits and" + allowed);
  }
}

void check_path(const std::string& name, const std::string& path) {
  check_text(name, path);
  if (path.front() == ' ' || path.front() == '\t' || path.back() == ' ' || path.back() == '\t') {
    throw UsageError(name + ": got " + quote_bytes(path) +
                     ", expected a path without blanks at its ends");
  }
  if (path.find('\t') != std::string::npos) {
    throw UsageError(name + ": got " + quote_bytes(path) + ", expected a path without tabs");
  }
  if (path.size() > 2000) {
    throw UsageError(name + ": got " + std::to_string(path.size()) +
                     " bytes, expected a path of at most 2000");
  }
}

void check_program(const std::string& name, const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    throw UsageError(name + ": got " + quote_bytes(path) + ", expected a program (" +
                     std::generic_category().message(errno) + ")");
  }
  if (!S_ISREG(status.st_mode)) {
    throw UsageError(name + ": got " + quote_bytes(path) + ", expected a program, not a " +
                     (S_ISDIR(status.st_mode) ? "folder" : "special file"));
  }
  // Not access(): root may execute anything that anybody may.
  if ((status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) == 0) {
    throw UsageError(name + ": got " + quote_bytes(path) +
                     ", expected a program, or a script with a #! line, that is executable "
                     "(chmod +x)");
  }
}

void check_settings(const Settings& settings) {
  const Resources& resources = settings.resources;
  if (settings.device == "cpu" && resources.gpus > 0) {
    throw UsageError("num_gpus: got " + std::to_string(resources.gpus) +
                     " with device cpu, expected 0: they would stand idle");
  }
  if (resources.gpu_memory_mb && resources.gpus == 0) {
    throw UsageError("memory_gpus: got " + std::to_string(*resources.gpu_memory_mb) +
                     " with num_gpus 0, expected at least one GPU");
  }
}

Settings read_settings(const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(file, error)) {
    throw UsageError(quote_path(file) + " is a folder, expected a settings file");
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw UsageError("cannot read " + quote_path(file) + ": " +
                     std::generic_category().message(errno) + ", expected a settings file");
  }
  std::string text;
  constexpr std::size_t kEnough = (std::size_t{1} << 20) + 1;  // what is longer is refused anyway
  text.resize(kEnough);
  stream.read(text.data(), static_cast<std::streamsize>(kEnough));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  const fs::path folder = fs::absolute(file, error).lexically_normal().parent_path();
  if (error) {
    throw UsageError("cannot find the folder of " + quote_path(file) + ": " + error.message());
  }
  return parse_settings(file, text, folder.string());
}

std::string read_out_dir(const std::string& file) {
  return read_settings(file).out_dir;
}

}  // namespace ddp::submit
