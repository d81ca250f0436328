# The project's target functions. Every library, program, test and benchmark is declared by one of them,
# so that warnings, sanitizers and labels are the same everywhere.
include(CMakeParseArguments)

set(SLUICE_SANITIZE "" CACHE STRING "Value of -fsanitize= (address,undefined or thread), empty for none")

add_library(sluice_options INTERFACE)
target_include_directories(sluice_options INTERFACE ${CMAKE_SOURCE_DIR})
# -ffp-contract=off: kernels/ARITHMETIC.md says where a fused multiply-add stands; the compiler adds none.
target_compile_options(sluice_options INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off
                                                -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(sluice_options INTERFACE -Wthread-safety)
endif()
if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

# One precompiled header for all tests: GoogleTest and what nearly every test includes beside it cost more than the
# tests themselves.
file(WRITE ${CMAKE_BINARY_DIR}/test_pch.cc "// Owner of the tests' precompiled header.\n")
add_library(sluice_test_pch STATIC ${CMAKE_BINARY_DIR}/test_pch.cc)
target_link_libraries(sluice_test_pch PRIVATE sluice_options GTest::gtest GTest::gmock Threads::Threads)
target_precompile_headers(sluice_test_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h> <cstdint> <memory> <string> <vector>
                          <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/time/time.h>)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -fpch-preprocess lets ccache hit with a precompiled header. g++ 12 warns without reason about "text" + std::string
  # at -O3 (its bug 105651), which tests do everywhere.
  set(SLUICE_TEST_OPTIONS -fpch-preprocess -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
target_compile_options(sluice_test_pch PRIVATE ${SLUICE_TEST_OPTIONS})

# What the sanitizer presets build: sluice_test(... ASAN TSAN) adds its program to them.
add_custom_target(sanitized_tests)
add_custom_target(threaded_tests)

# sluice_library(NAME SRCS a.cc ... [DEPS targets ...])
function(sluice_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_link_libraries(${name} PUBLIC sluice_options ${arg_DEPS} Threads::Threads)
endfunction()

# sluice_program(NAME SRCS ... [DEPS ...]): lands in build/<preset>/bin.
function(sluice_program name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sluice_options ${arg_DEPS} Threads::Threads)
endfunction()

# sluice_test(NAME SRCS ... [DEPS ...] [LABELS unit|e2e|stress|gpu ...] [TIMEOUT seconds] [ENV K=V ...] [SERIAL] [ASAN] [TSAN])
# One ctest entry a program; runs in the source tree's root, so data is named tests/.../data.
# ASAN, TSAN: also run by CI under these sanitizers; TSAN only for programs without gRPC (Debian's is uninstrumented).
function(sluice_test name)
  cmake_parse_arguments(arg "SERIAL;ASAN;TSAN" "TIMEOUT" "SRCS;DEPS;LABELS;ENV;ARGS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sluice_options ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main Threads::Threads)
  target_precompile_headers(${name} REUSE_FROM sluice_test_pch)
  target_compile_options(${name} PRIVATE ${SLUICE_TEST_OPTIONS})
  # A test with definitions of its own (spdlog's, say) is compiled without it: no error, only slower.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests PCH_WARN_INVALID OFF)
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(arg_ASAN)
    add_dependencies(sanitized_tests ${name})
    list(APPEND arg_LABELS asan)
  endif()
  if(arg_TSAN)
    add_dependencies(threaded_tests ${name})
    list(APPEND arg_LABELS tsan)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
                       ENVIRONMENT "SLUICE_BIN=${CMAKE_BINARY_DIR}/bin;${arg_ENV}")
  if(arg_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# sluice_bench(NAME SRCS ... [DEPS ...]): a benchmark program, built by default, not run by ctest.
function(sluice_bench name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sluice_options ${arg_DEPS} Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()
