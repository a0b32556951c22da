#include "common/data/csv_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/mapped_file.hpp"
#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"

namespace ddp {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
const std::string kTargetColumn = "label";

/// The lines of a file, and where they are.
class Lines {
 public:
  Lines(std::string path, std::string_view bytes) : path_(std::move(path)), rest_(bytes) {}

  /// Without CR and LF. @return false after the last one
  bool next(std::string_view& line) {
    if (rest_.empty()) {
      return false;
    }
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    ++number_;
    return true;
  }
  [[noreturn]] void refuse_line(const std::string& reason) const {
    refuse("data file {}, line {}: {}", path_, number_, reason);
  }

 private:
  std::string path_;
  std::string_view rest_;
  size_t number_ = 0;  // from 1, of the line at hand
};

/// The next field of `line`, without blanks and quotation marks around it.
/// @param end set to where the comma after it is, or the line's end
std::string_view next_field(const Lines& lines, std::string_view line, size_t begin, size_t& end) {
  constexpr std::string_view kBlanks = " \t";
  const size_t first = std::min(line.find_first_not_of(kBlanks, begin), line.size());
  if (first < line.size() && line[first] == '"') {
    size_t close = line.find('"', first + 1);
    while (close != std::string_view::npos && line.substr(close).starts_with("\"\"")) {
      close = line.find('"', close + 2);  // a quotation mark in the text
    }
    end = close == std::string_view::npos
              ? close
              : std::min(line.find_first_not_of(kBlanks, close + 1), line.size());
    if (end == std::string_view::npos || (end < line.size() && line[end] != ',')) {
      lines.refuse_line("got " + quote(line.substr(first)) +
                        ", expected a quotation mark before the next comma or the line's end");
    }
    return line.substr(first + 1, close - first - 1);
  }
  end = std::min(line.find(',', begin), line.size());
  const std::string_view field = line.substr(begin, end - begin);
  const size_t last = field.find_last_not_of(kBlanks);
  return last == std::string_view::npos ? ""
                                        : field.substr(first - begin, last + 1 - (first - begin));
}

/// Into `fields`, which keeps its memory.
void split(const Lines& lines, std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (size_t begin = 0; begin <= line.size();) {
    size_t end = 0;
    fields.push_back(next_field(lines, line, begin, end));
    begin = end + 1;
  }
}

/// All of `text`; as from_chars, which is exact and knows no locale.
template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value)
                                                                   : std::nullopt;
}

/// The table's content so far.
class Table {
 public:
  Table(const Lines& lines, const std::vector<std::string_view>& names)
      : lines_(lines), names_(names.begin(), names.end()), target_(names.size() - 1) {
    if (names.size() < 2) {
      lines.refuse_line(
          fmt::format("got {} column, expected names of features and of a target, "
                      "with commas between them",
                      names.size()));
    }
    const auto number = std::ranges::find_if(names, [](auto name) {
      return std::isfinite(number_in<double>(name).value_or(std::nan("")));  // "inf" may be a name
    });
    if (number != names.end()) {
      lines.refuse_line("got a number, " + quote(*number) + ", expected the columns' names");
    }
    if (std::ranges::count(names_, kTargetColumn) > 1) {
      lines.refuse_line("got two columns \"label\", expected one");
    }
    const auto label = std::ranges::find(names_, kTargetColumn);
    if (label != names_.end()) {
      target_ = static_cast<size_t>(label - names_.begin());
    }
  }

  void add_row(const std::vector<std::string_view>& fields) {
    if (fields.size() != names_.size()) {
      lines_.refuse_line(fmt::format("got {} columns, expected {}", fields.size(), names_.size()));
    }
    for (size_t column = 0; column < fields.size(); ++column) {
      const float value = finite(fields[column], column);
      if (column != target_) {
        features_.push_back(value);
        continue;
      }
      values_.push_back(value);
      if (classes_) {
        const std::optional<int64_t> integer = number_in<int64_t>(fields[column]);
        integer ? classes_->push_back(*integer) : classes_.reset();
      }
    }
  }

  Samples samples() && {
    const auto rows = static_cast<int64_t>(values_.size());
    const auto columns = static_cast<int64_t>(names_.size()) - 1;
    const torch::Tensor input = tensor_of(std::move(features_)).view({rows, columns});
    return {input, classes_ ? tensor_of(std::move(*classes_))
                            : tensor_of(std::move(values_)).view({rows, 1})};
  }

 private:
  float finite(std::string_view field, size_t column) const {
    const std::optional<double> value = number_in<double>(field);
    if (!value || !std::isfinite(static_cast<float>(*value))) {
      lines_.refuse_line(fmt::format("column {} ({}): got {}, expected a finite float32 number",
                                     column + 1, quote(names_[column]), quote(field)));
    }
    return static_cast<float>(*value);
  }
  template <typename Number>
  static torch::Tensor tensor_of(std::vector<Number> numbers) {
    const auto owner = std::make_shared<std::vector<Number>>(std::move(numbers));
    return torch::from_blob(
        owner->data(), {static_cast<int64_t>(owner->size())}, [owner](void*) {},
        c10::CppTypeToScalarType<Number>::value);
  }

  const Lines& lines_;
  std::vector<std::string> names_;
  size_t target_;  // column
  std::vector<float> features_;
  std::vector<float> values_;  // of the target
  std::optional<std::vector<int64_t>> classes_{std::in_place};  // while all are integers
};

}  // namespace

Samples read_csv_file(const std::string& path) {
  const MappedFile file(path);
  std::string_view bytes = file.bytes();
  if (bytes.starts_with(kByteOrderMark)) {
    bytes.remove_prefix(kByteOrderMark.size());
  }
  Lines lines(path, bytes);
  std::string_view line;
  std::vector<std::string_view> fields;
  lines.next(line);
  split(lines, line, fields);
  Table table(lines, fields);
  while (lines.next(line)) {
    if (line.empty()) {
      continue;  // as after the last one
    }
    split(lines, line, fields);
    table.add_row(fields);
  }
  return std::move(table).samples();
}

}  // namespace ddp
