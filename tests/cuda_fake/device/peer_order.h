// Order between two processes that share a memory file: the one that made it, and the one that imported it.
//
// No GPU waits across processes, so what orders two of them is what their hosts tell each other, and a host
// can only tell what it knows. So an operation of one process is before one of the other if the first one's
// host had learnt that it was done (an event or a stream waited for or asked) when the other was submitted,
// by the clock that both processes share. Two operations on the same bytes, one of them writing, of which
// neither is before the other are reported by the process that comes second, whatever order they ran in.
//
// Behind its data the file has a trailer that both map: for each 4-byte word the last operation of either
// side that read it and that wrote it, and for each side its operations, by number, with the time when its
// host learnt of their end. The last of several readers on one side is remembered.
//
// Work dies with its process: what a killed one had not finished orders nobody. A process that has imported
// its own file has one shadow for both mappings, which knows more.
//
// Thread safety: thread-compatible; two processes at once.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "tests/cuda_fake/device/operations.h"
#include "tests/cuda_fake/interp/region.h"
#include "tests/cuda_fake/report.h"

namespace sluice::cuda_fake {

class PeerOrder : public PeerWatch {
 public:
  // Makes a file of `data_bytes`, a multiple of 4, with a trailer; false: there is no room.
  static bool Resize(int fd, uint64_t data_bytes);
  // The bytes of data of a file; of one that is not the fake's, all.
  static uint64_t DataBytes(int fd);
  // Takes the maker's side of a file, or the importer's, from a process that has died if need be; nullptr for
  // a file that is not the fake's, or is this process' own.
  static std::unique_ptr<PeerOrder> Make(int fd, const Operations* operations, ReportSink* reports);
  static std::unique_ptr<PeerOrder> Import(int fd, const Operations* operations, ReportSink* reports);
  ~PeerOrder() override;
  PeerOrder(const PeerOrder&) = delete;
  PeerOrder& operator=(const PeerOrder&) = delete;

  void Access(uint32_t operation, uint64_t offset, uint64_t bytes, bool writes) override;
  // The other side's process, if it lives and has the file; else 0.
  int OpenElsewhere() const;
  // Notes the operations that the host now knows to be done.
  void HostHasLearnt();
  // Nothing of this process is under way any more.
  void Forget();

 private:
  struct Trailer;
  struct Side;
  struct Word;
  PeerOrder(Trailer* trailer, uint64_t bytes, int side, const Operations* operations, ReportSink* reports);
  static std::unique_ptr<PeerOrder> Open(int fd, int side, const Operations* operations, ReportSink* reports);
  uint32_t NumberOf(uint32_t operation);
  void Check(uint32_t other, bool other_wrote, uint32_t operation, uint64_t offset, bool writes);

  Trailer* const trailer_;
  const uint64_t bytes_;  // of the trailer
  const int side_;
  Side* own_;
  Side* peer_;
  Word* words_;
  const Operations* const operations_;
  ReportSink* const reports_;
  bool counted_ = false;  // in own_->open
  // Numbers in the file of the operations that have touched it and are not known to be done.
  std::unordered_map<uint32_t, uint32_t> open_;
  uint32_t last_operation_ = 0;  // to touch it, and its number
  uint32_t last_number_ = 0;
};

}  // namespace sluice::cuda_fake
