#include "tools/submit/job_json.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "common/base/exit_codes.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json to_json(const Resources& resources) {
  ordered_json result = {{"nodes", resources.nodes}};
  const auto put = [&result](const char* key, const auto& value) {
    if (value) {
      result[key] = *value;
    }
  };
  const auto put_text = [&result](const char* key, const std::string& text) {
    if (!text.empty()) {
      result[key] = text;
    }
  };
  put("cpus", resources.cpus);
  put("memory_mb", resources.memory_mb);
  result["gpus"] = resources.gpus;
  put("gpu_memory_mb", resources.gpu_memory_mb);
  put("time_s", resources.time_s);
  put_text("account", resources.account);
  put_text("partition", resources.partition);
  put_text("constraint", resources.constraint);
  put("bid", resources.bid);
  if (!resources.transfer_files.empty()) {
    result["transfer_files"] = resources.transfer_files;
  }
  return result;
}

template <typename Number>
Number number(const json& object, const char* key, Number least,
              Number most = std::numeric_limits<Number>::max()) {
  const json& value = object.at(key);
  if (!value.is_number_integer() || value.get<std::int64_t>() < least ||
      value.get<std::int64_t>() > most) {
    throw UsageError(std::string(key) + ": got " + shown(value) + ", expected an integer from " +
                     std::to_string(least) + " to " + std::to_string(most));
  }
  return value.get<Number>();
}

template <typename Number>
std::optional<Number> optional_number(const json& object, const char* key, Number least) {
  return object.contains(key) ? std::optional<Number>(number<Number>(object, key, least))
                              : std::nullopt;
}

std::string optional_name(const json& object, const char* key, std::string_view others) {
  const std::string text = object.value(key, "");
  if (object.contains(key)) {
    check_name(key, text, others);
  }
  return text;
}

/// @param processes of each node
Resources resources_from_json(const json& object, int processes) {
  Resources resources;
  resources.nodes = number<int>(object, "nodes", 1, kMostNodes);
  resources.cpus = optional_number<int>(object, "cpus", processes);
  resources.memory_mb = optional_number<std::int64_t>(object, "memory_mb", 1);
  resources.gpus = number<int>(object, "gpus", 0, kMostGpus);
  resources.gpu_memory_mb = optional_number<std::int64_t>(object, "gpu_memory_mb", 1);
  resources.time_s = optional_number<std::int64_t>(object, "time_s", 1);
  resources.account = optional_name(object, "account", kAccountOthers);
  resources.partition = optional_name(object, "partition", kPartitionOthers);
  resources.constraint = optional_name(object, "constraint", kConstraintOthers);
  resources.bid = optional_number<std::int64_t>(object, "bid", 0);
  resources.transfer_files = object.value("transfer_files", std::vector<std::string>());
  for (const std::string& file : resources.transfer_files) {
    check_path("transfer_files", file);
  }
  return resources;
}

/// Below out_dir, whatever the file says.
std::string folder_from_json(const json& value) {
  const std::string folder = value.get<std::string>();
  check_path("folder", folder);
  const std::filesystem::path path = folder;
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end()) {
    throw UsageError("folder: got " + quote_bytes(folder) + ", expected one below out_dir");
  }
  return folder;
}

std::vector<std::string> command_from_json(const json& value) {
  const std::vector<std::string> command = value.get<std::vector<std::string>>();
  if (command.empty() || command.front().empty()) {
    throw UsageError("command: got " + shown(value) + ", expected a program and its arguments");
  }
  for (const std::string& argument : command) {
    check_argument("command", argument);
  }
  return command;
}

}  // namespace

std::string shown(const json& value) {
  constexpr std::size_t kMostBytes = 60;
  return value.dump(-1, ' ', true).substr(0, kMostBytes);
}

ordered_json to_json(const JobRequest& request) {
  return {{"job", request.index},
          {"name", request.name},
          {"folder", request.folder},
          {"scheduler", scheduler_name(request.scheduler)},
          {"command", request.command},
          {"processes_per_node", request.processes_per_node},
          {"several", request.several},
          {"single", request.single},
          {"resources", to_json(request.resources)}};
}

JobRequest request_from_json(const json& object) {
  JobRequest request;
  request.index = number<int>(object, "job", 0);
  request.name = object.at("name").get<std::string>();
  check_name("name", request.name, "._-");
  request.folder = folder_from_json(object.at("folder"));
  request.scheduler = parse_scheduler("scheduler", object.at("scheduler").get<std::string>());
  request.command = command_from_json(object.at("command"));
  request.processes_per_node = number<int>(object, "processes_per_node", 1, kMostGpus);
  request.several = object.at("several").get<bool>();
  request.single = object.at("single").get<bool>();
  request.resources = resources_from_json(object.at("resources"), request.processes_per_node);
  return request;
}

}  // namespace ddp::submit
