// SchemaReferences: finds cycles among places of a JSON schema that apply to the same value.
//
// Thread safety: thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sluice::inferd {

class SchemaReferences {
 public:
  // Records that `to` applies to the same value as `from`: a $ref, or a member of a choice.
  void Add(const std::string& from, const std::string& to) { next_[from].push_back(to); }

  // A place that refers to itself without a key or an item between, and so describes nothing; "": none.
  std::string PlaceOfCycle() const;

 private:
  std::map<std::string, std::vector<std::string>> next_;
};

}  // namespace sluice::inferd
