// The filters of jinja_builtins.h over lists and mappings, with the meaning of Jinja.

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/text/jinja_builtins.h"
#include "common/text/jinja_strings.h"

namespace sluice::jinja {
namespace {

using FilterFunction = absl::StatusOr<Value> (*)(const Value&, const Arguments&);

// Follows an attribute path: "a.b" looks up a, then b in the result; parts of digits are positions.
absl::StatusOr<Value> AttributeOf(Value value, const Value& path) {
  if (path.string() == nullptr) {
    return Subscript(value, path);
  }
  const std::string& text = path.string()->text;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t dot = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, dot - begin);
    const bool position = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    ASSIGN_OR_RETURN(value, Subscript(value, position ? IntegerOf(part) : Value(String::FromTemplate(part))));
    begin = dot + 1;
  }
  return value;
}

Value Generator(List items) {
  items.kind = List::Kind::kGenerator;
  return Value(std::move(items));
}

absl::StatusOr<Value> Length(const Value& value, const Arguments&) {
  if (const String* text = value.string()) {
    return Value(CharacterCount(text->text));
  }
  if (value.list() != nullptr && value.list()->kind == List::Kind::kGenerator) {
    return absl::InvalidArgumentError("length: the result of a lazy filter has none; use `list` first");
  }
  ASSIGN_OR_RETURN(const List items, Items(value));
  return Value(static_cast<int64_t>(items.size()));
}

absl::StatusOr<Value> Join(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(List items, Items(value));
  const Value* separator = arguments.Find(0, "d");
  const Value* attribute = arguments.Find(1, "attribute");
  String out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && separator != nullptr) {
      out.Append(ToString(*separator));
    }
    if (attribute != nullptr) {
      ASSIGN_OR_RETURN(items[i], AttributeOf(items[i], *attribute));
    }
    out.Append(ToString(items[i]));
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> First(const Value& value, const Arguments&) {
  if (value.string() != nullptr) {
    return Subscript(value, Value(0));
  }
  ASSIGN_OR_RETURN(const List items, Items(value));
  return items.empty() ? Value::MakeUndefined("first") : items.front();
}

absl::StatusOr<Value> Last(const Value& value, const Arguments&) {
  if (value.string() != nullptr) {
    return Subscript(value, Value(-1));
  }
  ASSIGN_OR_RETURN(const List items, Items(value));
  return items.empty() ? Value::MakeUndefined("last") : items.back();
}

// Value by which filters sort and compare: strings without their case unless `case_sensitive`.
absl::StatusOr<Value> KeyOf(const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = item;
  if (attribute != nullptr && !attribute->none()) {
    ASSIGN_OR_RETURN(key, AttributeOf(item, *attribute));
  }
  return case_sensitive || key.string() == nullptr ? key
                                                   : Value(ChangeCase(*key.string(), LetterCase::kLower));
}

bool IsSet(const Arguments& arguments, size_t index, const char* name) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && value->Truthy();
}

absl::StatusOr<Value> Extreme(const Value& value, const Arguments& arguments, const char* op) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  const bool case_sensitive = IsSet(arguments, 0, "case_sensitive");
  const Value* attribute = arguments.Find(1, "attribute");
  Value best = Value::MakeUndefined("min or max of nothing");
  Value best_key;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, KeyOf(item, attribute, case_sensitive));
    ASSIGN_OR_RETURN(const Value better, best.undefined() ? Value(true) : ApplyBinary(op, key, best_key));
    if (better.Truthy()) {
      best = item;
      best_key = std::move(key);
    }
  }
  return best;
}

absl::StatusOr<Value> Min(const Value& value, const Arguments& a) { return Extreme(value, a, "<"); }
absl::StatusOr<Value> Max(const Value& value, const Arguments& a) { return Extreme(value, a, ">"); }

absl::StatusOr<Value> ListFilter(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(List items, Items(value));
  return Value(std::move(items));
}

absl::StatusOr<Value> Reverse(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(List items, Items(value));
  std::reverse(items.begin(), items.end());
  if (value.string() == nullptr) {
    return Generator(std::move(items));
  }
  return Join(Value(std::move(items)), {});
}

absl::StatusOr<Value> ItemsFilter(const Value& value, const Arguments&) {
  if (value.undefined()) {
    return Generator({});
  }
  if (value.map() == nullptr || value.map()->kind != Map::Kind::kDict) {
    return absl::InvalidArgumentError(absl::StrCat("items: expected a mapping, got ", value.TypeName()));
  }
  ASSIGN_OR_RETURN(const Value pairs, CallMethod(value, "items", {}));
  ASSIGN_OR_RETURN(List items, Items(pairs));
  return Generator(std::move(items));
}

// Sorts by keys that were computed before; equal items keep their order, also in reverse, as in Python.
absl::StatusOr<List> SortedBy(const std::vector<Value>& keys, const List& items, bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // std::stable_sort cannot be aborted: after a failure the comparison returns false for every pair, and the
  // list, now in no defined order, is dropped with the error.
  absl::Status failure;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const absl::StatusOr<Value> less = ApplyBinary("<", keys[reverse ? b : a], keys[reverse ? a : b]);
    if (!less.ok()) {
      failure = less.status();
      return false;
    }
    return less->Truthy();
  });
  RETURN_IF_ERROR(failure);
  List sorted;
  for (const size_t at : order) {
    sorted.push_back(items[at]);
  }
  return sorted;
}

absl::StatusOr<Value> DictSort(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value pairs, ItemsFilter(value, arguments));
  const Value* by = arguments.Find(1, "by");
  const Value part(by != nullptr && ToString(*by).text == "value" ? 1 : 0);
  ASSIGN_OR_RETURN(const List items, Items(pairs));
  std::vector<Value> keys;
  for (const Value& pair : items) {
    ASSIGN_OR_RETURN(Value key, KeyOf(pair, &part, IsSet(arguments, 0, "case_sensitive")));
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(List sorted, SortedBy(keys, items, IsSet(arguments, 2, "reverse")));
  return Value(std::move(sorted));
}

// Sorts by an attribute, or by several that commas part.
absl::StatusOr<Value> Sort(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  const Value* attribute = arguments.Find(2, "attribute");
  const bool several = attribute != nullptr && attribute->string() != nullptr &&
                       attribute->string()->text.find(',') != std::string::npos;
  std::vector<Value> keys;
  for (const Value& item : items) {
    Value key;
    if (several) {
      List parts;
      for (const std::string& name :
           std::vector<std::string>(absl::StrSplit(attribute->string()->text, ','))) {
        const Value part(String::FromTemplate(name));
        ASSIGN_OR_RETURN(Value own, KeyOf(item, &part, IsSet(arguments, 1, "case_sensitive")));
        parts.push_back(std::move(own));
      }
      key = Value(std::move(parts));
    } else {
      ASSIGN_OR_RETURN(key, KeyOf(item, attribute, IsSet(arguments, 1, "case_sensitive")));
    }
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(List sorted, SortedBy(keys, items, IsSet(arguments, 0, "reverse")));
  return Value(std::move(sorted));
}

absl::StatusOr<Value> Unique(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  List out;
  std::vector<Value> keys;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key,
                     KeyOf(item, arguments.Find(1, "attribute"), IsSet(arguments, 0, "case_sensitive")));
    if (std::none_of(keys.begin(), keys.end(), [&](const Value& other) { return Equal(key, other); })) {
      keys.push_back(std::move(key));
      out.push_back(item);
    }
  }
  return Generator(std::move(out));
}

// Sorts by an attribute and gives a pair of its value and its items for each value.
absl::StatusOr<Value> GroupBy(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* otherwise = arguments.Find(1, "default");
  if (attribute == nullptr) {
    return absl::InvalidArgumentError("groupby: needs an attribute");
  }
  std::vector<Value> keys;
  List pairs;  // of an item's own value and the item
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value own, AttributeOf(item, *attribute));
    own = own.undefined() && otherwise != nullptr ? *otherwise : own;
    ASSIGN_OR_RETURN(Value key, KeyOf(own, nullptr, IsSet(arguments, 2, "case_sensitive")));
    pairs.push_back(Value(List::Tuple({key, own, item})));
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(const List sorted, SortedBy(keys, pairs, /*reverse=*/false));
  List groups;
  const Value* last = nullptr;
  for (const Value& pair : sorted) {
    const List& parts = *pair.list();
    if (last == nullptr || !Equal(*last, parts[0])) {
      groups.push_back(Value(List::Of(List::Kind::kGroup, {parts[1], Value(List())})));
    }
    last = &parts[0];
    (*groups.back().list())[1].list()->push_back(parts[2]);
  }
  return Value(std::move(groups));
}

absl::StatusOr<Value> Sum(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* start = arguments.Find(1, "start");
  Value sum = start != nullptr ? *start : Value(0);
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value own, KeyOf(item, attribute, /*case_sensitive=*/true));
    ASSIGN_OR_RETURN(sum, ApplyBinary("+", sum, own));
  }
  return sum;
}

absl::StatusOr<int64_t> CountArgument(const char* filter, const Value* given) {
  int64_t count = 0;
  if (given == nullptr || !given->integer(&count) || count < 1 || count > 100'000) {
    return absl::InvalidArgumentError(absl::StrCat(filter, ": needs an integer of 1..100000"));
  }
  return count;
}

// slice(n): n lists of nearly equal length, in order.
absl::StatusOr<Value> Slice(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  ASSIGN_OR_RETURN(const int64_t slices, CountArgument("slice", arguments.Find(0, "slices")));
  const Value* fill = arguments.Find(1, "fill_with");
  const size_t each = items.size() / static_cast<size_t>(slices);
  const size_t longer = items.size() % static_cast<size_t>(slices);
  List out;
  auto at = items.begin();
  for (size_t i = 0; i < static_cast<size_t>(slices); ++i) {
    List part;
    const size_t count = each + (i < longer ? 1 : 0);
    part.insert(part.end(), at, at + static_cast<ptrdiff_t>(count));
    at += static_cast<ptrdiff_t>(count);
    if (fill != nullptr && !fill->none() && i >= longer) {
      part.push_back(*fill);
    }
    out.push_back(Value(std::move(part)));
  }
  return Generator(std::move(out));
}

// batch(n): lists of n items, the last one filled up if asked.
absl::StatusOr<Value> Batch(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  ASSIGN_OR_RETURN(const int64_t count, CountArgument("batch", arguments.Find(0, "linecount")));
  const Value* fill = arguments.Find(1, "fill_with");
  List out;
  for (const Value& item : items) {
    if (out.empty() || out.back().list()->size() == static_cast<size_t>(count)) {
      out.push_back(Value(List()));
    }
    out.back().list()->push_back(item);
  }
  while (fill != nullptr && !fill->none() && !out.empty() &&
         out.back().list()->size() < static_cast<size_t>(count)) {
    out.back().list()->push_back(*fill);
  }
  return Generator(std::move(out));
}

// Returns the arguments without the first `skip` positional ones, for the filter or test that these name.
Arguments Rest(const Arguments& arguments, size_t skip) {
  Arguments rest;
  rest.named = arguments.named;
  if (arguments.positional.size() > skip) {
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(skip),
                           arguments.positional.end());
  }
  return rest;
}

// Returns the items of a value that lazy filters take; they accept None as an empty list.
absl::StatusOr<List> LazyItems(const Value& value) {
  return value.Truthy() ? Items(value) : absl::StatusOr<List>(List());
}

absl::StatusOr<Value> MapFilter(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(List items, LazyItems(value));
  const Value* attribute = FindName(arguments.named, "attribute");
  const Value* otherwise = FindName(arguments.named, "default");
  if (attribute == nullptr && (arguments.positional.empty() || arguments.positional[0].string() == nullptr)) {
    return absl::InvalidArgumentError("map: needs attribute=... or a filter's name");
  }
  for (Value& item : items) {
    if (attribute != nullptr) {
      ASSIGN_OR_RETURN(item, AttributeOf(item, *attribute));
      if (item.undefined() && otherwise != nullptr) {
        item = *otherwise;
      }
    } else {
      ASSIGN_OR_RETURN(item, ApplyFilter(arguments.positional[0].string()->text, item, Rest(arguments, 1)));
    }
  }
  return Generator(std::move(items));
}

absl::StatusOr<Value> SelectItems(const Value& value, const Arguments& arguments, bool keep,
                                  bool by_attribute) {
  ASSIGN_OR_RETURN(const List items, LazyItems(value));
  const size_t test = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) {
    return absl::InvalidArgumentError("selectattr: needs an attribute's name");
  }
  List out;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(subject, AttributeOf(item, arguments.positional[0]));
    }
    bool chosen = subject.Truthy();
    if (arguments.positional.size() > test) {
      ASSIGN_OR_RETURN(
          chosen, ApplyTest(ToString(arguments.positional[test]).text, subject, Rest(arguments, test + 1)));
    }
    if (chosen == keep) {
      out.push_back(item);
    }
  }
  return Generator(std::move(out));
}

absl::StatusOr<Value> Attribute(const Value& value, const Arguments& arguments) {
  const Value* name = arguments.Find(0, "name");
  return name == nullptr ? absl::StatusOr<Value>(absl::InvalidArgumentError("attr: needs a name"))
         : value.map() != nullptr && value.map()->kind == Map::Kind::kDict
             ? Value::MakeUndefined(ToString(*name).text)  // attributes only, no items of a mapping
             : Subscript(value, *name);
}

absl::StatusOr<Value> Select(const Value& v, const Arguments& a) { return SelectItems(v, a, true, false); }
absl::StatusOr<Value> Reject(const Value& v, const Arguments& a) { return SelectItems(v, a, false, false); }
absl::StatusOr<Value> SelectAttr(const Value& v, const Arguments& a) { return SelectItems(v, a, true, true); }
absl::StatusOr<Value> RejectAttr(const Value& v, const Arguments& a) {
  return SelectItems(v, a, false, true);
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value, const Arguments& arguments) {
  static constexpr std::pair<std::string_view, FilterFunction> kFilters[] = {
      {"attr", Attribute},  {"batch", Batch},     {"count", Length},          {"dictsort", DictSort},
      {"first", First},     {"groupby", GroupBy}, {"items", ItemsFilter},     {"join", Join},
      {"last", Last},       {"length", Length},   {"list", ListFilter},       {"map", MapFilter},
      {"max", Max},         {"min", Min},         {"reject", Reject},         {"rejectattr", RejectAttr},
      {"reverse", Reverse}, {"select", Select},   {"selectattr", SelectAttr}, {"slice", Slice},
      {"sort", Sort},       {"sum", Sum},         {"unique", Unique}};
  for (const auto& [filter, function] : kFilters) {
    if (filter == name) {
      return function(value, arguments);
    }
  }
  return ApplyScalarFilter(name, value, arguments);
}

}  // namespace sluice::jinja
