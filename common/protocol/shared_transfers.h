// SharedTransfers: which requests wait for which transfer. A transfer brings rows into DRAM (its fill) and
// copies them into a slab; requests of a session for the same rows in the same place share one. weightd uses
// it for the requests of its sessions, inferd where it pulls (inferd/model/pull_client.h), and device sim
// with a modelled link (inferd/sim/virtual_weight_client.h).
//
// Its owner fills, pins or leases the sources, and completes every request once: when its transfer ends, or
// earlier when the request leaves it. A transfer's life: Join, BeginFill .. EndFill as often as needed,
// StartCopy, End.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/encoding.h"
#include "common/protocol/request_class.h"
#include "common/protocol/transfer_engine.h"

namespace sluice {

// Rows and their place in a slab: where all fields are equal, one copy serves both requests.
struct TransferKey {
  uint64_t session = 0;
  uint32_t pack = 0;
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint32_t extent = 0;  // of dense weights, else the owner's value for none
  PartSet parts = 0;
  uint32_t slab = 0;
  std::array<uint64_t, kPartCount> base = {};
  std::array<uint64_t, kPartCount> stride = {};
  std::vector<uint32_t> neurons;  // empty: all
  bool operator==(const TransferKey&) const = default;
};

// A request that waits for a transfer.
struct TransferWaiter {
  uint64_t id = 0;  // unique among the session's requests
  RequestClass request_class = RequestClass::kDemand;
  uint64_t step = 0;
  uint32_t layer = 0;
  // Word in which a copy counts tiles if this is its first request; may be null.
  std::shared_ptr<std::atomic<uint64_t>> progress;
};

// `Work` is what the owner keeps for a transfer. `Engine` copies: a TransferEngine, or what has its functions
// Promote, Cancel and CancelIfNotStarted; without its Submit the owner starts a copy by itself, and sets
// `copying`.
template <typename Work, typename Engine = TransferEngine>
class SharedTransfers {
 public:
  struct Transfer {
    uint64_t number = 0;  // never 0
    TransferKey key;
    RequestClass request_class = RequestClass::kDemand;  // demand from its first demand on
    bool copying = false;
    bool closed = false;  // cancelled: no request joins it, and no copy of it starts
    uint64_t fill = 0;    // number of the running fill; 0: none
    // The first one is charged for the bytes. Empty: its session was dropped.
    std::vector<TransferWaiter> waiters;
    Work work;
  };
  struct Hooks {
    // Completes a request CANCELLED whose transfer goes on for others.
    std::function<void(uint64_t session, uint64_t id)> left;
    // Ends a transfer's fill early; the transfer ends with it.
    std::function<void(const Transfer& transfer)> cancel_fill;
  };

  // `engine` may be null as long as nothing is copied.
  SharedTransfers(Engine* engine, Hooks hooks) : engine_(engine), hooks_(std::move(hooks)) {}

  // Returns the transfer if the caller must fill it now: it is new, or a demand has joined a prefetch that is
  // being filled. Null: the request waits for a transfer that needs nothing. REQUIRES: not Contains(waiter).
  Transfer* Join(TransferKey key, const TransferWaiter& waiter) {
    Transfer* const same = FindOpen(key);
    if (same == nullptr) {
      Transfer& transfer = transfers_[next_number_];
      transfer.number = requests_[{key.session, waiter.id}] = next_number_++;
      transfer.key = std::move(key);
      transfer.request_class = waiter.request_class;
      transfer.waiters.push_back(waiter);
      return &transfer;
    }
    requests_[{key.session, waiter.id}] = same->number;
    const bool raised =
        waiter.request_class == RequestClass::kDemand && same->request_class == RequestClass::kPrefetch;
    const bool refill = raised && !same->copying;
    // A copy counts its tiles for its first request; a demand reads them.
    same->waiters.insert(refill ? same->waiters.begin() : same->waiters.end(), waiter);
    if (raised) {
      same->request_class = RequestClass::kDemand;
    }
    if (raised && same->copying) {
      engine_->Promote(same->number);
    }
    return refill ? same : nullptr;
  }
  bool Contains(uint64_t session, uint64_t id) const { return requests_.contains({session, id}); }
  // Null: there is none. Pointers are valid until the transfer ends.
  Transfer* Find(uint64_t number) {
    const auto found = transfers_.find(number);
    return found == transfers_.end() ? nullptr : &found->second;
  }
  const Transfer* FindByRequest(uint64_t session, uint64_t id) const {
    const auto found = requests_.find({session, id});
    return found == requests_.end() ? nullptr : &transfers_.at(found->second);
  }
  const std::map<uint64_t, Transfer>& transfers() const { return transfers_; }

  // Returns the number of a new fill of the transfer, by which EndFill() knows it. The previous fill no
  // longer counts.
  uint64_t BeginFill(Transfer* transfer) {
    transfer->fill = next_number_++;
    fills_[transfer->fill] = transfer->number;
    return transfer->fill;
  }
  // The transfer whose fill this was; null: a later fill replaced it, or the session was dropped.
  Transfer* EndFill(uint64_t fill) {
    const auto found = fills_.extract(fill);
    Transfer* const transfer = found.empty() ? nullptr : Find(found.mapped());
    if (transfer == nullptr || transfer->fill != fill) {
      return nullptr;
    }
    transfer->fill = 0;
    return transfer;
  }
  // Submits the copy. `job`: its plan, slab and link; the engine reports its end by the transfer's number.
  void StartCopy(Transfer* transfer, TransferJob job) {
    const TransferWaiter& first = transfer->waiters.front();
    job.number = transfer->number;
    job.session = transfer->key.session;
    job.request_class = transfer->request_class;
    job.progress = first.progress;
    job.request = first.id;
    transfer->copying = true;
    engine_->Submit(std::move(job));
  }
  // Removes the transfer, whatever the reason. The caller completes its waiters, in their order.
  Transfer End(uint64_t number) {
    Transfer ended = std::move(transfers_.extract(number).mapped());
    for (const TransferWaiter& waiter : ended.waiters) {
      requests_.erase({ended.key.session, waiter.id});
    }
    return ended;
  }

  // Cancels a request: it leaves its transfer, and the last one takes the transfer with it. The first request
  // of a copy that others wait for stays, as its progress word is in use. False: there is no such request.
  bool Cancel(uint64_t session, uint64_t id) {
    const auto found = requests_.find({session, id});
    if (found == requests_.end()) {
      return false;
    }
    Transfer& transfer = transfers_.at(found->second);
    if (transfer.waiters.size() > 1) {
      Leave(&transfer, id);
      return true;
    }
    transfer.closed = true;
    if (transfer.copying) {
      engine_->Cancel(transfer.number);
    } else {
      hooks_.cancel_fill(transfer);
    }
    return true;
  }
  // Cancels the session's prefetches from `pack` that are not after (step, layer); returns their number. A
  // copy that has started goes on, and so does a running fill, whose bytes are not copied.
  uint64_t CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer) {
    const auto [begin, end] = RequestsOf(session);
    const std::vector<std::pair<const RequestId, uint64_t>> requests(begin, end);
    uint64_t cancelled = 0;
    // From the last, as the first request of a copy stays while others wait.
    for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
      const uint64_t id = request->first.second;
      Transfer& transfer = transfers_.at(request->second);
      const TransferWaiter& waiter = *std::find_if(transfer.waiters.begin(), transfer.waiters.end(),
                                                   [id](const TransferWaiter& w) { return w.id == id; });
      const bool late = waiter.step > step || (waiter.step == step && waiter.layer > layer);
      if (late || transfer.key.pack != pack || transfer.closed ||
          transfer.request_class != RequestClass::kPrefetch) {
        continue;
      }
      if (transfer.waiters.size() > 1) {
        cancelled += Leave(&transfer, id) ? 1 : 0;
      } else if (!transfer.copying || engine_->CancelIfNotStarted(transfer.number)) {
        transfer.closed = true;
        ++cancelled;
      }
    }
    return cancelled;
  }
  // Forgets the session's requests, and its transfers except copies, which are cancelled and end without
  // waiters.
  void DropSession(uint64_t session) {
    for (auto at = transfers_.begin(); at != transfers_.end();) {
      Transfer& transfer = (at++)->second;
      if (transfer.key.session != session) {
        continue;
      }
      for (const TransferWaiter& waiter : std::exchange(transfer.waiters, {})) {
        requests_.erase({session, waiter.id});
      }
      transfer.closed = true;
      fills_.erase(transfer.fill);
      if (transfer.copying) {
        engine_->Cancel(transfer.number);
      } else {
        transfers_.erase(transfer.number);
      }
    }
  }

 private:
  using RequestId = std::pair<uint64_t, uint64_t>;  // session, id
  using Requests = std::map<RequestId, uint64_t>;   // to the transfer's number

  std::pair<Requests::iterator, Requests::iterator> RequestsOf(uint64_t session) {
    return {requests_.lower_bound({session, 0}), requests_.lower_bound({session + 1, 0})};
  }
  Transfer* FindOpen(const TransferKey& key) {
    for (auto [at, end] = RequestsOf(key.session); at != end; ++at) {
      Transfer& transfer = transfers_.at(at->second);
      if (!transfer.closed && transfer.key == key) {
        return &transfer;
      }
    }
    return nullptr;
  }
  // REQUIRES: others wait too.
  bool Leave(Transfer* transfer, uint64_t id) {
    if (transfer->copying && transfer->waiters.front().id == id) {
      return false;
    }
    std::erase_if(transfer->waiters, [id](const TransferWaiter& waiter) { return waiter.id == id; });
    requests_.erase({transfer->key.session, id});
    hooks_.left(transfer->key.session, id);
    return true;
  }

  Engine* const engine_;
  const Hooks hooks_;
  uint64_t next_number_ = 1;
  std::map<uint64_t, Transfer> transfers_;  // by number
  Requests requests_;
  std::unordered_map<uint64_t, uint64_t> fills_;  // running ones, to the transfer's number
};

}  // namespace sluice
