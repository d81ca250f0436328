#include "inferd/guide/schema_references.h"

#include <cstddef>

#include "absl/container/flat_hash_map.h"

namespace sluice::inferd {
namespace {

struct Visit {
  std::string place;
  size_t next = 0;  // index of its next reference
};

}  // namespace

// Depth first search without recursion, since schemas come from clients and chains may be long. A place that
// is entered but not finished is on the path to the present one.
std::string SchemaReferences::PlaceOfCycle() const {
  absl::flat_hash_map<std::string, bool> finished;
  for (const auto& [start, references] : next_) {
    if (finished.contains(start)) {
      continue;
    }
    std::vector<Visit> way = {{start}};
    finished[start] = false;
    while (!way.empty()) {
      const auto edges = next_.find(way.back().place);
      if (edges == next_.end() || way.back().next == edges->second.size()) {
        finished[way.back().place] = true;
        way.pop_back();
        continue;
      }
      const std::string& place = edges->second[way.back().next++];
      const auto [entry, is_new] = finished.emplace(place, false);
      if (is_new) {
        way.push_back({place});
      } else if (!entry->second) {
        return place;
      }
    }
  }
  return "";
}

}  // namespace sluice::inferd
