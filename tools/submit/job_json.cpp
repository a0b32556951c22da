#include "tools/submit/job_json.hpp"

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

template <typename Value>
std::optional<Value> optional_value(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? std::nullopt : std::optional<Value>(found->get<Value>());
}

Resources resources_from_json(const json& object) {
  Resources resources;
  resources.nodes = object.at("nodes").get<int>();
  resources.cpus = optional_value<int>(object, "cpus");
  resources.memory_mb = optional_value<std::int64_t>(object, "memory_mb");
  resources.gpus = object.at("gpus").get<int>();
  resources.gpu_memory_mb = optional_value<std::int64_t>(object, "gpu_memory_mb");
  resources.time_s = optional_value<std::int64_t>(object, "time_s");
  resources.account = object.value("account", "");
  resources.partition = object.value("partition", "");
  resources.constraint = object.value("constraint", "");
  resources.bid = optional_value<std::int64_t>(object, "bid");
  resources.transfer_files = optional_value<std::vector<std::string>>(object, "transfer_files")
                                 .value_or(std::vector<std::string>());
  return resources;
}

}  // namespace

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
  request.index = object.at("job").get<int>();
  request.name = object.at("name").get<std::string>();
  request.folder = object.at("folder").get<std::string>();
  request.scheduler = parse_scheduler("scheduler", object.at("scheduler").get<std::string>());
  request.command = object.at("command").get<std::vector<std::string>>();
  request.processes_per_node = object.at("processes_per_node").get<int>();
  request.several = object.at("several").get<bool>();
  request.single = object.at("single").get<bool>();
  request.resources = resources_from_json(object.at("resources"));
  return request;
}

}  // namespace ddp::submit
