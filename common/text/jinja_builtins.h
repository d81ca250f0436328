// Filters, tests, methods and operators of the template language: functions over values, without a scope.
//
// Missing names are UNIMPLEMENTED, with the name. Sources: Jinja 3.1's documentation, transformers'
// chat_template_utils (tojson, raise_exception, strftime_now, loop controls).
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/jinja_value.h"

namespace sluice::jinja {

// Filters such as map and select call ApplyTest and ApplyFilter by the name in their first argument.
absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value, const Arguments& arguments);

// The part of ApplyFilter for texts, numbers and single values (jinja_scalar_filters.cc).
absl::StatusOr<Value> ApplyScalarFilter(const std::string& name, const Value& value,
                                        const Arguments& arguments);

absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& value, const Arguments& arguments);

// Calls object.name(arguments) for strings, lists and maps.
absl::StatusOr<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments);

absl::StatusOr<Value> ApplyBinary(const std::string& op, const Value& left, const Value& right);

// Returns the items that a loop over `value` visits: list items, map keys, characters; a generator is empty
// afterwards. INVALID_ARGUMENT for any other type.
absl::StatusOr<List> Items(const Value& value);

// Returns value[index] or value[begin:end:step] with Python's negative indices; a missing key or index is
// undefined.
absl::StatusOr<Value> Subscript(const Value& value, const Value& index);
absl::StatusOr<Value> SliceOf(const Value& value, const Value& begin, const Value& end, const Value& step);

// AddGlobals: the functions that every template can call: raise_exception, namespace, dict, range, cycler,
// joiner, strftime_now.
//
// Thread safety: a pure function.

// `now` is the time that strftime_now() prints, in UTC.
void AddGlobals(absl::Time now, Names* globals);

}  // namespace sluice::jinja
