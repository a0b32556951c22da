// bench/report/field_json.hpp - writes and reads structs with DDP_FIELDS as JSON objects.
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/report/record.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"

namespace ddp::bench {

template <typename T>
concept HasFields = requires {
  T::kFieldNames;
};

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

/// Calls visit(name, member) for one field after the other.
template <typename Record, typename Visit>
void for_each_field(Record& record, Visit visit) {
  std::istringstream names(Record::kFieldNames);  // "name, kind, stage"
  const auto next_name = [&names] {
    std::string name;
    names >> name;
    return name.substr(0, name.find(','));
  };
  std::apply([&](auto&... members) { (visit(next_name(), members), ...); }, record.fields());
}

/// What is not there, or not a finite number, is null.
template <typename T>
nlohmann::ordered_json as_json(const T& value) {
  using Json = nlohmann::ordered_json;
  if constexpr (HasFields<T>) {
    Json object = Json::object();
    for_each_field(value, [&](const std::string& name, const auto& member) {
      object[name] = as_json(member);
    });
    return object;
  } else if constexpr (kIsOptional<T>) {
    return value ? as_json(*value) : Json(nullptr);
  } else if constexpr (kIsVector<T>) {
    Json list = Json::array();
    for (const auto& element : value) {
      list.push_back(as_json(element));
    }
    return list;
  } else if constexpr (std::is_same_v<T, Interval>) {
    return {as_json(value.low), as_json(value.high)};
  } else if constexpr (std::is_same_v<T, PhaseTimes>) {
    Json object = Json::object();
    for (std::size_t phase = 0; phase < kPhases; ++phase) {
      object[kPhaseNames[phase]] = as_json(value[phase]);
    }
    return object;
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
  } else if constexpr (std::is_enum_v<T>) {
    return to_string(value);
  } else {
    return value;
  }
}

/// Reads one document. Whatever in it is missing or of another type is an error that names the
/// file, the place in the document, the value there and what was expected. What a struct has as
/// std::optional may be null or missing, and what it lists in kMayLack may be missing; null is
/// not a number where a number is wanted; fields that the struct does not have are passed over.
class FieldReader {
 public:
  using Json = nlohmann::ordered_json;

  /// @param expected such as "a report of bench" @param code of the errors
  FieldReader(std::string file, std::string expected, ExitCode code)
      : file_(std::move(file)), expected_(std::move(expected)), code_(code) {}

  /// @param where JSON pointer to `json`, for messages
  template <typename T>
  void read(const Json& json, const std::string& where, T& value) const {
    const auto expect_type = [&](bool ok, const char* expected) {
      expect(ok, json, where, expected);
    };
    if constexpr (HasFields<T>) {
      expect_type(json.is_object(), "an object");
      for_each_field(value, [&](const std::string& name, auto& member) {
        if (json.contains(name) || !may_lack<T>(name)) {
          read_member(json, where, name, member);
        }
      });
    } else if constexpr (kIsOptional<T>) {
      value.reset();
      if (!json.is_null()) {
        read(json, where, value.emplace());
      }
      if constexpr (std::is_same_v<T, std::optional<double>>) {
        if (value && !std::isfinite(*value)) {
          value.reset();
        }
      }
    } else if constexpr (kIsVector<T>) {
      expect_type(json.is_array(), "a list");
      value.assign(json.size(), {});
      for (std::size_t i = 0; i < json.size(); ++i) {
        read(json[i], where + "/" + std::to_string(i), value[i]);
      }
    } else if constexpr (std::is_same_v<T, Interval>) {
      expect_type(json.is_array() && json.size() == 2, "a list of two numbers, or null");
      read(json[0], where + "/0", value.low);
      read(json[1], where + "/1", value.high);
    } else if constexpr (std::is_same_v<T, PhaseTimes>) {
      expect_type(json.is_object(), "an object");
      for (std::size_t phase = 0; phase < kPhases; ++phase) {
        read_member(json, where, kPhaseNames[phase], value[phase]);
      }
    } else if constexpr (std::is_same_v<T, AllReduceAlgorithm>) {
      expect_type(json == "ring" || json == "tree", "ring or tree");
      value = json == "ring" ? AllReduceAlgorithm::kRing : AllReduceAlgorithm::kTree;
    } else if constexpr (std::is_same_v<T, std::string>) {
      expect_type(json.is_string(), "text");
      value = json;
    } else if constexpr (std::is_same_v<T, bool>) {
      expect_type(json.is_boolean(), "true or false");
      value = json;
    } else if constexpr (std::is_same_v<T, double>) {
      expect_type(json.is_number() || json.is_null(), "a number or null");
      value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
    } else if constexpr (std::is_integral_v<T>) {
      // Google Benchmark writes all counters as floating point numbers: 2e0 is whole.
      constexpr double kLargestExact = 9e15;
      const double number = json.is_number() ? json.get<double>() : 0.5;
      expect_type(std::abs(number) <= kLargestExact && number == std::floor(number) &&
                      std::in_range<T>(static_cast<std::int64_t>(number)),
                  "a whole number");
      value = static_cast<T>(number);
    } else {
      static_assert(std::is_same_v<T, Json>);
      expect_type(json.is_object(), "an object");
      value = json;
    }
  }

  /// @throws Error naming `name` if an object without it must have it
  template <typename T>
  void read_member(const Json& object, const std::string& where, const std::string& name,
                   T& value) const {
    const std::string path = where + "/" + name;
    if (const auto found = object.find(name); found != object.end()) {
      read(*found, path, value);
    } else if constexpr (!kIsOptional<T>) {
      fail("no " + path + ", expected " + expected_);
    }
  }

  void expect(bool ok, const Json& json, const std::string& where,
              const std::string& expected) const {
    if (!ok) {
      const std::string got = json.is_structured()
                                  ? std::string("an ") + json.type_name()
                                  : json.dump(-1, ' ', false, Json::error_handler_t::replace);
      fail(where + ": expected " + expected + ", got " + shorten(got));
    }
  }

  [[noreturn]] void fail(const std::string& message) const {
    if (code_ == ExitCode::kUsage) {
      throw UsageError(file_ + ": " + message);
    }
    throw Error(code_, file_ + ": " + message);
  }

 private:
  template <typename T>
  static bool may_lack(const std::string& name) {
    if constexpr (requires { T::kMayLack; }) {
      return (std::string(" ") + T::kMayLack + ",").find(" " + name + ",") != std::string::npos;
    }
    return false;
  }

  std::string file_;
  std::string expected_;
  ExitCode code_;
};

}  // namespace ddp::bench
