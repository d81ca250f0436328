// All operations, checked and resolved. Resolve(resolver, args) returns the call of an operation; an error
// names the operation, the argument and the numbers.
//
// Thread safety: see each header.
#pragma once

#include "kernels/calls/attention_calls.h"
#include "kernels/calls/delta_calls.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/calls/matmul_calls.h"
#include "kernels/calls/routed_calls.h"
#include "kernels/calls/router_calls.h"
#include "kernels/calls/row_calls.h"
#include "kernels/calls/state_calls.h"
