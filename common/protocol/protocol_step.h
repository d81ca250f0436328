// Interleaving points of the shared-memory protocols, and the points where a client sleeps.
//
// In the product ProtocolStep() is empty and the other two are poll(2) and epoll_wait(2). The simulation
// (tests/simulation) compiles the same sources with SLUICE_SIMULATION: there every step may switch to another
// simulated process, so that each order of single operations can happen, and a sleep takes virtual time.
//
// Thread safety: free functions, safe from any thread; in the simulation there is one thread.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

namespace sluice {

// Each step is named after the operation that follows it.
enum class ProtocolPoint {
  kLeasePin,       // client: pins + 1
  kLeaseCheck,     // client: load of the state
  kLeaseUndo,      // client: pins - 1, nothing was leased
  kReleaseStamp,   // client: uses, last_step and last_stamp
  kReleaseUnpin,   // client: pins - 1
  kPublishPlace,   // weightd: place and then state
  kPublishState,   // weightd: state RESIDENT, or any other outside an eviction
  kEvictMark,      // weightd: state EVICTING
  kEvictCheck,     // weightd: load of one session's pins
  kEvictDecide,    // weightd: state ABSENT, or RESIDENT again
  kRingCopy,       // either: an entry
  kRingPublish,    // either: a cursor
  kRingCheck,      // either: the other side's cursor
  kSleepAnnounce,  // either: "I am about to sleep"
  kSleepCheck,     // either: the last look before sleeping
  kSleepReset,     // either: resets the other side's announcement, to wake it
  kWake            // either: writes the bell
};

#ifdef SLUICE_SIMULATION
// `word` is the shared word that the operation acts on.
void ProtocolStep(ProtocolPoint point, const volatile void* word);
int ProtocolPoll(pollfd* fds, nfds_t count, int timeout_ms);
int ProtocolEpollWait(int epoll, epoll_event* events, int max_events, int timeout_ms);
#else
inline void ProtocolStep(ProtocolPoint, const volatile void*) {}
inline int ProtocolPoll(pollfd* fds, nfds_t count, int timeout_ms) { return poll(fds, count, timeout_ms); }
inline int ProtocolEpollWait(int epoll, epoll_event* events, int max_events, int timeout_ms) {
  return epoll_wait(epoll, events, max_events, timeout_ms);
}
#endif

}  // namespace sluice
