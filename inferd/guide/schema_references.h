// Which places of a JSON schema apply to the same value, and whether one leads back to itself.
//
// Thread safety: thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sluice {

class SchemaReferences {
 public:
  // What is said at `to` holds for the same value as what is said at `from`: a $ref, or a member of a choice.
  void Add(const std::string& from, const std::string& to) { next_[from].push_back(to); }

  // A place that leads back to itself without a key or an item between, and so describes nothing; "": none.
  std::string PlaceOfCycle() const;

 private:
  std::map<std::string, std::vector<std::string>> next_;
};

}  // namespace sluice
