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
#include <optional>
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
struct List;
struct Map;
struct Arguments;
using Function = std::function<absl::StatusOr<Value>(const Arguments&)>;

// An integer of Python has any size; these have 128 bits, and arithmetic beyond is an error.
__extension__ using Integer = __int128;

// A literal integer of a client's JSON beyond 128 bits: printed as written, a float in arithmetic.
struct LongInteger {
  std::string digits;
};
struct Undefined {
  std::string name;  // the name that was looked up, for error messages
};
struct None {};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Integer, LongInteger, double, String,
                            std::shared_ptr<List>, std::shared_ptr<Map>, std::shared_ptr<Function>>;

  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}
  Value(bool value) : data_(value) {}
  Value(Integer value) : data_(value) {}
  Value(int64_t value) : data_(Integer{value}) {}
  Value(int value) : data_(Integer{value}) {}
  Value(LongInteger value) : data_(std::move(value)) {}
  Value(double value) : data_(value) {}
  Value(String value) : data_(std::move(value)) {}
  Value(const char* own) : data_(String::FromTemplate(own)) {}
  Value(List list);
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
  bool integer(Integer* out) const;
  // The same, with values beyond 64 bits set to the nearest end of the range.
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

// List: every kind of sequence of Python. They differ in how they print, and in what refuses them.
struct List : std::vector<Value> {
  enum class Kind : uint8_t {
    kList,
    kTuple,      // prints in parentheses
    kGroup,      // a tuple of groupby: its items are also named `grouper` and `list`
    kView,       // keys(), values() and items() of a mapping: no subscripts, no JSON
    kGenerator,  // result of a lazy filter: no subscripts, no length, no JSON
  };
  using vector::vector;
  Kind kind = Kind::kList;
  bool tuple() const { return kind == Kind::kTuple || kind == Kind::kGroup; }
  bool indexed() const { return kind == Kind::kList || tuple(); }

  static List Tuple(std::vector<Value> items) { return Of(Kind::kTuple, std::move(items)); }
  static List Of(Kind kind, std::vector<Value> items) {
    List list;
    list.vector::operator=(std::move(items));
    list.kind = kind;
    return list;
  }
};

// Map: keeps insertion order, as Python's dict does. A lookup is linear.
struct Map : std::vector<std::pair<Value, Value>> {
  enum class Kind : uint8_t {
    kDict,
    kObject,     // an object with attributes, such as `loop`: no mapping, not to be looped over
    kNamespace,  // an object whose attributes a template may set
  };
  using vector::vector;
  Kind kind = Kind::kDict;
  std::shared_ptr<Function> call;  // of an object that can be called, such as a recursive `loop`
};

inline Value::Value(List list) : data_(std::make_shared<List>(std::move(list))) {}
inline Value::Value(Map map) : data_(std::make_shared<Map>(std::move(map))) {}

// Names: variables of a template, or named arguments.
using Names = std::vector<std::pair<std::string, Value>>;
const Value* FindName(const Names& names, std::string_view name);
void SetName(Names& names, std::string_view name, Value value);

struct Arguments {
  std::vector<Value> positional;
  Names named;

  // Returns the argument at `index` or named `name`, or null.
  const Value* Find(size_t index, std::string_view name) const;
};

// Returns the value under a key of any type, or null.
Value* FindItem(Map& map, const Value& key);
// Returns the value under the string `key`, or null.
Value* FindKey(Map& map, std::string_view key);
void SetItem(Map& map, Value key, Value value);

// Implements Python's equality: numbers by value, sequences and maps by content.
bool Equal(const Value& a, const Value& b);

// Reads decimal digits, with an optional sign: a LongInteger beyond 128 bits. REQUIRES: there are only these.
Value IntegerOf(std::string_view digits);
std::string IntegerText(Integer value);

// Returns the output of `{{ value }}`: Python's str(). None prints "None", undefined prints nothing.
String ToString(const Value& value);
// Returns Python's repr(): as str(), but a string is quoted.
String Repr(const Value& value);

// JSON format of transformers' tojson filter (json.dumps): non-ASCII kept, keys in order unless sorted.
struct JsonFormat {
  std::optional<std::string> indent;  // one level's; absent: one line
  String item_separator =
      String::FromTemplate(", ");  // with an indent json.dumps uses ","; the caller sets it
  String key_separator = String::FromTemplate(": ");
  bool sort_keys = false;
  bool ensure_ascii = false;  // \uXXXX for non-ASCII characters
};
absl::StatusOr<String> ToJson(const Value& value, const JsonFormat& format);

}  // namespace sluice::jinja
