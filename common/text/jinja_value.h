// Values of the template language, and strings that record the origin of each byte.
//
// A chat template mixes its own text (in which control tokens are intended) with clients' text (in which they
// must stay plain text). So a String carries a mark per byte: 1 for a client's byte. Every operation moves
// the marks with the bytes, whatever the template does to the text.
//
// Thread safety: plain values; lists, maps and namespaces are shared by reference within one rendering.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::jinja {

// Text and its marks. REQUIRES between calls: text.size() == marks.size().
struct String {
  std::string text;
  std::string marks;  // per byte: 0 the template's own, 1 a client's

  static String FromTemplate(std::string_view text) {
    return {std::string(text), std::string(text.size(), 0)};
  }
  static String FromClient(std::string_view text) { return {std::string(text), std::string(text.size(), 1)}; }
  void Append(const String& other) {
    text += other.text;
    marks += other.marks;
  }
  String Slice(size_t begin, size_t count) const {
    return {text.substr(begin, count), marks.substr(begin, count)};
  }
};

class Value;
using List = std::vector<Value>;
// Map: keeps insertion order, as Python's dict does.
struct Map;

struct Arguments;
using Function = std::function<absl::StatusOr<Value>(const Arguments&)>;

struct Undefined {
  std::string name;  // the name that was looked up, for error messages
};
struct None {};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, String, std::shared_ptr<List>,
                            std::shared_ptr<Map>, std::shared_ptr<Function>>;

  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(String value) : data_(std::move(value)) {}
  Value(const char* own) : data_(String::FromTemplate(own)) {}
  Value(List list) : data_(std::make_shared<List>(std::move(list))) {}
  Value(Map map);
  Value(Function function) : data_(std::make_shared<Function>(std::move(function))) {}
  static Value MakeUndefined(std::string name) {
    Value value;
    value.data_ = Undefined{std::move(name)};
    return value;
  }

  const Data& data() const { return data_; }
  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }
  const String* string() const { return As<String>(); }
  List* list() const { return Pointer<List>(); }
  Map* map() const { return Pointer<Map>(); }
  const Function* function() const { return Pointer<Function>(); }
  bool undefined() const { return As<Undefined>() != nullptr; }
  bool none() const { return As<None>() != nullptr; }
  // Returns true for integers and, as in Python, for bool.
  bool integer(int64_t* out) const;
  bool number(double* out) const;

  bool Truthy() const;
  // Returns "string", "integer", ... for error messages.
  const char* TypeName() const;

 private:
  template <typename T>
  T* Pointer() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&data_);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  Data data_;
};

struct Map : std::vector<std::pair<std::string, Value>> {
  bool client = false;        // the keys are a client's text
  bool integer_keys = false;  // the keys are decimal integers, not text; never mixed
  String KeyText(const std::string& key) const {
    return client ? String::FromClient(key) : String::FromTemplate(key);
  }
  // Returns the key as a template sees it.
  Value Key(const std::string& key) const;
};

struct Arguments {
  List positional;
  Map named;

  // Returns the argument at `index` or named `name`, or null.
  const Value* Find(size_t index, std::string_view name) const;
};

inline Value::Value(Map map) : data_(std::make_shared<Map>(std::move(map))) {}

inline Value Map::Key(const std::string& key) const {
  return integer_keys ? Value(static_cast<int64_t>(std::stoll(key))) : Value(KeyText(key));
}

// Returns the value under a key of any type, or null.
Value* FindItem(Map& map, const Value& key);
// Returns the value under the string `key`, or null.
Value* FindKey(Map& map, std::string_view key);
void SetKey(Map& map, const std::string& key, Value value);

// Implements Python's equality: numbers by value, sequences and maps by content.
bool Equal(const Value& a, const Value& b);

// Returns the output of `{{ value }}`: Python's str(). None prints "None", undefined prints nothing.
String ToString(const Value& value);

// JSON format of transformers' tojson filter (json.dumps): non-ASCII kept, keys in order unless sorted.
struct JsonFormat {
  int indent = -1;  // below 0: one line
  String item_separator =
      String::FromTemplate(", ");  // with an indent json.dumps uses ","; the caller sets it
  String key_separator = String::FromTemplate(": ");
  bool sort_keys = false;
  bool ensure_ascii = false;  // \uXXXX for non-ASCII characters
};
absl::StatusOr<String> ToJson(const Value& value, const JsonFormat& format);

}  // namespace sluice::jinja
