// Of an instruction set without weighted sums by panels (panel_down_avx512-inl.h).
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: nothing is here.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kDownByPanels = false;

template <QuantKind kKind, uint32_t kUnits>
void PanelDown(const QuantDownCall& call);
