#!/bin/sh
# usage: run_nvcc.sh LOG COMMAND...: runs nvcc and keeps what ptxas says of the kernels in LOG; shown only if nvcc fails.
log=$1
shift
"$@" >"$log" 2>&1 || {
  status=$?
  cat "$log" >&2
  exit $status
}
