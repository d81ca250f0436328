// Seeded mutations of every foreign format: each target's seeds are accepted, and mutations of them end in
// acceptance or refusal. Nothing crashes (under ASan and UBSan too), nothing allocates by a hostile number,
// and what is accepted keeps the promises that the targets check.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "tests/fuzz/client_targets.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/pack_targets.h"
#include "tests/fuzz/session_targets.h"
#include "tests/fuzz/text_targets.h"

namespace sluice {
namespace {

// Address sanitizers reserve terabytes: the limit applies to the plain build only.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Memory limit: a parser that allocates by a hostile number exceeds it and ends the program.
struct MemoryWall {
  MemoryWall() {
    const rlimit limit{uint64_t{4} << 30, uint64_t{4} << 30};
    setrlimit(RLIMIT_AS, &limit);
  }
} const memory_wall;
#endif

class TargetMutation : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(TargetMutation, EndsInAcceptanceOrRefusal) {
  const FuzzTarget& target = GetParam();
  Mutate(target.run, target.seeds(), MutationsOr(target.mutations), 31);
}

std::string NameOf(const ::testing::TestParamInfo<FuzzTarget>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Client, TargetMutation, ::testing::ValuesIn(ClientTargets()), NameOf);
INSTANTIATE_TEST_SUITE_P(Session, TargetMutation, ::testing::ValuesIn(SessionTargets()), NameOf);
INSTANTIATE_TEST_SUITE_P(Text, TargetMutation, ::testing::ValuesIn(TextTargets()), NameOf);
INSTANTIATE_TEST_SUITE_P(Pack, TargetMutation, ::testing::ValuesIn(PackTargets()), NameOf);

}  // namespace
}  // namespace sluice
