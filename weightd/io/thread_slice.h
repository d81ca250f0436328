// The share of a CPU's time that a thread asks for at a time.
//
// Thread safety: a free function; it concerns the thread that calls it.
#ifndef SLUICE_WEIGHTD_THREAD_SLICE_H_
#define SLUICE_WEIGHTD_THREAD_SLICE_H_

namespace sluice {

// Asks the kernel for short slices, for a thread that wakes often and runs briefly: where all CPUs compute it
// is then let in sooner, and the disk is not left idle meanwhile. Takes nothing from others in sum. Needs no
// privilege; kernels before 6.12 take no notice, and a refusal changes nothing but that.
void AskForShortSlices();

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_THREAD_SLICE_H_
