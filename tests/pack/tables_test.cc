// The parsers of manifest.json and extents.bin on well-formed and on hostile input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "common/base/status.h"
#include "pack/pack.h"
#include "pack/pack_plan.h"
#include "pack/pack_tables.h"
#include "pack/row_layout.h"
#include "pack/writer/staging.h"
#include "pack/writer/synth.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// A manifest and table that belong together, without any payload.
struct Tables {
  Manifest manifest;
  ExtentTable table;
};

Tables MakeTables(ExpertLayout layout = ExpertLayout::kUpGateDown) {
  Tables t;
  SynthOptions options;
  options.shape = "tiny";
  options.layers = 2;
  t.manifest.config = *SynthModel(options);
  t.manifest.expert_formats.resize(1);
  for (EncodingDescriptor& part : t.manifest.expert_formats[0].parts)
    part = MakeDescriptor(Encoding::kQ8, 64);
  t.manifest.expert_formats[0].layout = layout;
  t.manifest.chat_template = "{{ \"\xc3\xa9\" }}\n";
  t.manifest.generation.temperature = 0.7;
  t.manifest.generation.top_k = 40;
  t.manifest.tokenizer_files["tokenizer.json"] = {12, {1, 2}};
  t.manifest.provenance = {"0123", "bits=q8", "test"};
  const auto specs = DenseSpecs(t.manifest.config, IsByOutputs(layout));
  std::vector<EncodingDescriptor> encodings;
  for (const DenseSpec& spec : specs) {
    encodings.push_back(MakeDescriptor(spec.kind == DenseKind::kVector ? Encoding::kF32 : Encoding::kBf16));
  }
  t.manifest.dense_tensors = PlaceDense(specs, encodings, 1 << 20);
  ExtentPlanner planner;
  EXPECT_TRUE(planner.AddDense(specs, t.manifest.dense_tensors).ok());
  const ExpertPlan plan = PlanExpert(t.manifest.expert_formats[0], 256, t.manifest.config.hidden);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t e = 0; e < 32; ++e) EXPECT_TRUE(planner.AddExpert(layer, e, 0, plan).ok());
  }
  for (int f = 0; f < kPackFileCount; ++f) {
    t.manifest.payload[f].bytes = planner.file_bytes(static_cast<PackFile>(f));
  }
  t.table.entries = planner.extents();
  for (uint64_t i = 0; i < planner.checksum_count(); ++i) t.table.checksums.push_back(i * 77);
  return t;
}

TEST(Manifest, RoundTripsEveryField) {
  Tables t = MakeTables();
  const std::string text = SerializeManifest(&t.manifest);
  auto parsed = ParseManifest(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config, t.manifest.config);
  EXPECT_EQ(parsed->generation, t.manifest.generation);
  EXPECT_EQ(parsed->chat_template, t.manifest.chat_template);
  EXPECT_EQ(parsed->expert_formats, t.manifest.expert_formats);
  EXPECT_EQ(parsed->dense_tensors, t.manifest.dense_tensors);
  EXPECT_EQ(parsed->payload, t.manifest.payload);
  EXPECT_EQ(parsed->extent_table, t.manifest.extent_table);
  EXPECT_EQ(parsed->tokenizer_files, t.manifest.tokenizer_files);
  EXPECT_EQ(parsed->provenance, t.manifest.provenance);
  EXPECT_EQ(parsed->model_id, t.manifest.model_id);
  EXPECT_EQ(SerializeManifest(&*parsed), text);
}

TEST(Manifest, FeatureBitsFollowTheFormats) {
  Tables t = MakeTables();
  EXPECT_EQ(FeaturesOf(t.manifest), 0u);
  t.manifest.expert_formats[0].layout = ExpertLayout::kGateUpdown;
  EXPECT_EQ(FeaturesOf(t.manifest), kFeatureInterleaved);
  t.manifest.expert_formats.push_back(t.manifest.expert_formats[0]);
  t.manifest.expert_formats[1].parts[0] = {Encoding::kQ2, 8, 16, 4};
  EXPECT_EQ(FeaturesOf(t.manifest),
            kFeatureInterleaved | kFeatureMixedFormats | kFeatureLowBits | kFeatureSuperGroups);
}

TEST(Manifest, LayoutsByOutputsStandAlone) {
  Tables t = MakeTables(ExpertLayout::kUpGateOutputs);
  ExpertFormat& format = t.manifest.expert_formats[0];
  EXPECT_EQ(FeaturesOf(t.manifest), kFeatureOutputs);
  format.parts[static_cast<size_t>(Part::kDown)] = MakeDescriptor(blocks::kQ4_K);
  EXPECT_EQ(FeaturesOf(t.manifest), kFeatureOutputs | kFeatureBlocks);
  const auto parsed = ParseManifest(SerializeManifest(&t.manifest));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->expert_formats, t.manifest.expert_formats);
  t.manifest.expert_formats.push_back(format);
  t.manifest.expert_formats[1].layout = ExpertLayout::kUpGateDown;
  t.manifest.expert_formats[1].parts[static_cast<size_t>(Part::kDown)] = MakeDescriptor(Encoding::kQ8);
  const absl::Status mixed = ParseManifest(SerializeManifest(&t.manifest)).status();
  EXPECT_EQ(mixed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(mixed.message(), HasSubstr("up|gate|outputs"));
}

TEST(Manifest, CutTextsAreRefused) {
  Tables t = MakeTables();
  const std::string text = SerializeManifest(&t.manifest);
  for (size_t size = 0; size < text.size(); size += 1 + size / 10) {
    EXPECT_EQ(ParseManifest(text.substr(0, size)).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(ExtentTableTest, RoundTripsAndRefusesEveryLength) {
  const Tables t = MakeTables();
  const std::string bytes = SerializeExtentTable(t.table);
  const auto parsed = ParseExtentTable(Bytes(bytes));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->entries, t.table.entries);
  EXPECT_EQ(parsed->checksums, t.table.checksums);
  for (size_t size = 0; size < bytes.size(); size += 7) {
    EXPECT_FALSE(ParseExtentTable(Bytes(bytes.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(ParseExtentTable(Bytes(bytes + "12345678")).ok());
}

TEST(ExtentTableTest, HostileCountsAreRefusedBeforeAllocation) {
  const std::string good = SerializeExtentTable(MakeTables().table);
  for (const uint64_t count : {uint64_t{0}, uint64_t{1} << 32, uint64_t{1} << 61, UINT64_MAX}) {
    for (const size_t at : {24, 32}) {
      std::string bytes = good;
      std::memcpy(bytes.data() + at, &count, 8);
      EXPECT_FALSE(ParseExtentTable(Bytes(bytes)).ok());
    }
  }
}

TEST(ExtentTableTest, FieldsOutOfPlaceAreNamed) {
  const Tables good = MakeTables();
  const auto error = [&](const std::function<void(ExtentEntry*)>& edit) {
    ExtentTable table = good.table;
    edit(&table.entries[7]);
    const auto result = ParseExtentTable(Bytes(SerializeExtentTable(table)));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
    return std::string(result.status().message());
  };
  EXPECT_THAT(error([](ExtentEntry* e) { e->kind = static_cast<ExtentKind>(3); }),
              HasSubstr("entry 7: unknown kind"));
  EXPECT_THAT(error([](ExtentEntry* e) { e->file = 3; }), HasSubstr("unknown file"));
  EXPECT_THAT(error([](ExtentEntry* e) { e->length += 1; }), HasSubstr("4096"));
  EXPECT_THAT(error([](ExtentEntry* e) { e->length = 0; }), HasSubstr("4096"));
  EXPECT_THAT(error([](ExtentEntry* e) { e->offset += 4096; }), HasSubstr("follow"));
  EXPECT_THAT(error([](ExtentEntry* e) { e->first_checksum += 1; }), HasSubstr("checksum index"));
  EXPECT_THAT(error([](ExtentEntry* e) { e->length = UINT64_MAX & ~uint64_t{4095}; }), HasSubstr("entry 7"));
}

TEST(PackTables, BelongTogether) {
  const Tables good = MakeTables();
  ASSERT_TRUE(Pack::FromTables("dir", good.manifest, good.table).ok());
  const auto refused = [&](const std::function<void(Tables*)>& edit) {
    Tables t = good;
    edit(&t);
    const absl::Status status = Pack::FromTables("dir", t.manifest, t.table).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  };
  refused([](Tables* t) { t->manifest.config.hidden = 96; });
  refused([](Tables* t) { t->manifest.config.layers.pop_back(); });
  refused([](Tables* t) { t->manifest.config.layers[1].moe.experts = 33; });
  refused([](Tables* t) { t->manifest.config.layers[1].moe.experts = 65535; });
  refused([](Tables* t) { t->manifest.config.layers[1].moe.expert_width = 300; });
  refused([](Tables* t) { t->manifest.config.tied_embeddings = true; });
  refused([](Tables* t) { t->manifest.config.layers[0].attention.qk_norm = QkNorm::kPerHead; });
  refused([](Tables* t) { t->manifest.expert_formats.clear(); });
  refused([](Tables* t) { t->manifest.expert_formats[0].layout = ExpertLayout::kUpGatedown; });
  refused([](Tables* t) { t->manifest.expert_formats[0].parts[1] = MakeDescriptor(Encoding::kBf16); });
  refused([](Tables* t) { t->manifest.dense_tensors.pop_back(); });
  refused([](Tables* t) { t->manifest.dense_tensors[3].name = "layers.0.w"; });
  refused([](Tables* t) { t->manifest.dense_tensors[3].rows += 1; });
  refused([](Tables* t) { t->manifest.dense_tensors[3].offset += 32; });
  refused([](Tables* t) { t->manifest.dense_tensors[3].offset = 0; });
  refused([](Tables* t) { t->manifest.dense_tensors[3].offset = UINT64_MAX - 63; });
  refused([](Tables* t) { t->manifest.dense_tensors[1].encoding = MakeDescriptor(Encoding::kBf16); });
  refused([](Tables* t) { t->manifest.dense_tensors.back().extent += 1; });
  refused([](Tables* t) { t->manifest.payload[1].bytes += 4096; });
  refused([](Tables* t) { t->table.entries.pop_back(); });
  refused([](Tables* t) { t->table.entries[9].format = 1; });
  refused([](Tables* t) { std::swap(t->table.entries[9].expert, t->table.entries[12].expert); });
}

TEST(PackTables, AccessorsAgreeWithTheTable) {
  const Tables t = MakeTables();
  const auto opened = Pack::FromTables("dir", t.manifest, t.table);
  ASSERT_TRUE(opened.ok());
  const Pack& pack = **opened;
  EXPECT_EQ(pack.expert_total(), 64u);
  EXPECT_EQ(pack.largest_expert_bytes(), pack.expert_bytes(1, 31));
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t e = 0; e < 32; ++e) {
      const ExtentRange range = pack.expert_extents(layer, e);
      ASSERT_EQ(range.count, 3u);
      for (uint32_t i = 0; i < range.count; ++i) {
        const ExtentEntry& entry = pack.extents()[range.first + i];
        EXPECT_EQ(entry.layer, layer);
        EXPECT_EQ(entry.expert, e);
        EXPECT_EQ(entry.offset, bytes);
        bytes += entry.length;
      }
      EXPECT_EQ(pack.part(layer, e, Part::kDown).extent, range.first + 2);
    }
  }
  EXPECT_EQ(bytes, pack.total_expert_bytes());
  EXPECT_EQ(pack.FindDense("layers.1.router")->rows, 32u);
  EXPECT_EQ(pack.FindDense("nothing"), nullptr);
  EXPECT_THAT(pack.ExtentName(pack.expert_extents(1, 5).first + 2),
              HasSubstr("layer 1, expert 5, stream 2 down"));
  EXPECT_THAT(pack.ExtentName(0), HasSubstr("dense"));
}

TEST(PackTables, PartsByOutputsAreOutputsLong) {
  const Tables t = MakeTables(ExpertLayout::kUpGateOutputs);
  const auto opened = Pack::FromTables("dir", t.manifest, t.table);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Pack& pack = **opened;
  EXPECT_TRUE(pack.by_outputs());
  const PartView down = pack.part(1, 3, Part::kDown);
  EXPECT_EQ(down.rows, pack.config().hidden);
  EXPECT_EQ(down.cols, 256u);
  EXPECT_EQ(pack.part(1, 3, Part::kUp).rows, 256u);
  EXPECT_GE(pack.extents()[down.extent].length, uint64_t{down.rows} * down.stride);
}

TEST(JournalTest, WholeRecordsAreReadAndTornOnesEndIt) {
  TempDir dir;
  const Digest128 fingerprint{3, 4};
  const JournalRecord records[] = {{7, {1, 2, 3}, {{5, 6}}}, {8, {}, {}}, {9, {4}, {{1, 1}, {2, 2}}}};
  {
    auto journal = Journal::Open(dir.path(), fingerprint);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_TRUE((*journal)->found().empty());
    for (const JournalRecord& record : records) ASSERT_TRUE((*journal)->Append(record).ok());
  }
  const std::string bytes = ReadAll(dir.File("journal"));
  uint64_t valid = 0;
  const std::vector<JournalRecord> all = ParseJournal(Bytes(bytes), fingerprint, &valid);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(valid, bytes.size());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].unit, records[i].unit);
    EXPECT_EQ(all[i].checksums, records[i].checksums);
    EXPECT_EQ(all[i].digests, records[i].digests);
  }
  EXPECT_TRUE(ParseJournal(Bytes(bytes), {3, 5}, &valid).empty());
  EXPECT_EQ(valid, 0u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_LT(ParseJournal(Bytes(bytes.substr(0, size)), fingerprint, &valid).size(), 3u);
    EXPECT_LE(valid, size);
  }
  for (size_t at = 32; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] ^= 0x10;
    EXPECT_LT(ParseJournal(Bytes(damaged), fingerprint, &valid).size(), 3u) << at;
  }
}

TEST(JournalTest, IsLockedAndDropsAnotherFingerprint) {
  TempDir dir;
  {
    const auto journal = Journal::Open(dir.path(), {1, 1});
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE((*journal)->Append({7, {1}, {}}).ok());
    EXPECT_EQ(Journal::Open(dir.path(), {1, 1}).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ((*Journal::Open(dir.path(), {1, 1}))->found().size(), 1u);
  EXPECT_TRUE((*Journal::Open(dir.path(), {1, 2}))->found().empty());
  EXPECT_TRUE((*Journal::Open(dir.path(), {1, 1}))->found().empty());
}

}  // namespace
}  // namespace sluice
