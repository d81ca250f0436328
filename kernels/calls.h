// All operations, checked and resolved. Resolve(resolver, args) returns the call of an operation; an error
// names the operation, the argument and the numbers.
//
// Thread safety: see each header.
#pragma once

#include "kernels/attention_calls.h"
#include "kernels/compress_calls.h"
#include "kernels/expert_calls.h"
#include "kernels/row_calls.h"
#include "kernels/state_calls.h"
#include "kernels/stream_calls.h"
