// bench/report/fields.hpp - lets a struct name the members that its JSON object has.
#pragma once

#include <tuple>

/// Behind the members of a struct: those that its JSON object has, in the object's order, under the
/// same names. as_json() and FieldReader (bench/report/field_json.hpp) write and read them.
#define DDP_FIELDS(...)           \
  auto fields() {                 \
    return std::tie(__VA_ARGS__); \
  }                               \
  auto fields() const {           \
    return std::tie(__VA_ARGS__); \
  }                               \
  static constexpr const char* kFieldNames = #__VA_ARGS__
