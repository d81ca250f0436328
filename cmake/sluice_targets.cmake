# The project's target functions. Every library, program, test and benchmark is declared by one of them,
# so that warnings, sanitizers and labels are the same everywhere.
include(CMakeParseArguments)

set(SLUICE_SANITIZE "" CACHE STRING "Value of -fsanitize= (address,undefined or thread), empty for none")

add_library(sluice_options INTERFACE)
target_include_directories(sluice_options INTERFACE ${CMAKE_SOURCE_DIR})
# -ffp-contract=off: kernels/ARITHMETIC.md lists the fused multiply-adds; the compiler adds none.
target_compile_options(sluice_options INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off
                                                -fno-math-errno)
# Only some libraries ask for -pthread, and g++ refuses a precompiled header that was made without it.
target_compile_options(sluice_options INTERFACE -pthread)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Loops join booleans by & so that they become vectors.
  target_compile_options(sluice_options INTERFACE -Wthread-safety -Wno-bitwise-instead-of-logical)
endif()
if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

# lld links a program in a tenth of the time that GNU ld takes; the many test programs make that minutes of a build.
find_program(SLUICE_LLD ld.lld)
if(SLUICE_LLD)
  add_link_options(-fuse-ld=lld)
endif()

add_library(sluice_absl INTERFACE)
target_link_libraries(sluice_absl INTERFACE absl::cleanup absl::cord absl::flat_hash_map absl::flat_hash_set absl::span
                      absl::status absl::statusor absl::str_format absl::strings absl::synchronization absl::time)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -fpch-preprocess lets ccache hit with a precompiled header. g++ 12 gives false warnings about copies of strings at
  # -O3 (its bugs 105651 and 105329), and loses the system header flag in a precompiled header.
  set(SLUICE_PCH_OPTIONS -fpch-preprocess -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread
      -Wno-array-bounds)
endif()

set(SLUICE_COMMON_HEADERS <algorithm> <array> <atomic> <cstdint> <cstring> <functional> <map> <memory> <optional> <string>
    <string_view> <utility> <vector> <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h>
    <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/synchronization/mutex.h> <absl/time/time.h>
    <absl/types/span.h>)

# One precompiled header for all tests: GoogleTest and the headers that nearly every test includes cost more than the
# tests themselves.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_pch.cc CONTENT "// Owner of the tests' precompiled header.\n")
add_library(sluice_test_pch STATIC ${CMAKE_BINARY_DIR}/test_pch.cc)
target_link_libraries(sluice_test_pch PRIVATE sluice_options GTest::gtest GTest::gmock nlohmann_json::nlohmann_json Threads::Threads)
target_precompile_headers(sluice_test_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h> ${SLUICE_COMMON_HEADERS}
                          <absl/container/flat_hash_set.h> <nlohmann/json.hpp> <filesystem> <fstream> <random> <set> <thread>
                          <immintrin.h>)

# Tests spend their run time in the tested code; optimisation beyond -O1 is a third of their compile time.
set(SLUICE_TEST_OPTIONS ${SLUICE_PCH_OPTIONS} -O1)
target_compile_options(sluice_test_pch PRIVATE ${SLUICE_TEST_OPTIONS})

# Programs of the sanitizer presets: sluice_test(... ASAN TSAN) adds its program to them.
add_custom_target(sanitized_tests)
add_custom_target(all_sanitized_tests)
add_dependencies(all_sanitized_tests sanitized_tests)
add_custom_target(threaded_tests)

# Headers that nearly every source includes, parsed once; a second set for the modules that read or write JSON and a
# third for those that use gRPC: these headers cost more than most sources. -fpch-preprocess lets ccache hit with
# them.
function(sluice_pch name)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cc CONTENT "// Owner of a precompiled header.\n")
  add_library(${name} STATIC ${CMAKE_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE sluice_options sluice_absl nlohmann_json::nlohmann_json Threads::Threads)
  target_compile_options(${name} PRIVATE ${SLUICE_PCH_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
sluice_pch(sluice_pch ${SLUICE_COMMON_HEADERS})
sluice_pch(sluice_json_pch ${SLUICE_COMMON_HEADERS} <nlohmann/json.hpp>)
sluice_pch(sluice_grpc_pch ${SLUICE_COMMON_HEADERS} <google/protobuf/message.h> <grpcpp/grpcpp.h> <nlohmann/json.hpp>)
target_link_libraries(sluice_grpc_pch PRIVATE gRPC::grpc++)
# g++ takes a precompiled header only for the kind of code that it was made with: here for code of shared objects.
sluice_pch(sluice_pic_pch ${SLUICE_COMMON_HEADERS} <nlohmann/json.hpp>)
set_target_properties(sluice_pic_pch PROPERTIES POSITION_INDEPENDENT_CODE ON)

# Modules that go into a module of the device cuda too (sluice_cuda_module).
set(SLUICE_SHARED_MODULES common/base common/model common/protocol kernels kernels/cuda kernels/cuda/device pack)

# Modules of the tree and the modules each may include: cmake/rooms.txt is the only list, for CMake and for the modules
# test.
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/rooms.txt SLUICE_MODULES REGEX "^[^#]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/rooms.txt)
foreach(line ${SLUICE_MODULES})
  if(NOT line MATCHES "^([a-z_/]+): ?([a-z_/ ]*)$")
    message(FATAL_ERROR "cmake/rooms.txt: cannot read \"${line}\"")
  endif()
  set(module ${CMAKE_MATCH_1})
  string(REPLACE "/" "_" uses "${CMAKE_MATCH_2}")
  string(REPLACE " " ";" uses "${uses}")
  set(SLUICE_MODULE_${module} "${uses}")
endforeach()

# Several sources of a module or a test are compiled together: template instantiations of their headers cost more than the
# sources. So a name without linkage is used once in a module or a test program; a source that uses another's gets the
# property SKIP_UNITY_BUILD_INCLUSION. -DSLUICE_UNITY=OFF compiles each source by itself, for tools that read
# compile_commands.json and for work on one source.
option(SLUICE_UNITY "Compile several sources of a module or a test together" ON)
set(SLUICE_UNITY_BATCH 4)

# sluice_module(FOLDER [SRCS a.cc ...] [LIBS targets ...] [SEPARATE]): the library of one folder, named after it with _
# for /; linked to the modules that cmake/rooms.txt allows it. LIBS: external libraries and generated protos.
# SEPARATE: its sources are compiled one by one, because they define the same names.
function(sluice_module folder)
  cmake_parse_arguments(arg "SEPARATE" "" "SRCS;LIBS" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  if(NOT DEFINED SLUICE_MODULE_${folder})
    message(FATAL_ERROR "cmake/rooms.txt does not list ${folder}")
  endif()
  set(needs sluice_options sluice_absl ${SLUICE_MODULE_${folder}} ${arg_LIBS} Threads::Threads)
  if(NOT arg_SRCS)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${needs})
    return()
  endif()
  list(TRANSFORM arg_SRCS PREPEND ${CMAKE_SOURCE_DIR}/${folder}/)
  add_library(${name} STATIC ${arg_SRCS})
  target_link_libraries(${name} PUBLIC ${needs})
  if(SLUICE_CUDA AND folder IN_LIST SLUICE_SHARED_MODULES)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  sluice_use_pch(${name} ${arg_LIBS})
  # Kernels are compiled one by one, because inlining decides their speed; the sources of their devices with them.
  if(NOT arg_SEPARATE AND NOT folder MATCHES "^kernels/")
    sluice_batch(${name})
  endif()
endfunction()

# sluice_batch(TARGET): compiles its sources several at a time.
function(sluice_batch name)
  get_target_property(sources ${name} SOURCES)
  list(LENGTH sources count)
  if(SLUICE_UNITY AND count GREATER 1)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${SLUICE_UNITY_BATCH})
    # g++ treats the included sources of a batch as headers, and with more inlining it warns about impossible values.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage;-Wno-maybe-uninitialized>)
  endif()
endfunction()

# sluice_use_pch(TARGET LIBS...): the header for code of shared objects if the target is such; that for gRPC if gRPC or a
# generated proto is among LIBS, that for JSON if JSON is.
function(sluice_use_pch name)
  target_compile_options(${name} PRIVATE ${SLUICE_PCH_OPTIONS})
  get_target_property(shared ${name} POSITION_INDEPENDENT_CODE)
  if(shared)
    target_precompile_headers(${name} REUSE_FROM sluice_pic_pch)
  elseif("${ARGN}" MATCHES "gRPC::|_proto(;|$)")
    target_precompile_headers(${name} REUSE_FROM sluice_grpc_pch)
  elseif("nlohmann_json::nlohmann_json" IN_LIST ARGN)
    target_precompile_headers(${name} REUSE_FROM sluice_json_pch)
  else()
    target_precompile_headers(${name} REUSE_FROM sluice_pch)
  endif()
  # A source with other definitions is compiled without the header: no error, only slower. A source with its own
  # options must set SKIP_PRECOMPILE_HEADERS: g++ 12 crashes if they change its optimisation.
  set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)
endfunction()

# sluice_program(NAME SRCS ... [MODULES folders ...]): built in build/<preset>/bin, linked to these modules and to the
# modules that they may include.
function(sluice_program name)
  cmake_parse_arguments(arg "" "" "SRCS;MODULES" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  set(needs)
  foreach(module ${arg_MODULES})
    list(APPEND needs ${SLUICE_MODULE_${module}})
    string(REPLACE "/" "_" library ${module})
    if(TARGET ${library} AND NOT library STREQUAL name)
      list(APPEND needs ${library})
    endif()
  endforeach()
  target_link_libraries(${name} PRIVATE sluice_options sluice_absl ${needs} Threads::Threads)
  sluice_use_pch(${name} ${needs})
endfunction()

# sluice_library(NAME SRCS a.cc ... [DEPS targets ...] [PIC] [SEPARATE]): code that several tests or benchmarks share. PIC: it
# goes into a shared object too. SEPARATE: as for a module.
function(sluice_library name)
  cmake_parse_arguments(arg "PIC;SEPARATE" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_link_libraries(${name} PUBLIC sluice_options sluice_absl ${arg_DEPS} Threads::Threads)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ${arg_PIC})
  sluice_use_pch(${name} ${arg_DEPS})
  if(NOT arg_SEPARATE)
    sluice_batch(${name})
  endif()
endfunction()

# sluice_test_objects(NAME SRCS a.cc ... [DEPS targets ...]): sources of several test programs, compiled once; a program has
# $<TARGET_OBJECTS:NAME> among its sources.
function(sluice_test_objects name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} OBJECT ${arg_SRCS})
  target_link_libraries(${name} PUBLIC sluice_options ${arg_DEPS} GTest::gtest GTest::gmock)
  sluice_compile_tests(${name})
endfunction()

# sluice_compile_tests(TARGET): gives it the options and the precompiled header of tests.
function(sluice_compile_tests name)
  target_precompile_headers(${name} REUSE_FROM sluice_test_pch)
  target_compile_options(${name} PRIVATE ${SLUICE_TEST_OPTIONS})
  # A test with its own definitions (such as spdlog's) is compiled without the header: no error, only slower.
  set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)
endfunction()

# sluice_test(NAME SRCS ... [DEPS ...] [LABELS unit|e2e|stress|gpu ...] [TIMEOUT seconds] [ENV K=V ...] [SERIAL] [SLOW]
#             [ASAN] [LONG_ASAN] [TSAN] [SEPARATE])
# One ctest entry per program; runs in the source tree's root, so data is named tests/.../data. Unit tests that take less
# than a second are labelled quick; SLOW marks the others.
# SEPARATE: its sources are compiled one by one, because they define the same names.
# ASAN, TSAN: also run by CI under these sanitizers; TSAN only for programs without gRPC (Debian's is uninstrumented).
# LONG_ASAN: under the address sanitizer with SLUICE_STRESS=full only; for programs with all of the engine or of the command,
# whose instrumented builds take long.
function(sluice_test name)
  cmake_parse_arguments(arg "SERIAL;SLOW;ASAN;LONG_ASAN;TSAN;SEPARATE" "TIMEOUT" "SRCS;DEPS;LABELS;ENV;ARGS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sluice_options ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main Threads::Threads)
  sluice_compile_tests(${name})
  if(NOT arg_SEPARATE)
    sluice_batch(${name})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
    if(NOT arg_SLOW)
      list(APPEND arg_LABELS quick)
    endif()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(arg_ASAN)
    add_dependencies(sanitized_tests ${name})
    list(APPEND arg_LABELS asan)
  endif()
  if(arg_LONG_ASAN)
    add_dependencies(all_sanitized_tests ${name})
    list(APPEND arg_LABELS long_asan)
  endif()
  if(arg_TSAN)
    add_dependencies(threaded_tests ${name})
    list(APPEND arg_LABELS tsan)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # COST: tests that may take longest begin first, so that none is left running alone at the end.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}
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
  sluice_use_pch(${name} ${arg_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()
