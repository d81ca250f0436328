#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/proto/proto_rules.h"

namespace sluice {
namespace {

namespace pb = google::protobuf;

// Adds one line per change to a list.
class Comparer {
 public:
  void Files(const pb::FileDescriptorSet& before, const pb::FileDescriptorSet& after);
  std::vector<std::string> Take() { return std::move(changes_); }

 private:
  void Change(const std::string& element, const std::string& what) {
    changes_.push_back(absl::StrCat(element, ": ", what));
  }
  template <typename List>
  static auto ByName(const List& list) {
    std::map<std::string, decltype(&list[0])> result;
    for (const auto& element : list) {
      result[element.name()] = &element;
    }
    return result;
  }
  // Calls `compare` for elements of equal name; a missing one is a change.
  template <typename List, typename F>
  void Pairs(const std::string& scope, const List& before, const List& after, F compare) {
    const auto found = ByName(after);
    for (const auto& old : before) {
      const std::string name = absl::StrCat(scope, ".", old.name());
      const auto it = found.find(old.name());
      if (it == found.end()) {
        Change(name, "is gone");
      } else {
        compare(name, old, *it->second);
      }
    }
  }
  void File(const pb::FileDescriptorProto& before, const pb::FileDescriptorProto& after);
  void Message(const std::string& name, const pb::DescriptorProto& before, const pb::DescriptorProto& after);
  void Field(const std::string& name, const pb::DescriptorProto& old_message,
             const pb::DescriptorProto& new_message, const pb::FieldDescriptorProto& before,
             const pb::FieldDescriptorProto& after);
  void Enum(const std::string& name, const pb::EnumDescriptorProto& before,
            const pb::EnumDescriptorProto& after);
  void Rpc(const std::string& name, const pb::MethodDescriptorProto& before,
           const pb::MethodDescriptorProto& after);

  std::vector<std::string> changes_;
};

std::string OneofOf(const pb::DescriptorProto& message, const pb::FieldDescriptorProto& field) {
  return field.has_oneof_index() ? message.oneof_decl(field.oneof_index()).name() : "";
}

// Message ranges exclude `end`, enum ranges include it.
bool IsReserved(const pb::DescriptorProto& message, const pb::FieldDescriptorProto& field) {
  bool number = false;
  bool name = false;
  for (const auto& range : message.reserved_range()) {
    number |= field.number() >= range.start() && field.number() < range.end();
  }
  for (const std::string& reserved : message.reserved_name()) {
    name |= reserved == field.name();
  }
  return number && name;
}

bool IsReserved(const pb::EnumDescriptorProto& type, int number) {
  for (const auto& range : type.reserved_range()) {
    if (number >= range.start() && number <= range.end()) {
      return true;
    }
  }
  return false;
}

void Comparer::Files(const pb::FileDescriptorSet& before, const pb::FileDescriptorSet& after) {
  Pairs("file", before.file(), after.file(),
        [this](const std::string&, const auto& old, const auto& now) { File(old, now); });
}

void Comparer::File(const pb::FileDescriptorProto& before, const pb::FileDescriptorProto& after) {
  const std::string& package = before.package();
  if (package != after.package()) {
    Change(before.name(), "its package changed");
  }
  Pairs(package, before.message_type(), after.message_type(),
        [this](const std::string& name, const auto& old, const auto& now) { Message(name, old, now); });
  Pairs(package, before.enum_type(), after.enum_type(),
        [this](const std::string& name, const auto& old, const auto& now) { Enum(name, old, now); });
  Pairs(package, before.service(), after.service(),
        [this](const std::string& service, const auto& old, const auto& now) {
          Pairs(service, old.method(), now.method(),
                [this](const std::string& name, const auto& o, const auto& n) { Rpc(name, o, n); });
        });
}

void Comparer::Message(const std::string& name, const pb::DescriptorProto& before,
                       const pb::DescriptorProto& after) {
  std::map<int, const pb::FieldDescriptorProto*> by_number;
  for (const auto& field : after.field()) {
    by_number[field.number()] = &field;
  }
  for (const auto& old : before.field()) {
    const std::string field = absl::StrCat(name, ".", old.name());
    const auto it = by_number.find(old.number());
    if (it != by_number.end()) {
      Field(field, before, after, old, *it->second);
    } else if (!IsReserved(after, old)) {
      Change(field, "is gone and its number and name are not both reserved");
    }
  }
  Pairs(name, before.nested_type(), after.nested_type(),
        [this](const std::string& nested, const auto& old, const auto& now) { Message(nested, old, now); });
  Pairs(name, before.enum_type(), after.enum_type(),
        [this](const std::string& nested, const auto& old, const auto& now) { Enum(nested, old, now); });
}

void Comparer::Field(const std::string& name, const pb::DescriptorProto& old_message,
                     const pb::DescriptorProto& new_message, const pb::FieldDescriptorProto& before,
                     const pb::FieldDescriptorProto& after) {
  if (before.name() != after.name() || before.json_name() != after.json_name()) {
    Change(name, absl::StrCat("is now named ", after.name()));
  }
  if (before.type() != after.type() || before.type_name() != after.type_name()) {
    Change(name, "its type changed");
  }
  if (before.label() != after.label() || before.proto3_optional() != after.proto3_optional()) {
    Change(name, "its label changed");
  }
  if (OneofOf(old_message, before) != OneofOf(new_message, after)) {
    Change(name, "its oneof changed");
  }
}

void Comparer::Enum(const std::string& name, const pb::EnumDescriptorProto& before,
                    const pb::EnumDescriptorProto& after) {
  std::map<int, std::string> by_number;
  for (const auto& value : after.value()) {
    by_number[value.number()] = value.name();
  }
  for (const auto& old : before.value()) {
    const auto it = by_number.find(old.number());
    const std::string value = absl::StrCat(name, ".", old.name());
    if (it == by_number.end() ? !IsReserved(after, old.number()) : it->second != old.name()) {
      Change(value,
             it == by_number.end() ? "is gone and its number is not reserved" : "its number is another's");
    }
  }
}

void Comparer::Rpc(const std::string& name, const pb::MethodDescriptorProto& before,
                   const pb::MethodDescriptorProto& after) {
  if (before.input_type() != after.input_type() || before.output_type() != after.output_type()) {
    Change(name, "its messages changed");
  }
  if (before.client_streaming() != after.client_streaming() ||
      before.server_streaming() != after.server_streaming()) {
    Change(name, "its streaming changed");
  }
}

}  // namespace

std::vector<std::string> BreakingChanges(const pb::FileDescriptorSet& before,
                                         const pb::FileDescriptorSet& after) {
  Comparer comparer;
  comparer.Files(before, after);
  return comparer.Take();
}

}  // namespace sluice
